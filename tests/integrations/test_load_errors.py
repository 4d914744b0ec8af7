"""What cannot be loaded with its experts packed: one error that says what is, what was needed and what to change."""

import re
import shutil
import sys
from functools import partial

import pytest
import torch
import transformers

from moesaic import FP8, PerRow
from moesaic.checkpoints import Checkpoint
from moesaic.checkpoints.methods import CompressedTensors
from moesaic.errors import CheckpointError, PatchError
from moesaic.integrations.transformers import load
from moesaic.integrations.transformers.quantizer import PackedExpertsConfig, PackedExpertsQuantizer
from tests.checkpoints.editing import configure, quantization
from tests.checkpoints.examples import named
from tests.integrations.families import OUTSIDE, here, tiny
from tests.integrations.stored import DENSE, change, kind_of, quantized

AUTO = transformers.AutoModelForCausalLM
EXPERT = "model.layers.1.mlp.experts.3.up_proj"
DOWN, QUERY = "model.layers.1.mlp.experts.3.down_proj", "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module", autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    sizes = {"hidden_size": 136, "moe_intermediate_size": 40}
    return quantized("qwen3_moe", named("deepseek-v3"), tmp_path_factory.mktemp("written"), dense=DENSE, **sizes)


@pytest.fixture
def fp8(written, tmp_path):
    """A checkpoint in the convention of DeepSeek-V3, attention and all."""
    return shutil.copytree(written, tmp_path / "fp8")


def without(name, tensors):
    del tensors[name]


def changed(name, make, tensors):
    tensors[name] = make(tensors[name])


