"""load: the experts of a quantized checkpoint stay in its format, and compute what the dequantized ones do."""

import copy
import shutil
from functools import partial

import pytest
import torch
import transformers

from moesaic import FP8, CpuQuantized, ExpertWeights, PerBlock, PerGroup, Plain, Reference, Scheme
from moesaic.checkpoints import Checkpoint
from moesaic.errors import GradientError, PatchError
from moesaic.integrations.transformers import load, patch, unpatch
from moesaic.integrations.transformers.dense import Dequantize
from moesaic.integrations.transformers.discovery import find_layers
from moesaic.integrations.transformers.names import Names, Target
from moesaic.integrations.transformers.state import packed_weights
from tests.checkpoints.examples import named
from tests.integrations.families import here, ids, output, tiny
from tests.integrations.stored import DENSE, kind_of, quantized, twin, with_plain_layer
from tests.integrations.test_families import RMS, error

FEW = {"num_hidden_layers": 1, "num_experts": 5}
V3 = {"num_hidden_layers": 2, "n_routed_experts": 6, "num_key_value_heads": 4}
EXAMPLES = {
    "deepseek-v3": ("deepseek_v3", V3, DENSE),
    "qwen3-fp8": ("qwen3_moe", FEW, DENSE),
    "minimax-m2": ("mixtral", {"num_hidden_layers": 1, "num_local_experts": 5}, DENSE),
    "fp8-tensor": ("qwen3_moe", FEW, DENSE),
    "deepseek-v4-fp4": ("deepseek_v4", {"num_hidden_layers": 2}, DENSE),
    "gpt-oss": ("gpt_oss", {"num_hidden_layers": 1, "num_local_experts": 5}, None),
    "ct-int4": ("qwen3_moe", FEW, None),
    "ct-int4-asymmetric": ("deepseek_v3", V3, DENSE),
    "ct-w4afp8": ("qwen3_moe", FEW, None),
    "ct-w8a16": ("qwen3_moe", {**FEW, "hidden_size": 72}, DENSE),
    "ct-fp8-channel": ("qwen3_moe", FEW, DENSE),
    "ct-fp8-block": ("qwen3_moe", FEW, DENSE),
    "ct-int8": ("qwen3_moe", FEW, None),
    "ct-mxfp8": ("qwen3_moe", FEW, None),
    "ct-mxfp4": ("mixtral", {"num_hidden_layers": 1, "num_local_experts": 5}, DENSE),
    "ct-nvfp4": ("qwen3_moe", FEW, DENSE),
    "modelopt-fp8": ("nemotron_h", {}, DENSE),
    "modelopt-nvfp4": ("nemotron_h", {}, DENSE),
    "awq": ("qwen3_moe", FEW, DENSE),
    "gptq-symmetric": ("qwen3_moe", FEW, DENSE),
}
"""Convention to a family, its sizes, and the matrices beside the experts that are quantized too."""


@pytest.fixture(scope="module", autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def example(name, directory):
    """(family, case, checkpoint) of an example."""
    family, sizes, dense = EXAMPLES[name]
    case = named(name)
    inner = {"gpt_oss": "intermediate_size", "mixtral": "intermediate_size"}.get(family, "moe_intermediate_size")
    latent = {"moe_latent_size": case.hidden} if family == "nemotron_h" else {"hidden_size": case.hidden}
    sizes = {**latent, inner: case.inner, **sizes}
    return family, case, quantized(family, case, directory, dense=dense, **sizes)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32}
    return quantized("qwen3_moe", named("ct-int4"), tmp_path_factory.mktemp("written"), **sizes)


@pytest.fixture
def int4(written, tmp_path):
    """A checkpoint of two layers with INT4 experts, as compressed-tensors keeps them."""
    return shutil.copytree(written, tmp_path / "int4")


STATES = ("loaded", "patched", "given back")


def in_state(state, model):
    """`model` as it was loaded, patched, or patched and given back."""
    if state != "loaded":
        patch(model)
    if state == "given back":
        unpatch(model)
    return model


