"""Files that do not hold what they should: one error that names file and tensor, what is and what is needed."""

import re

import pytest
import torch

from moesaic.checkpoints import Checkpoint, read_experts
from moesaic.errors import CheckpointError
from tests.checkpoints.editing import configure, edit
from tests.checkpoints.examples import named, written

EXPERT = "model.layers.3.mlp.experts.1"


def refused(directory, *words, layer=3, experts=None):
    """The error about `layer`; every one of `words` is in it."""
    with pytest.raises(CheckpointError) as caught:
        read_experts(directory, layer, experts=experts)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    return message


def replace(name, change):
    def changed(tensors):
        if name in tensors:
            tensors[name] = change(tensors[name])

    return changed


def remove(pattern):
    def changed(tensors):
        for name in [n for n in tensors if re.search(pattern, n)]:
            del tensors[name]

    return changed


def put(index, value):
    def changed(tensor):
        tensor = tensor.clone()
        tensor[index] = value
        return tensor

    return changed


SCALES = [
    ("deepseek-v3", "down_proj.weight_scale_inv"),
    ("ct-int4", "gate_proj.weight_scale"),
    ("ct-fp8-channel", "up_proj.weight_scale"),
    ("ct-int8", "up_proj.weight_scale"),
    ("ct-nvfp4", "down_proj.weight_scale"),
    ("awq", "down_proj.scales"),
    ("gptq", "down_proj.scales"),
]


@pytest.mark.parametrize("number", [0.0, -1.0, float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize(("name", "suffix"), SCALES)
def test_a_scale_that_is_not_finite_and_above_zero_is_named(name, suffix, number, tmp_path):
    _, directory = written(named(name), tmp_path)
    tensor = f"{EXPERT}.{suffix}"
    edit(directory, replace(tensor, put((0, 0), number)))
    if name == "ct-nvfp4" and number == float("inf"):
        assert read_experts(directory, 3).down.scales["scale"][1, 0, 0] == 448  # E4M3 has no infinity
        return
    refused(directory, "model-00002-of-00002.safetensors", f"{tensor}[0, 0] is {number}", "finite and above zero")


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("ct-nvfp4", "weight_global_scale"), ("modelopt-nvfp4", "weight_scale_2"), ("modelopt-fp8", "weight_scale")],
)
def test_so_is_one_for_a_whole_matrix(name, suffix, tmp_path):
    case = named(name)
    _, directory = written(case, tmp_path)
    tensor = f"{case.block.format(3)}.1.up_proj.{suffix}"
    edit(directory, replace(tensor, torch.zeros_like))
    refused(directory, tensor, "is 0.0")


@pytest.mark.parametrize("name", ["ct-mxfp8", "ct-mxfp4"])
def test_the_code_of_no_power_of_two_is_named(name, tmp_path):
    case = named(name)
    _, directory = written(case, tmp_path)
    tensor = f"{case.block.format(3)}.1.{case.naming.up}.weight_scale"
    edit(directory, replace(tensor, put((2, 1), 255)))
    refused(directory, f"{tensor}[2, 1] is nan")


@pytest.mark.parametrize("suffix", ["weight", "weight_scale_inv"])
def test_a_missing_tensor_is_named(suffix, tmp_path):
    _, directory = written(named("deepseek-v3"), tmp_path)
    edit(directory, remove(rf"{EXPERT}\.up_proj\.{suffix}$"))
    refused(directory, str(directory), f"{EXPERT}.up_proj.{suffix}", "complete the checkpoint")
    assert read_experts(directory, 3, experts=[0, 2]).down.shape[0] == 2  # those who do not need it do not miss it
    assert read_experts(directory, 2).down.shape[0] == 5


def test_a_missing_gate_is_not_an_expert_without_one(tmp_path):
    _, directory = written(named("bf16"), tmp_path)
    edit(directory, remove(rf"{EXPERT}\.gate_proj"))
    refused(directory, f"{EXPERT}.gate_proj.weight")


