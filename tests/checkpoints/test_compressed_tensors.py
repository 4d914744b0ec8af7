"""compressed-tensors' own writer, read by us; and ours, read by its own decompression."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from moesaic import NVFP4
from moesaic.checkpoints import Checkpoint, read_experts
from tests.checkpoints.examples import named, written
from tests.quant.examples import values

pytest.importorskip("compressed_tensors")

from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

E, H, INNER = 3, 256, 128  # whole groups and blocks: its compressors pad or refuse others
PRESETS = (
    "W4A16",
    "W4A16_ASYM",
    "W4AFP8",
    "W4A8",
    "W8A16",
    "INT8",
    "FP8",
    "FP8_DYNAMIC",
    "FP8_BLOCK",
    "MXFP4",
    "MXFP4A16",
    "MXFP8",
    "NVFP4",
    "NVFP4A16",
)


def tile(weight, arguments):
    """The weight as `[grid rows, rows, grid columns, columns]`."""
    n, k = weight.shape
    sides = {
        "tensor": (n, k),
        "channel": (1, k),
        "block": tuple(arguments.block_structure or ()),
        "group": (1, arguments.group_size),
        "tensor_group": (1, arguments.group_size),
    }[arguments.strategy]
    return weight.reshape(n // sides[0], sides[0], k // sides[1], sides[1])


def compressed(weight, scheme):
    """The tensors of one linear layer as compressed-tensors writes them, and what it reads back in float32."""
    arguments = scheme.weights
    tiles = tile(weight, arguments)
    state = {"weight": weight}
    if arguments.strategy == "tensor_group":
        state["weight_global_scale"] = generate_gparam(weight.amin().reshape(1), weight.amax().reshape(1))
    least, largest = tiles.amin((1, 3)), tiles.amax((1, 3))
    scale, zero = calculate_qparams(least, largest, arguments, state.get("weight_global_scale"))
    one = arguments.strategy == "tensor"
    state |= {"weight_scale": scale.reshape(1) if one else scale, "weight_zero_point": zero.reshape(1) if one else zero}
    compressor = BaseCompressor.get_value_from_registry(infer_module_format(torch.nn.Linear, scheme).value)
    tensors = compressor.compress(state, scheme)
    return tensors, compressor.decompress(tensors, scheme)["weight"].to(torch.float32)


def save(directory, preset, dtype):
    """A checkpoint of one layer that compressed-tensors wrote, and the values that it reads."""
    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme.format = infer_module_format(torch.nn.Linear, scheme)
    tensors, back = {}, {}
    for expert in range(E):
        for number, (name, shape) in enumerate(
            (("gate_proj", (INNER, H)), ("up_proj", (INNER, H)), ("down_proj", (H, INNER)))
        ):
            weight = values(*shape, seed=10 * expert + number, dtype=dtype)
            stem = f"model.layers.1.mlp.experts.{expert}.{name}"
            stored, back[expert, name] = compressed(weight, scheme)
            tensors |= {f"{stem}.{suffix}": tensor.contiguous() for suffix, tensor in stored.items()}
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format=scheme.format.value, quantization_status="compressed"
    )
    described = {"num_experts": E, "quantization_config": json.loads(config.model_dump_json())}
    (directory / "config.json").write_text(json.dumps(described))
    save_file(tensors, directory / "model.safetensors")
    return back


def assert_equal(theirs, ours, *, rounded):
    """Equal in float32; `rounded`: it reads NVFP4 in bfloat16 whatever it is asked for, and rounds twice there."""
    assert theirs.shape == ours.shape
    assert ours.abs().max() > 0
    assert ((theirs.float() - ours).abs() <= (2**-7 if rounded else 0) * ours.abs()).all()


@pytest.mark.parametrize("preset", PRESETS)
def test_what_compressed_tensors_writes_is_read_as_it_reads_it(preset, tmp_path):
    back = save(tmp_path, preset, torch.float32)
    weights = read_experts(tmp_path, 1)
    first, down = weights.gate_up.dequantize(torch.float32), weights.down.dequantize(torch.float32)
    for expert in range(E):
        gate, up = first[expert].chunk(2)
        for name, got in (("gate_proj", gate), ("up_proj", up), ("down_proj", down[expert])):
            assert_equal(back[expert, name], got, rounded="NVFP4" in preset)


@pytest.mark.parametrize("preset", PRESETS)
def test_bfloat16_scales_stay_as_they_are(preset, tmp_path):
    save(tmp_path, preset, torch.bfloat16)
    tensors = load_file(tmp_path / "model.safetensors")
    scale = read_experts(tmp_path, 1, experts=[2]).down.scales["scale"][0]
    kept = tensors["model.layers.1.mlp.experts.2.down_proj.weight_scale"]
    assert torch.equal(kept.view(torch.uint8).flatten(), scale.contiguous().view(torch.uint8).flatten())


@pytest.mark.parametrize("preset", PRESETS)
def test_its_schemes_are_understood(preset, tmp_path):
    save(tmp_path, preset, torch.bfloat16)
    scheme = preset_name_to_scheme(preset, ["Linear"])
    found = Checkpoint(tmp_path).scheme(1)
    assert (repr(found.inputs) == "Plain()") == (scheme.input_activations is None)
    assert repr(found.weights).startswith("INT") == (scheme.weights.type == "int")


OURS = (
    "ct-int4",
    "ct-int4-channel",
    "ct-int4-asymmetric",
    "ct-w4afp8",
    "ct-w8a16",
    "ct-fp8-tensor",
    "ct-fp8-channel",
    "ct-int8",
    "ct-mxfp8",
    "ct-mxfp4",
    "ct-nvfp4",
)


@pytest.mark.parametrize("name", OURS)
def test_what_we_write_compressed_tensors_reads_as_we_do(name, tmp_path):
    case = replace(named(name), hidden=96, inner=64)  # it refuses short groups
    layers, directory = written(case, tmp_path)
    config = QuantizationConfig(**json.loads((directory / "config.json").read_text())["quantization_config"])
    scheme = config.config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    tensors = {n: t for path in directory.glob("*.safetensors") for n, t in load_file(path).items()}
    down = layers[3].down.dequantize(torch.float32)
    for expert in range(len(down)):
        stem = f"{case.block.format(3)}.{expert}.{case.naming.down}."
        state = {n.removeprefix(stem): t for n, t in tensors.items() if n.startswith(stem)}
        if state["weight_scale"].dtype in {torch.bfloat16, torch.float16}:
            state["weight_scale"] = state["weight_scale"].float()  # else it computes in their dtype
        assert_equal(compressor.decompress(state, scheme)["weight"], down[expert], rounded=case.stored == NVFP4())
    assert ("weight_global_scale" in state) == (case.stored == NVFP4())
