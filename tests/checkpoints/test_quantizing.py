"""quantize_checkpoint: what is written is what the formats make of the plain weights, all else is as it was, and an
error or an interruption leaves nothing."""

import json
import os
import stat

import pytest
import torch
from safetensors.torch import load_file

from moesaic import NVFP4
from moesaic.checkpoints import RECIPES, Checkpoint, quantize_checkpoint, read_experts, recipe_named
from moesaic.errors import CheckpointError
from tests.checkpoints.editing import configure, edit
from tests.checkpoints.examples import named, written
from tests.integrations.families import tiny

FAMILIES = {
    "qwen3_moe": {"hidden_size": 64, "moe_intermediate_size": 32},
    "gpt_oss": {"hidden_size": 64, "intermediate_size": 32},
    "nemotron_h": {},
    "granitemoe": {},
}


@pytest.fixture(scope="module", params=FAMILIES)
def plain(request, tmp_path_factory):
    """A whole model of transformers, with a tokenizer's file and a directory beside it."""
    directory = tmp_path_factory.mktemp(request.param) / "plain"
    tiny(request.param, **FAMILIES[request.param]).to(torch.bfloat16).save_pretrained(directory)
    (directory / "tokenizer.model").write_bytes(b"\0\1\2")
    (directory / "original").mkdir()
    (directory / "original" / "params.json").write_text("{}")
    return directory


def tensors_of(directory):
    return {name: tensor for path in directory.glob("*.safetensors") for name, tensor in load_file(path).items()}


def same(a, b):
    return len(a.tensors) == len(b.tensors) and all(map(same_bits, a.tensors, b.tensors))


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_experts_are_those_that_the_format_makes_and_all_else_is_as_it_was(recipe, plain, tmp_path):
    source, out = Checkpoint(plain), tmp_path / "new" / "quantized"
    if recipe.name == "mxfp4-gpt-oss" and plain.parent.name[:7] != "gpt_oss":
        with pytest.raises(CheckpointError, match="gpt-oss's own form"):
            quantize_checkpoint(source, out, recipe)
        return
    steps = []
    found = quantize_checkpoint(source, out, recipe, progress=lambda done, total: steps.append((done, total)))
    experts = sum(source.num_experts(layer.name) for layer in source.layers)
    assert steps == [(n, experts) for n in range(1, experts + 1)]
    assert len(found.layers) == len(source.layers)
    owned = set()
    for before, after in zip(source.layers, found.layers, strict=True):
        wanted = source.read(before.name).quantize(recipe.weights)
        got = read_experts(out, after.name)
        if recipe.name == "nvfp4":  # whose global scale is kept as its reciprocal
            wanted.gate_up.scales["global_scale"].copy_(got.gate_up.scales["global_scale"])
            wanted.down.scales["global_scale"].copy_(got.down.scales["global_scale"])
        assert same(got, wanted)
        owned |= {name for name in tensors_of(plain) if name.startswith(f"{before.name}.")}
    old, new = tensors_of(plain), tensors_of(out)
    assert owned
    assert all(same_bits(old[name], new[name]) for name in old.keys() - owned)
    assert new.keys() - old.keys() == {n for n in new if ".experts." in n and n not in old}
    config = json.loads((out / "config.json").read_text())
    said = config.pop("quantization_config")
    assert config == json.loads((plain / "config.json").read_text())
    listed = str(said.get("ignore") or said.get("modules_to_not_convert") or said.get("dynamic"))
    assert "lm_head" in listed or "embed_tokens" in listed
    assert ".experts." not in listed.replace("\\", "")
    assert (out / "tokenizer.model").read_bytes() == b"\0\1\2"
    assert (out / "original" / "params.json").exists()
    assert {path.name for path in out.parent.iterdir()} == {"quantized"}
    readable = {stat.S_IMODE(path.stat().st_mode) & 0o044 for path in out.glob("*")}
    assert len(readable) == 1, "tensors may be read by whom the rest may be"