def test_missing_last_experts_are_noticed_by_the_configuration(tmp_path):
    _, directory = written(named("bf16"), tmp_path)
    edit(directory, remove(r"experts\.4\."))
    refused(directory, "4 experts", "says 5")
    configure(directory, num_local_experts=4)
    assert read_experts(directory, 3).down.shape[0] == 4


@pytest.mark.parametrize(
    ("name", "suffix", "change", "words"),
    [
        ("deepseek-v3", "weight", lambda t: t.view(torch.int8), ("torch.int8", "float8_e4m3fn")),
        ("deepseek-v3", "weight_scale_inv", lambda t: t.double(), ("torch.float64", "torch.float32 or torch.bfloat16")),
        ("deepseek-v3", "weight_scale_inv", lambda t: t[:1], ("(1, 2)", "(2, 2)")),
        ("deepseek-v3", "weight_scale_inv", lambda t: t.flatten(), ("(4,)", "(2, 2)")),
        ("ct-fp8-channel", "weight_scale", lambda t: t[:, :0], ("(40, 0)", "(40, 1) or (40,)")),
        ("ct-int4", "weight_packed", lambda t: t.to(torch.int64), ("torch.int64", "torch.int32")),
        ("ct-int4", "weight_packed", lambda t: t[:, :-1], ("weight_shape", "(40, 72)", "the 8 words")),
        ("ct-int4", "weight_shape", lambda t: t + 3, ("weight_shape", "(43, 75)")),
        ("ct-int4-asymmetric", "weight_zero_point", lambda t: t[:-1], ("(5, 3)", "(6, 3)")),
        ("ct-w4afp8", "weight", lambda t: t + 9, ("from 1 to 16", "-8 to 7")),
        ("ct-mxfp4", "weight_scale", lambda t: t[:-1], ("(39, 2)", "(40, 2)")),
        ("ct-nvfp4", "weight_global_scale", lambda t: t.repeat(2), ("(2,)", "(1, 1) or (1,) or ()")),
        ("awq", "qzeros", lambda t: t[:-1], ("(2, 5)", "(3, 5)")),
        ("awq", "scales", lambda t: t.mT, ("(40, 3)", "(3, 40)")),
        ("gptq", "g_idx", lambda t: t[:-1], ("(71,)", "(72,)")),
        ("bf16", "weight", lambda t: t[0], ("1-dimensional", "rows and columns")),
    ],
)
def test_a_tensor_of_the_wrong_dtype_or_shape_is_named(name, suffix, change, words, tmp_path):
    case = named(name)
    _, directory = written(case, tmp_path)
    tensor = f"{case.block.format(3)}.1.{case.naming.up}.{suffix}"
    edit(directory, replace(tensor, change))
    refused(directory, "model-00002-of-00002.safetensors", f"{case.block.format(3)}.1.{case.naming.up}", *words)


def test_a_surplus_tensor_is_named_but_scales_of_inputs_are_not(tmp_path):
    _, directory = written(named("modelopt-fp8"), tmp_path)
    stem = "backbone.layers.3.mixer.experts.1.up_proj"

    def add(suffix):
        return lambda tensors: tensors.update(
            {f"{stem}.{suffix}": torch.ones(())} if f"{stem}.weight" in tensors else {}
        )

    edit(directory, add("input_scale"))
    read_experts(directory, 3)
    edit(directory, add("weight_scale_2"))
    refused(directory, f"{stem}.weight_scale_2 is there", "no tensor beside the weight but weight, weight_scale")


def test_two_scales_of_one_weight_are_one_too_many(tmp_path):
    _, directory = written(named("deepseek-v3"), tmp_path)
    stem = f"{EXPERT}.up_proj"
    edit(
        directory,
        lambda tensors: tensors.update(
            {f"{stem}.weight_scale": torch.ones(2, 2)} if f"{stem}.weight" in tensors else {}
        ),
    )
    refused(directory, f"{stem}.weight_scale stands beside {stem}.weight_scale_inv")


