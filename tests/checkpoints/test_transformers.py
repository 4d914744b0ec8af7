"""Checkpoints that transformers writes, read by us; and ours, read by transformers."""

import json
import warnings
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from moesaic import FP8, INT4, MXFP4, PerGroup, PerRow, Plain, Scheme
from moesaic.checkpoints import (
    Checkpoint,
    CompressedTensors,
    GptOssMXFP4,
    quantize_checkpoint,
    read_experts,
    recipe_named,
)
from moesaic.checkpoints.naming import GPT_OSS, PROJ
from moesaic.checkpoints.writing import layer_tensors
from moesaic.integrations.transformers.discovery import find_layers
from moesaic.integrations.transformers.examine import declared_storage, parameters
from tests.checkpoints.examples import named, written
from tests.integrations.families import HERE, OUTSIDE_HERE, tiny

transformers = pytest.importorskip("transformers")

UNSAVED = {
    "inkling2": "save_pretrained fails for a vocabulary that is not padded",
    "inkling2_loop": "save_pretrained fails for a vocabulary that is not padded",
}
"""Families that transformers itself does not write."""

NAMED_OTHERWISE = {"nllb_moe", "switch_transformers"}
"""Encoder-decoder families of 2022, whose names nobody serves."""


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.mark.parametrize("family", [family for family in HERE if family not in UNSAVED])
def test_the_experts_of_every_family_are_read_as_transformers_has_them(family, tmp_path):
    model = tiny(family)
    model.save_pretrained(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    modules = [layer.module for layer in find_layers(model)]
    assert len(checkpoint.layers) == len(modules) > 0
    for layer, module in zip(checkpoint.layers, modules, strict=True):
        wanted = declared_storage(module).canonical(parameters(module))
        got = checkpoint.read(layer.name)
        assert isinstance(got.gate_up.format, Plain)
        assert len(got.tensors) == len(wanted.tensors)
        for found, needed in zip(got.tensors, wanted.tensors, strict=True):
            assert torch.equal(found, needed.detach()), layer.name


def outside_weights(family, module):
    """gate_up `[E, 2I, H]` and down `[E, H, I]` of families that are not behind the interface."""
    tensors = parameters(module)
    if family == "dbrx":
        gate, up, down = (tensors[f"mlp.{name}"].unflatten(0, (4, -1)) for name in ("w1", "v1", "w2"))
        return torch.cat([gate, up], dim=1), down.mT
    if family == "jetmoe":
        return tensors["input_linear.weight"], tensors["output_linear.weight"]
    first, down = tensors["experts.gate_up_proj"], tensors["experts.down_proj"]
    return (first.mT, down.mT) if family == "llama4" else (first[: len(down)], down)


@pytest.mark.parametrize("family", [family for family in OUTSIDE_HERE if family not in NAMED_OTHERWISE])
def test_the_experts_of_families_outside_the_interface_are_read_too(family, tmp_path):
    model = tiny(family)
    model.save_pretrained(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    modules = [m.module for m in find_layers(model) if "self_attention" not in m.name]  # JetMoE's attention has experts
    assert len(checkpoint.layers) == len(modules) > 0
    for layer, module in zip(checkpoint.layers, modules, strict=True):
        got = checkpoint.read(layer.name)
        for found, needed in zip((got.gate_up.data, got.down.data), outside_weights(family, module), strict=True):
            assert torch.equal(found, needed.detach()), layer.name


def quantized_model(family, stored, method, naming, directory, **config):
    """A tiny model of transformers on disk, its experts replaced by quantized ones: those by layer."""
    model = tiny(family, **config).to(torch.bfloat16)
    model.save_pretrained(directory)
    (path,) = directory.glob("*.safetensors")
    tensors, layers = load_file(path), {}
    for layer in Checkpoint(directory).layers:
        layers[layer.name] = Checkpoint(directory).read(layer.name).quantize(stored)
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{layer.name}.")}
        tensors |= layer_tensors(layer.name, layers[layer.name], method, naming)
    save_file(tensors, path, metadata={"format": "pt"})
    described = json.loads((directory / "config.json").read_text())
    ignored = sorted({n.rpartition(".")[0] for n, t in tensors.items() if t.ndim == 2 and ".experts." not in n})
    quantization = method.to_config() | {"ignore": ignored, "modules_to_not_convert": ignored, "dequantize": True}
    (directory / "config.json").write_text(json.dumps({**described, "quantization_config": quantization}))
    return layers


def ct(weights):
    return CompressedTensors.of_scheme(Scheme(weights, Plain()))


LOADED = {
    "gpt_oss mxfp4": (MXFP4(), GptOssMXFP4(), GPT_OSS, {"hidden_size": 64, "intermediate_size": 96}),
    "qwen3_moe int4": (
        INT4(PerGroup(32), scale=torch.bfloat16),
        ct(INT4(PerGroup(32))),
        PROJ,
        {"hidden_size": 64, "moe_intermediate_size": 32},
    ),
    "qwen3_moe fp8_dynamic": (FP8(PerRow(), scale=torch.bfloat16), ct(FP8(PerRow())), PROJ, {}),
    "qwen3_moe mxfp4": (MXFP4(), ct(MXFP4()), PROJ, {"hidden_size": 64, "moe_intermediate_size": 32}),
}
"""What transformers reads rightly itself. It loads NVFP4 experts of compressed-tensors wrong by the global scale, and
does not load FP8_BLOCK and W4A16_ASYM ones."""


@pytest.mark.parametrize("name", LOADED)
def test_what_we_write_transformers_loads_as_we_do(name, tmp_path):
    stored, method, naming, config = LOADED[name]
    layers = quantized_model(name.partition(" ")[0], stored, method, naming, tmp_path, **config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    modules = {layer.name: layer.module for layer in find_layers(model)}
    assert modules.keys() == layers.keys()
    for block, module in modules.items():
        loaded = declared_storage(module).canonical(parameters(module))
        ours = read_experts(tmp_path, block).dequantize(torch.bfloat16)
        for found, needed in zip(loaded.tensors, ours.tensors, strict=True):
            assert torch.equal(found, needed), block


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-fp8", "minimax-m2", "deepseek-v4-fp8", "deepseek-v4-fp4"])
def test_transformers_formula_for_fine_grained_fp8_gives_our_values(name, tmp_path):
    """Its loader of the whole model needs accelerate; this is the operation that it applies to every weight."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize  # noqa: PLC0415

    case = named(name)
    case = replace(case, hidden=256, inner=128) if "v4-fp4" not in name else replace(case, hidden=64, inner=32)
    case = replace(case, hidden=240, inner=48) if name == "minimax-m2" else case  # whole blocks: it refuses short ones
    _, directory = written(case, tmp_path)
    tensors = {n: t for path in directory.glob("*.safetensors") for n, t in load_file(path).items()}
    scale = "scale" if "v4" in name else "weight_scale_inv"
    got = read_experts(directory, 2).down.dequantize(torch.float32)
    for expert in range(5):
        stem = f"{case.block.format(2)}.{expert}.{case.naming.down}"
        found = Fp8Dequantize(None)._dequantize_one(
            tensors[f"{stem}.weight"], tensors[f"{stem}.{scale}"], torch.float32
        )
        assert torch.equal(found, got[expert])


def test_inklings_interleaved_rows_are_those_that_transformers_separates(tmp_path):
    from transformers.core_model_loading import Interleave  # noqa: PLC0415

    _, directory = written(named("inkling2"), tmp_path)
    stem = "model.llm.layers.3.mlp.experts.w13_weight"
    tensors = {n: t for path in directory.glob("*.safetensors") for n, t in load_file(path).items()}
    got = read_experts(directory, 3).gate_up
    for name, ours in ((stem, got.data), (f"{stem}_scale", got.scales["scale"])):
        theirs = Interleave(dim=1).convert({name: tensors[name].view(torch.uint8)}, [name], [name])[name]
        assert torch.equal(theirs, ours.view(torch.uint8))


QUANTIZED = {"mxfp4-gpt-oss": "gpt_oss", "int4-g32": "qwen3_moe", "fp8-channel": "qwen3_moe", "mxfp4": "qwen3_moe"}
"""Recipes that transformers reads rightly itself, and a family to try each on."""


@pytest.mark.parametrize("recipe", QUANTIZED)
def test_a_model_that_was_quantized_is_loaded_by_transformers_with_everything_else_plain(recipe, tmp_path):
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 96}
    tiny(QUANTIZED[recipe], **sizes).to(torch.bfloat16).save_pretrained(tmp_path / "plain")
    quantize_checkpoint(Checkpoint(tmp_path / "plain"), tmp_path / "new", recipe_named(recipe))
    config = json.loads((tmp_path / "new/config.json").read_text())
    config["quantization_config"]["dequantize"] = True  # without a GPU
    (tmp_path / "new/config.json").write_text(json.dumps(config))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load = transformers.AutoModelForCausalLM.from_pretrained
        model, loaded = (load(tmp_path / name, dtype=torch.bfloat16) for name in ("plain", "new"))
    for layer in find_layers(model):
        tensors = parameters(layer.module)
        storage = declared_storage(layer.module)
        wanted = read_experts(tmp_path / "new", layer.name).dequantize(torch.bfloat16)
        found = storage.canonical(parameters(loaded.get_submodule(layer.name)))
        assert all(map(torch.equal, found.tensors, wanted.tensors)), layer.name
        for name, value in storage.stored(wanted).items():
            tensors[name].data.copy_(value)
    ids = torch.arange(12).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