open_int4 = partial(load, kind_of("qwen3_moe"), dtype=torch.float32)


@pytest.mark.parametrize("name", EXAMPLES)
def test_logits_are_those_of_transformers_with_the_dequantized_weights(name, tmp_path):
    family, case, directory = example(name, tmp_path)
    model, wanted = load(kind_of(family), directory, dtype=torch.float32), twin(family, case, directory)
    report = patch(model, strict=True)
    for tokens in (ids(), ids(1)):  # four choices of two tokens leave experts empty
        expected = output(wanted, input_ids=tokens)
        assert error(output(model, input_ids=tokens), expected) <= RMS
    plain = kind_of(family).from_pretrained(tmp_path / "plain", dtype=torch.float32, experts_implementation="eager")
    assert error(output(plain), output(wanted)) > 100 * RMS, "the comparison cannot see the quantization"
    checkpoint = Checkpoint(directory)
    assert len(report.covered) == len(checkpoint.layers) > 0
    for layer, stored in zip(report.covered, checkpoint.layers, strict=True):
        assert (layer.format, layer.backend) == (case.stored, CpuQuantized())
        assert layer.num_bytes == checkpoint.read(stored.name).num_bytes
        assert layer.problem.scheme.inputs == Plain()


@pytest.mark.parametrize("family", here("qwen3_omni_moe", "granitemoe", "aria", "kimi_linear", "gemma4", "inkling"))
def test_families_that_name_or_stack_or_initialize_experts_in_another_way(family, tmp_path):
    kind = kind_of(family)
    directory = quantized(family, named("deepseek-v3"), tmp_path)
    model = load(kind, directory, dtype=torch.float32)
    patch(model, strict=True)
    got = output(model)
    unpatch(model)
    model.dequantize()
    model.set_experts_implementation("eager")
    assert error(got, output(model)) <= RMS
    plain = kind.from_pretrained(tmp_path / "plain", dtype=torch.float32, experts_implementation="eager")
    assert 100 * RMS < error(got, output(plain)) < 0.3  # by the rounding to FP8


def test_the_report_says_format_bytes_and_backend_of_each_layer(int4):
    text = str(patch(open_int4(int4)))
    line = "cpu_quantized  problem 1, 27.0 KiB of INT4(granularity=PerGroup(columns=32)"
    assert text.startswith(f"2 of 2 MoE layers run through moesaic\n  model.layers.0.mlp.experts  {line}")
    assert text.count("27.0 KiB") == 2


def test_without_patch_a_layer_is_bound_by_its_first_call(int4):
    model, other = open_int4(int4), open_int4(int4)
    first = output(model)
    patch(other)
    assert torch.equal(output(other), first)
    with pytest.raises(PatchError, match="patched already"):
        patch(model)
    unpatch(model)
    assert model.get_experts_implementation() == {"": "moesaic"}
    assert len(patch(model).covered) == 2
    assert torch.equal(output(model), first)


def test_weights_are_given_back_bit_for_bit(int4):
    model = open_int4(int4, dtype=torch.bfloat16)  # in which the backend has a layout of its own
    module = model.model.layers[1].mlp.experts
    before = packed_weights(module)
    for _ in range(2):
        patch(model)
        assert packed_weights(module) is None
        first = output(model)
        unpatch(model)
        after = packed_weights(module)
        assert all(map(torch.equal, after.tensors, before.tensors))
        assert (after.gate_up.format, after.gate_up.parts) == (before.gate_up.format, 2)
    assert torch.equal(output(model), first)


def test_int4_kernels_agree_with_transformers_in_bfloat16(int4):
    wanted = output(twin("qwen3_moe", named("ct-int4"), int4).to(torch.bfloat16)).float()
    model = open_int4(int4, dtype=torch.bfloat16)
    report = patch(model)
    assert (output(model).float() - wanted).norm() < 0.02 * wanted.norm()
    assert {layer.problem.dtype for layer in report.layers} == {torch.bfloat16}