@pytest.fixture
def source(tmp_path):
    return written(named("bf16"), tmp_path)[1]


def stop(done, total):
    if done == 7:
        raise KeyboardInterrupt


def nothing_but(*paths):
    parent = paths[0].parent
    return {path.name for path in parent.iterdir()} == {path.name for path in paths}


@pytest.mark.parametrize("force", [False, True])
def test_an_interruption_leaves_what_was_there(force, source, tmp_path):
    out = tmp_path / "out"
    if force:
        quantize_checkpoint(Checkpoint(source), out, recipe_named("mxfp8"))
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(Checkpoint(source), out, recipe_named("nvfp4"), replace=force, progress=stop)
    assert nothing_but(*([source, out] if force else [source]))
    if force:
        assert read_experts(out, 2).gate_up.format == recipe_named("mxfp8").weights


def test_a_directory_is_replaced_only_if_asked_for_and_only_a_checkpoint(source, tmp_path):
    out = tmp_path / "out"
    quantize_checkpoint(Checkpoint(source), out, recipe_named("mxfp8"))
    with pytest.raises(CheckpointError, match="--force"):
        quantize_checkpoint(Checkpoint(source), out, recipe_named("nvfp4"))
    quantize_checkpoint(Checkpoint(source), out, recipe_named("nvfp4"), replace=True)
    assert read_experts(out, 3).gate_up.format == NVFP4()
    assert nothing_but(source, out)
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter1.tex").write_text("x")
    with pytest.raises(CheckpointError, match="something else"):
        quantize_checkpoint(Checkpoint(source), other, recipe_named("nvfp4"), replace=True)
    assert (other / "chapter1.tex").exists()


def test_a_rename_that_fails_puts_the_old_directory_back(source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    quantize_checkpoint(Checkpoint(source), out, recipe_named("mxfp8"))
    rename = os.replace

    def refused(a, b):
        if str(a).endswith("unfinished"):
            raise PermissionError(13, "Permission denied", str(b))
        return rename(a, b)

    monkeypatch.setattr("moesaic.checkpoints.appearing.os.replace", refused)
    with pytest.raises(PermissionError):
        quantize_checkpoint(Checkpoint(source), out, recipe_named("nvfp4"), replace=True)
    assert read_experts(out, 2).gate_up.format == recipe_named("mxfp8").weights
    assert nothing_but(source, out)


def test_a_number_that_cannot_be_stored_is_named_with_layer_and_expert(source, tmp_path):
    name = "model.layers.3.mlp.experts.4.down_proj.weight"
    edit(source, lambda tensors: tensors[name][5].fill_(float("nan")) if name in tensors else None)
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.mlp\.experts, expert 4: down\[0, 5, 0\] is nan"):
        quantize_checkpoint(Checkpoint(source), tmp_path / "out", recipe_named("int4-g32"))
    assert nothing_but(source)


def test_quantized_checkpoints_and_places_inside_each_other_are_refused(source, tmp_path):
    quantize_checkpoint(Checkpoint(source), tmp_path / "once", recipe_named("int4-g32"))
    with pytest.raises(CheckpointError, match=r"quantized already \(CompressedTensors\): give"):
        quantize_checkpoint(Checkpoint(tmp_path / "once"), tmp_path / "twice", recipe_named("int4-g32"))
    for inside in (source / "deeper", source.parent / "." / source.name, source.parent):
        with pytest.raises(CheckpointError, match=r"within each other|there already|something else"):
            quantize_checkpoint(Checkpoint(source), inside, recipe_named("mxfp4"), replace=True)
    with pytest.raises(CheckpointError, match=r"fp8-block, .*nvfp4-modelopt"):
        recipe_named("fp3")


def test_a_model_whose_configuration_is_nested_stays_so(source, tmp_path):
    configure(source, text_config={"num_experts": 5})
    found = quantize_checkpoint(Checkpoint(source), tmp_path / "out", recipe_named("fp8-channel"))
    assert found.config["text_config"] == {"num_experts": 5}
