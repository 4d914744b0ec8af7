"""Every convention written and read, against what was written and against numpy's reading of the bytes."""

import dataclasses

import numpy as np
import pytest
import torch

from moesaic import NVFP4, Quantized
from moesaic.checkpoints import Checkpoint, read_experts
from tests.checkpoints import raw
from tests.checkpoints.examples import CASES, LAYERS, L, named, raw_matrix, written

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Layers and directory of a case, written once."""
    done = {}

    def find(case):
        if case.name not in done:
            done[case.name] = written(case, tmp_path_factory.mktemp("case"))
        return done[case.name]

    return find


def tensors(weights):
    """Name -> bytes of every tensor, as integers that compare bit by bit."""
    found = {"bias": weights.gate_up_bias, "down_bias": weights.down_bias}
    for name in ("gate_up", "down"):
        stored = getattr(weights, name)
        found |= {f"{name}.data": stored.data, **{f"{name}.{k}": v for k, v in stored.scales.items()}}
    return {name: t.contiguous().view(torch.uint8) for name, t in found.items() if t is not None}


def assert_same(got, wanted, ulps=0):
    assert got.gate_up.format == wanted.gate_up.format
    assert got.down.format == wanted.down.format
    assert got.gate_up.parts == wanted.gate_up.parts
    found, needed = tensors(got), tensors(wanted)
    assert found.keys() == needed.keys()
    for name, values in needed.items():
        if ulps and "global" in name:
            difference = found[name].view(torch.int32) - values.view(torch.int32)
            assert difference.abs().max() <= ulps
        else:
            assert torch.equal(found[name], values), name


def divides(case):
    """One bit of a global scale that is a reciprocal of a reciprocal."""
    return 1 if case.name == "ct-nvfp4" else 0


@each_case
def test_what_is_written_is_read_bit_for_bit(case, stored):
    layers, directory = stored(case)
    for number, weights in layers.items():
        assert_same(read_experts(directory, number), weights, divides(case))


@each_case
def test_one_ranks_experts_are_those_of_the_whole_in_the_order_asked_for(case, stored):
    layers, directory = stored(case)
    whole = layers[3]
    for chosen in (range(3, 5), [4, 0]):
        picked = [
            Quantized(s.format, s.data[[*chosen]], {k: v[[*chosen]] for k, v in s.scales.items()}, s.parts)
            for s in (whole.gate_up, whole.down)
        ]
        biases = [b if b is None else b[[*chosen]] for b in (whole.gate_up_bias, whole.down_bias)]
        wanted = dataclasses.replace(
            whole, gate_up=picked[0], down=picked[1], gate_up_bias=biases[0], down_bias=biases[1]
        )
        assert_same(read_experts(directory, 3, experts=chosen), wanted, divides(case))


@each_case
def test_the_values_are_those_of_numpys_reading(case, stored):
    _, directory = stored(case)
    found = raw.tensors(directory)
    for number in LAYERS:
        weights = read_experts(directory, number)
        first, down = (s.dequantize(torch.float64).numpy() for s in (weights.gate_up, weights.down))
        parts = first.shape[1] // case.inner
        for expert in range(L):
            split = dict(zip(("gate", "up")[-parts:], np.split(first[expert], parts), strict=True))
            for projection, got in {**split, "down": down[expert]}.items():
                wanted = raw_matrix(case, found, number, expert, projection)
                # A reciprocal of the global scale is rounded to float32 once.
                tolerance = 2.0**-24 if isinstance(case.stored, NVFP4) and divides(case) else 0
                assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max(), (expert, projection)
                assert np.abs(wanted).max() > 0


@each_case
def test_a_configuration_describes_the_method_that_wrote_it(case, stored):
    _, directory = stored(case)
    found = Checkpoint(directory).method
    if isinstance(found, type(case.method)) and "scale_name" in {f.name for f in dataclasses.fields(found)}:
        found = dataclasses.replace(found, scale_name=case.method.scale_name)  # names of scales are in the files only
    assert found == case.method


def test_biases_are_read_gates_above_ups(stored):
    layers, directory = stored(named("gpt-oss"))
    bias = raw.tensors(directory)["model.layers.2.mlp.experts.gate_up_proj_bias"][1]
    got = read_experts(directory, 2).gate_up_bias.double().numpy()
    assert np.array_equal(got, np.concatenate([bias[:, 0::2], bias[:, 1::2]], axis=1))
    assert layers[2].down_bias.dtype == torch.bfloat16