def test_experts_of_one_layer_have_one_format(tmp_path):
    _, directory = written(named("qwen3-fp8"), tmp_path)
    edit(directory, replace(f"{EXPERT}.up_proj.weight_scale_inv", lambda t: t.float()))
    refused(directory, f"{EXPERT}.up_proj", "torch.float32", "one format")


def test_an_expert_that_was_left_plain_is_not_one_of_the_quantized(tmp_path):
    _, directory = written(named("deepseek-v3"), tmp_path)
    edit(directory, remove(rf"{EXPERT}\.up_proj\.weight_scale_inv"))
    edit(directory, replace(f"{EXPERT}.up_proj.weight", lambda t: t.to(torch.bfloat16)))
    refused(directory, f"{EXPERT}.up_proj is stored as Plain()")


def test_both_projections_have_one_format(tmp_path):
    _, directory = written(named("deepseek-v3"), tmp_path)
    edit(directory, remove(r"down_proj\.weight_scale_inv"))

    def plain(tensors):
        tensors.update({n: t.to(torch.bfloat16) for n, t in tensors.items() if n.endswith("down_proj.weight")})

    edit(directory, plain)
    refused(directory, "first projection as FP8", "second as Plain()")


def test_experts_of_one_layer_have_one_shape(tmp_path):
    _, directory = written(named("bf16"), tmp_path)
    edit(directory, replace(f"{EXPERT}.up_proj.weight", lambda t: t[:-2]))
    refused(directory, f"{EXPERT}.up_proj", "(38, 72)", "(40, 72)")


def test_the_second_projection_fits_the_first(tmp_path):
    _, directory = written(named("bf16"), tmp_path)
    edit(directory, lambda tensors: tensors.update({n: t[:, :-2] for n, t in tensors.items() if "down_proj" in n}))
    refused(directory, "40 rows and 72 columns", "(72, 40)", "(72, 38)")


def test_an_order_of_activations_is_refused(tmp_path):
    _, directory = written(named("gptq"), tmp_path)
    tensor = f"{EXPERT}.up_proj.g_idx"
    edit(directory, replace(tensor, lambda t: t.flip(0)))
    refused(directory, f"{tensor}[0] is 2, but it needs 0", "desc_act", "quantize without")


def test_so_it_is_in_compressed_tensors(tmp_path):
    _, directory = written(named("ct-int4"), tmp_path)
    tensor = f"{EXPERT}.up_proj.weight_g_idx"
    order = (torch.arange(72) // 32).to(torch.int32)

    def add(tensors):
        tensors.update({tensor: order} if tensor.replace("_g_idx", "_shape") in tensors else {})

    edit(directory, add)
    read_experts(directory, 3)
    edit(directory, replace(tensor, put(40, 0)))
    refused(directory, f"{tensor}[40] is 0, but it needs 1")


def test_a_zero_point_of_gptqs_first_version_that_readers_disagree_about_is_refused(tmp_path):
    _, directory = written(named("gptq"), tmp_path)
    edit(directory, replace(f"{EXPERT}.up_proj.qzeros", put((1, 2), -1)))
    refused(directory, f"{EXPERT}.up_proj.qzeros holds 15", "gptq_v2")


def test_a_symmetric_file_has_no_other_zero_point(tmp_path):
    _, directory = written(named("gptq-symmetric"), tmp_path)
    edit(directory, replace(f"{EXPERT}.up_proj.qzeros", put((1, 2), 0x77777767)))
    refused(directory, f"{EXPERT}.up_proj.qzeros holds 7", "8 everywhere", "sym")


def test_weights_without_a_quantization_config_are_not_guessed(tmp_path):
    _, directory = written(named("deepseek-v3"), tmp_path)
    configure(directory, quantization_config=None)
    refused(directory, "experts.0.gate_proj.weight_scale_inv is there")
    assert Checkpoint(directory).method.to_config() is None