FAULTS = {
    "no scale": (partial(without, f"{EXPERT}.weight_scale_inv"), [f"{EXPERT}.weight_scale_inv", "no tensor"]),
    "no scale of a dense layer": (partial(without, f"{QUERY}.weight_scale_inv"), [f"{QUERY}.weight_scale_inv"]),
    "no expert": (partial(without, f"{DOWN}.weight"), [f"{DOWN}.weight", "no tensor"]),
    "mixed formats": (
        lambda tensors: (
            tensors.pop(f"{EXPERT}.weight_scale_inv"),
            changed(f"{EXPERT}.weight", torch.Tensor.bfloat16, tensors),
        ),
        [EXPERT, "Plain()", "experts of one layer have one format"],
    ),
    "a scale that is nothing": (
        partial(changed, f"{QUERY}.weight_scale_inv", torch.zeros_like),
        [f"{QUERY}.weight_scale_inv", "above zero"],
    ),
    "scales of another block": (
        partial(changed, f"{EXPERT}.weight_scale_inv", lambda scale: scale.repeat(2, 1)),
        [f"{EXPERT}.weight_scale_inv", "(2, 2)"],
    ),
    "a second scale": (
        lambda tensors: tensors.update({f"{QUERY}.weight_scale_2": torch.ones(1)}),
        [f"{QUERY}.weight_scale_2", "no tensor beside the weight"],
    ),
    "a dense layer of another size": (
        lambda tensors: (
            changed(f"{QUERY}.weight", lambda weight: weight[:16].clone(), tensors),
            changed(f"{QUERY}.weight_scale_inv", lambda scale: scale[:1].clone(), tensors),
        ),
        [QUERY, "(16, 136)", "another model"],
    ),
    "codes of a vector": (
        lambda tensors: changed("model.norm.weight", lambda weight: weight.to(torch.int8), tensors),
        ["model.norm", "weight"],
    ),
    "no layer": (
        lambda tensors: [tensors.pop(name) for name in [*tensors] if "layers.0.mlp.experts" in name],
        ["no experts for model.layers.0.mlp.experts"],
    ),
}
"""What is done to a checkpoint, and what the error names."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_files_names_the_tensor(name, fp8):
    edit, words = FAULTS[name]
    change(fp8, edit)
    with pytest.raises(CheckpointError) as caught:
        load(AUTO, fp8)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"num_experts": 6}, ["8 experts", "config.json says 6"]),
        ({"moe_intermediate_size": 48}, ["(8, 80, 136)", "(8, 96, 136)", "another model"]),
        ({"hidden_size": 128, "num_attention_heads": 4}, ["136", "128", "another model"]),
    ],
)
def test_a_configuration_of_another_model_is_an_error(field, words, fp8):
    configure(fp8, **field)
    with pytest.raises(CheckpointError) as caught:
        load(AUTO, fp8)
    assert all(word in str(caught.value) for word in words), caught.value


def test_an_unknown_convention_is_an_error_that_lists_those_there_are(fp8):
    quantization(fp8, quant_method="bitsandbytes")
    with pytest.raises(CheckpointError, match="quant_method is 'bitsandbytes', but it needs fp8, mxfp8, mxfp4, compr"):
        load(AUTO, fp8)


def test_the_wrong_convention_is_an_error_too(fp8):
    method = CompressedTensors.of_scheme(named("ct-fp8-channel").method.groups[0].scheme)
    configure(fp8, quantization_config=method.to_config())
    assert method.groups[0].scheme.weights == FP8(PerRow())
    with pytest.raises(CheckpointError, match=r"weight_scale"):
        load(AUTO, fp8)


@pytest.mark.parametrize("version", ["5.17.0", "5.20.3"])
def test_a_transformers_that_is_too_old_says_so(version, fp8, monkeypatch):
    monkeypatch.setattr(sys.modules[load.__module__].transformers, "__version__", version)
    with pytest.raises(PatchError, match=rf"transformers is {re.escape(version)}, but experts stay packed with 5\.21"):
        load(AUTO, fp8)


@pytest.mark.parametrize(
    "option",
    [
        {"quantization_config": PackedExpertsConfig()},
        {"experts_implementation": "eager"},
        {"tp_plan": "auto"},
        {"key_mapping": {"a": "b"}},
    ],
    ids=lambda option: next(iter(option)),
)
def test_an_option_that_contradicts_packed_experts_is_an_error(option, fp8):
    (name,) = option
    with pytest.raises(PatchError, match=f"{name} is given, but the experts of .* leave {name} out"):
        load(AUTO, fp8, **option)


@pytest.mark.parametrize("device_map", ["auto", {"": "disk"}, {"model": "cuda:0", "lm_head": "cuda:1"}], ids=str)
def test_a_model_on_several_devices_is_an_error(device_map):
    quantizer = PackedExpertsQuantizer(PackedExpertsConfig())
    with pytest.raises(PatchError, match="the whole model on one device"):
        quantizer.validate_environment(device_map=device_map)
    quantizer.validate_environment(device_map={"": torch.device("cuda:0")})


def test_a_family_outside_the_interface_is_an_error(tmp_path):
    kind = "llama4"
    tiny(kind).save_pretrained(tmp_path / "plain")
    checkpoint = Checkpoint(tmp_path / "plain")
    configure(tmp_path / "plain", quantization_config=named("ct-int4").method.to_config())
    with pytest.raises(PatchError, match=r"does not go through transformers' experts interface.* with from_pretr"):
        load(getattr(transformers, OUTSIDE[kind][0]), checkpoint.directory)


@pytest.mark.parametrize("family", here("lara_mini"))
def test_a_quantized_matrix_that_transformers_takes_apart_is_an_error(family, tmp_path):
    directory = quantized(family, named("deepseek-v3"), tmp_path, dense=r"linear_attn\.in_proj$")
    with pytest.raises(
        CheckpointError, match=r"linear_attn\.in_proj\.weight is torch\.float8_e4m3fn, and transformers"
    ):
        load(kind_of(family), directory)


def test_a_dense_matrix_that_transformers_passes_by_is_an_error(fp8, monkeypatch):
    monkeypatch.setattr(
        PackedExpertsQuantizer, "update_weight_conversions", lambda self, conversions, model: conversions
    )
    with pytest.raises(
        CheckpointError, match=r"transformers did not load (.*_proj|lm_head) of .* with from_pretrained"
    ):
        load(AUTO, fp8)


def test_a_directory_that_is_none_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="is not a directory"):
        load(AUTO, tmp_path / "nowhere")
