"""`moesaic checkpoint`: what files hold; every example is written by the package and spoiled here."""

import json

import pytest

from moesaic import FP8, NVFP4, PerBlock, PerGroup, Plain, Scheme, SwiGLU
from moesaic.cli.reading import read_value
from tests.checkpoints.editing import edit
from tests.checkpoints.examples import named, written
from tests.checkpoints.test_transformers import quantized_model


@pytest.fixture
def quantized(tmp_path):
    """A whole model whose experts are in FP8 blocks."""
    from moesaic.checkpoints import FineGrainedFP8  # noqa: PLC0415
    from moesaic.checkpoints.naming import PROJ  # noqa: PLC0415

    quantized_model("qwen3_moe", FP8(PerBlock()), FineGrainedFP8(), PROJ, tmp_path)
    return tmp_path


def test_a_quantized_model_is_described_and_resolved(moesaic, quantized):
    answer = moesaic("checkpoint", str(quantized), "--json", "--machine", "cpu")
    assert answer.code == 0, answer
    found = answer.document
    assert found["layers"] == [f"model.layers.{n}.mlp.experts" for n in (0, 1)]
    problem = read_value(found["problem"])
    assert problem.scheme == Scheme(FP8(PerBlock()), FP8(PerGroup(128))) == read_value(found["scheme"])
    assert (problem.num_experts, problem.hidden_size, problem.activation) == (8, 32, SwiGLU())
    assert found["layer_bytes"] == problem.weight_bytes
    assert found["backend"] is None or isinstance(found["backend"], str)
    moesaic("explain", "--model", str(quantized)).assert_bad_input("moesaic checkpoint")


def test_a_plain_model(moesaic, tiny_model):
    found = moesaic("checkpoint", str(tiny_model), "--json", "--machine", "cpu").document
    assert read_value(found["scheme"]) == Scheme(Plain(), Plain())
    assert found["backend"]
    text = moesaic("checkpoint", str(tiny_model))
    assert "model.layers.0.mlp.experts, model.layers.1.mlp.experts" in text.out
    assert "num experts        4" in text.out


def test_text_tells_the_dtype_of_scales_once_as_the_tensors_have_it(moesaic, tmp_path):
    _, directory = written(named("ct-int4"), tmp_path)
    text = moesaic("checkpoint", str(directory)).out
    assert "method             CompressedTensors\n" in text
    assert text.count("scale=torch.") == 1
    assert moesaic("checkpoint", str(directory), "--json").document["method"].startswith("CompressedTensors(groups=")


def test_tensors_that_transformers_does_not_know_are_described_without_a_problem(moesaic, tmp_path):
    _, directory = written(named("ct-nvfp4"), tmp_path)
    found = moesaic("checkpoint", str(directory), "--layer", "3", "--json").document
    assert found["layer"] == "model.layers.3.mlp.experts"
    assert (found["num_experts"], found["hidden_size"], found["intermediate_size"]) == (5, 72, 40)
    assert read_value(found["scheme"]) == Scheme(NVFP4(), NVFP4())
    assert found["problem"] is None
    assert "cannot be read" in found["why_no_problem"]


def test_checking_reads_every_layer(moesaic, tmp_path):
    layers, directory = written(named("deepseek-v3"), tmp_path)
    found = moesaic("checkpoint", str(directory), "--check", "--json")
    assert found.document["checked_bytes"] == sum(weights.num_bytes for weights in layers.values())
    assert found.err == ""
    name = "model.layers.3.mlp.experts.4.down_proj.weight_scale_inv"
    edit(directory, lambda tensors: tensors[name].zero_() if name in tensors else None)
    assert moesaic("checkpoint", str(directory)).code == 0
    moesaic("checkpoint", str(directory), "--check").assert_bad_input(name, "is 0.0")


def test_bad_input(moesaic, tmp_path, dense_model):
    moesaic("checkpoint", str(tmp_path / "none")).assert_bad_input("not a directory")
    moesaic("checkpoint", str(dense_model)).assert_bad_input("named as experts")
    _, directory = written(named("bf16"), tmp_path)
    moesaic("checkpoint", str(directory), "--layer", "0").assert_bad_input("no experts in layer 0", "2 to 3")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "hqq"}}))
    moesaic("checkpoint", str(directory)).assert_bad_input("'hqq'", "compressed-tensors")
