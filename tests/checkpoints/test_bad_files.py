"""Directories that are not complete checkpoints, layers that are not there, and what is left after an error."""

import gc
import json
import re

import pytest
import torch
from safetensors.torch import save_file

from moesaic import FP8, ExpertWeights, PerBlock, PerGroup
from moesaic.checkpoints import AWQ, GPTQ, Checkpoint, FineGrainedFP8, Stacked, Unquantized, read_experts, write_experts
from moesaic.errors import CheckpointError
from tests.checkpoints.editing import configure, edit
from tests.checkpoints.examples import named, weights_of, written

SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def directory(tmp_path):
    return written(named("deepseek-v3"), tmp_path)[1]


def refused(call, *words):
    with pytest.raises(CheckpointError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("kept", [0, 5, 300, -7])
def test_a_truncated_file_is_named(directory, kept):
    path = directory / SHARD
    path.write_bytes(path.read_bytes()[:kept])
    refused(lambda: read_experts(directory, 3), SHARD, "cannot be read", "fetch or write it again")
    read_experts(directory, 2)  # the other file is whole


def test_a_file_that_is_no_safetensors_is_named(directory):
    (directory / SHARD).write_bytes(b"PK\x03\x04" + b"\0" * 5000)
    refused(lambda: read_experts(directory, 3), SHARD, "cannot be read")


def test_a_missing_file_is_named(directory):
    (directory / SHARD).unlink()
    refused(lambda: read_experts(directory, 3), SHARD, "cannot be read")


def test_an_index_that_names_the_wrong_file_is_named(directory):
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = "model.layers.3.mlp.experts.0.gate_proj.weight"
    index["weight_map"][name] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    refused(lambda: read_experts(directory, 3), "model-00001-of-00002.safetensors", name, "index.json says so")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../b.safetensors"}}', '{"weight_map": {"a": 1}}']
)
def test_a_broken_index_is_named(directory, text):
    (directory / "model.safetensors.index.json").write_text(text)
    refused(lambda: Checkpoint(directory), "model.safetensors.index.json")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"quantization_config": "fp8"}'])
def test_a_broken_configuration_is_named(directory, text):
    (directory / "config.json").write_text(text)
    refused(lambda: Checkpoint(directory), "config.json")


def test_a_directory_without_configuration_or_weights_is_named(directory, tmp_path):
    refused(lambda: Checkpoint(tmp_path / "nowhere"), "nowhere", "not a directory")
    refused(lambda: Checkpoint(tmp_path), "config.json cannot be read")
    for path in directory.glob("model*"):
        path.unlink()
    refused(lambda: Checkpoint(directory), "no *.safetensors")


def test_files_without_an_index_are_listed_and_may_not_repeat_a_tensor(directory):
    (directory / "model.safetensors.index.json").unlink()
    assert [layer.number for layer in Checkpoint(directory).layers] == [2, 3]
    (directory / "copy.safetensors").write_bytes((directory / SHARD).read_bytes())
    refused(lambda: Checkpoint(directory), "copy.safetensors", SHARD, "remove one")


def test_a_model_without_experts_is_no_moe_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    names = ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.shared_experts.up_proj.weight")
    save_file({name: torch.zeros(2, 2) for name in names}, tmp_path / "model.safetensors")
    refused(lambda: Checkpoint(tmp_path), "named as experts", "Naming")


def test_a_layer_without_experts_is_refused_with_those_that_have_them(directory):
    refused(lambda: read_experts(directory, 0), "no experts in layer 0", "2 to 3")
    refused(lambda: read_experts(directory, "model.layers.0.mlp.experts"), "model.layers.0", "2 to 3")


@pytest.mark.parametrize("experts", [[], [5], [-1], range(3, 7), [0, 99]])
def test_experts_that_are_not_there_are_refused(directory, experts):
    refused(lambda: read_experts(directory, 3, experts=experts), "experts is", "0 to 4")


def test_stacked_tensors_of_which_one_is_missing_are_named(tmp_path):
    directory = written(named("gpt-oss"), tmp_path)[1]

    def remove(what):
        return lambda tensors: [tensors.pop(name) for name in [*tensors] if re.search(what, name)]

    edit(directory, remove(r"3.*gate_up_proj_scales"))
    refused(lambda: read_experts(directory, 3), "layers.3.mlp.experts.gate_up_proj_scales")
    edit(directory, remove(r"3.*down"))
    refused(lambda: read_experts(directory, 3), "no model.layers.3.mlp.experts.down_proj")
    edit(directory, remove(r"2.*down_proj_bias"))
    refused(lambda: read_experts(directory, 2), "bias in one projection only")


FUSED = Stacked("experts", ("gate_up_proj",), "down_proj", separator="_", bare=True)


@pytest.mark.parametrize("inner", [128, 192, 100])
def test_a_block_that_gate_and_up_share_is_refused(inner, tmp_path):
    """One tensor `[2I, H]` with blocks of its own: 192 has three, and of 100 the first reaches from gate into up."""
    config = {"model_type": "some", "quantization_config": FineGrainedFP8().to_config()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, shape in (("gate_up_proj", (2 * inner, 64)), ("down_proj", (64, inner))):
        stored = FP8(PerBlock()).quantize(torch.randn(2, *shape))
        block = f"model.layers.0.mlp.experts.{name}"
        tensors |= {block: stored.data, f"{block}_scale_inv": stored.scales["scale"]}
    save_file(tensors, tmp_path / "model.safetensors")
    if inner % 128 == 0:
        assert read_experts(tmp_path, 0).gate_up.parts == 2
    else:
        refused(lambda: read_experts(tmp_path, 0), "gate_up_proj", "boundary of gate and up")


def test_biases_of_an_unknown_family_are_not_guessed(tmp_path):
    directory = written(named("gpt-oss"), tmp_path)[1]
    configure(directory, model_type="like_gpt_oss")
    refused(lambda: read_experts(directory, 3), "gate_up_proj_bias", "is there", "gate and up alternate", "namings")


def test_nothing_is_kept_after_an_error(directory):
    edit(directory, lambda tensors: tensors.pop("model.layers.3.mlp.experts.4.down_proj.weight_scale_inv", None))
    with pytest.raises(CheckpointError):
        read_experts(directory, 3)
    gc.collect()
    assert not [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and tuple(o.shape[-2:]) == (192, 136)]


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    weights = weights_of(named("awq"))
    for method, target in ((GPTQ(32, symmetric=False), "gptq"), (AWQ(64), "awq"), (FineGrainedFP8(), "fp8")):
        with pytest.raises(CheckpointError):
            write_experts(tmp_path / target, {0: weights, 1: weights}, method)
    assert not [*tmp_path.iterdir()]


def test_a_directory_that_is_there_is_not_written_over(directory):
    refused(lambda: write_experts(directory, {0: weights_of(named("bf16"))}, Unquantized()), "is there already")


def test_weights_that_a_convention_does_not_hold_are_refused(tmp_path):
    plain = ExpertWeights.plain(torch.randn(2, 24, 20), torch.randn(2, 20, 12))
    from moesaic import INT4  # noqa: PLC0415

    refused(
        lambda: write_experts(tmp_path / "a", {0: plain.quantize(INT4(PerGroup(4), zero_point=True))}, AWQ(4)),
        "12 rows",
        "eight",
    )
    refused(
        lambda: write_experts(tmp_path / "b", {0: plain.quantize(FP8(PerBlock()))}, AWQ(4)), "stored as FP8", "INT4"
    )