def test_inputs_are_rounded_as_the_makers_serve_them_on_demand(tmp_path):
    family, case, directory = example("deepseek-v3", tmp_path)
    model = load(kind_of(family), directory, dtype=torch.float32)
    patch(model)
    exact = output(model)
    unpatch(model)
    (layer,) = patch(model, quantize_inputs=True).layers
    assert layer.problem.scheme == Scheme(case.stored, FP8(PerGroup(128)))
    rounded = output(model)
    assert 1e-3 < error(rounded, exact) < 0.1
    unpatch(model)
    patch(model, backends=(Reference(),), quantize_inputs=True)
    assert error(output(model), rounded) <= RMS


def test_a_plain_layer_beside_packed_ones_stays_plain(tmp_path):
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32}
    case = named("qwen3-fp8")
    directory = quantized("qwen3_moe", case, tmp_path, **sizes)
    plain = kind_of("qwen3_moe").from_pretrained(tmp_path / "plain", dtype=torch.float32).eval()
    with_plain_layer(directory, tmp_path / "plain", "model.layers.0.mlp.experts.")
    model = load(kind_of("qwen3_moe"), directory, dtype=torch.float32)
    assert torch.equal(model.model.layers[0].mlp.experts.gate_up_proj, plain.model.layers[0].mlp.experts.gate_up_proj)
    report = patch(model)
    assert [layer.format for layer in report.layers] == [Plain(), FP8(PerBlock(), scale=torch.bfloat16)]
    assert error(output(model), output(twin("qwen3_moe", case, directory))) <= RMS
    unpatch(model)
    assert len(patch(model, strict=True).covered) == 2


def test_a_checkpoint_that_is_not_quantized_is_loaded_by_transformers_alone(tmp_path):
    tiny("mixtral").save_pretrained(tmp_path)
    model = load(transformers.AutoModelForCausalLM, tmp_path, dtype=torch.float32, experts_implementation="eager")
    assert model.get_experts_implementation() == {"": "eager"}
    assert patch(model).layers[0].format == Plain()


def test_a_layer_that_is_not_covered_says_so_when_it_is_called(int4):
    model = open_int4(int4)
    model.model.layers[1].mlp.experts.act_fn = torch.nn.Tanh()
    report = patch(model)
    assert [layer.name for layer in report.not_covered] == ["model.layers.1.mlp.experts"]
    assert report.not_covered[0].num_bytes == report.covered[0].num_bytes
    with pytest.raises(PatchError, match=r"activation not recognised.*; load the checkpoint with from_pretrained"):
        output(model)


def test_a_failure_on_the_second_layer_leaves_the_weights_packed(int4, monkeypatch):
    model, prepare, calls = open_int4(int4), CpuQuantized.prepare, []

    def fail(self, weights, problem):
        calls.append(problem)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return prepare(self, weights, problem)

    with monkeypatch.context() as patched:
        patched.setattr(CpuQuantized, "prepare", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            patch(model)
    assert all(packed_weights(layer.mlp.experts) is not None for layer in model.model.layers)
    assert len(patch(model).covered) == 2


@pytest.mark.parametrize("state", STATES)
def test_a_packed_model_is_copied_and_stored_whole(int4, tmp_path, state):
    model = in_state(state, open_int4(int4))
    torch.save(model, tmp_path / "model.pt")
    others = [copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)]
    for other in others:
        with pytest.raises(PatchError, match="Qwen3MoeForCausalLM cannot be moved or converted"):
            other.to(torch.float64)
    expected = output(model)
    assert all(torch.equal(output(other), expected) for other in others)


@pytest.mark.parametrize("state", STATES)
def test_what_packed_weights_cannot_do_is_an_error(int4, tmp_path, state):
    model = in_state(state, open_int4(int4))
    for refused, message in (
        (lambda: model.save_pretrained(tmp_path / "saved"), r"copy the checkpoint's directory, or call model.dequant"),
        (model.state_dict, "copy the checkpoint's directory"),
        (lambda: model.load_state_dict({}), "ForCausalLM, whose expert weights are those of a quantized checkpoint"),
        (lambda: model.model.load_state_dict({}, strict=False), "expert weights are those of a quantized checkpoint"),
        (lambda: model.to(torch.float64), "ForCausalLM cannot be moved.* load it with the device_map and the dtype"),
        (lambda: model.model.layers[0].mlp.experts.to("meta"), "load it with the device_map"),
    ):
        with pytest.raises(PatchError, match=message):
            refused()
    assert not (tmp_path / "saved").exists()
    with pytest.raises(GradientError, match="packed weights"):
        model(ids())
    model.set_experts_implementation("eager")
    with pytest.raises(PatchError, match=r"weights are packed, which moesaic alone runs: call patch\(model\)"):
        output(model)
    model.set_experts_implementation("moesaic")
    wanted = output(model)
    with pytest.raises(
        PatchError, match=r"call unpatch\(model\) first"
    ):  # a backend has them, or had them by this call
        model.dequantize()
    assert torch.equal(output(model), wanted)


def test_a_dequantized_model_is_plain_and_can_be_saved(int4, tmp_path):
    model, wanted = open_int4(int4), twin("qwen3_moe", named("ct-int4"), int4)
    patch(model)
    unpatch(model)
    model.dequantize()
    state = model.state_dict()
    for name, value in wanted.state_dict().items():
        assert torch.equal(state[name], value), name
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", experts_implementation="eager")
    assert "quantization_config" not in again.config.to_dict()
    assert torch.equal(output(again.eval()), output(wanted))
    assert patch(model.to(torch.float64)).layers[0].format == Plain()


def test_dequantizing_that_runs_out_of_memory_loses_nothing_and_is_called_again(int4, monkeypatch):
    model, wanted, dequantize = open_int4(int4), twin("qwen3_moe", named("ct-int4"), int4), ExpertWeights.dequantize
    room = iter((True, False))

    def short(self, dtype):
        if not next(room):
            raise torch.OutOfMemoryError("no room for the second layer")
        return dequantize(self, dtype)

    with monkeypatch.context() as patched:
        patched.setattr(ExpertWeights, "dequantize", short)
        with pytest.raises(torch.OutOfMemoryError, match="no room for the second layer"):
            model.dequantize()
    first, second = (layer.module for layer in find_layers(model))
    assert packed_weights(first) is None
    assert packed_weights(second) is not None
    with pytest.raises(PatchError, match="holds the packed weights"):  # it is guarded still
        model.state_dict()
    model.dequantize()
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in wanted.state_dict().items())


def test_a_model_whose_dense_layers_were_quantized_is_saved_plain(tmp_path):
    family, case, directory = example("ct-fp8-channel", tmp_path)
    model, wanted = load(kind_of(family), directory, dtype=torch.float32), twin(family, case, directory)
    conversions = vars(model)["_weight_conversions"]
    kept = [operation for each in conversions for operation in getattr(each, "operations", ())]
    assert kept
    assert not any(isinstance(operation, Dequantize) for operation in kept)
    model.dequantize()
    model.save_pretrained(tmp_path / "saved")
    again = kind_of(family).from_pretrained(tmp_path / "saved", experts_implementation="eager").eval()
    assert torch.equal(output(again), output(wanted))


def test_generate_gives_the_tokens_of_the_dequantized_model(int4):
    how = {"attention_mask": torch.ones_like(ids()), "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    model, wanted = open_int4(int4), twin("qwen3_moe", named("ct-int4"), int4)
    patch(model)
    assert torch.equal(model.generate(ids(), **how), wanted.generate(ids(), **how))


@pytest.mark.parametrize("family", here("deepseek_v4"))
def test_a_name_that_the_model_has_itself_is_not_renamed(family):
    names = Names.of(tiny(family))
    assert names.target("model.norm.weight") == Target("model.norm.weight", converted=False)
    assert names.target("layers.1.ffn.experts.7.w1.weight").converted
    assert names.target("layers.1.ffn.no_such.weight") is None
