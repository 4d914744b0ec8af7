"""Formats: any stored numbers mean what the definitions say, and any values are stored as near as those can be."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic import FP8, INT4, INT8, MXFP4, MXFP8, NVFP4, PerBlock, PerGroup, PerRow, PerTensor, Quantized
from tests.properties import stored
from tests.properties.drawing import seeds
from tests.unchecked import unchecked

BF16, FP16, E8M0, E4M3 = torch.bfloat16, torch.float16, torch.float8_e8m0fnu, torch.float8_e4m3fn
ALL = 10**6
granularities = st.one_of(
    st.just((PerTensor(), (ALL, ALL))),
    st.just((PerRow(), (1, ALL))),
    st.integers(1, 40).map(lambda c: (PerGroup(c), (1, c))),
    st.tuples(st.integers(2, 20), st.integers(1, 40)).map(lambda tile: (PerBlock(*tile), tile)),
)
in_rows = st.one_of(st.just((PerRow(), (1, ALL))), st.integers(1, 40).map(lambda c: (PerGroup(c), (1, c))))
floats = st.sampled_from([torch.float32, BF16, FP16])
shapes = st.tuples(st.integers(1, 37), st.integers(1, 70))


@st.composite
def kinds(draw):
    """(format, meaning of a code, tile); the meaning is None where a zero point takes part in it."""
    (wide, tile), (rows, row_tile), scale = draw(granularities), draw(in_rows), draw(floats)
    return draw(
        st.sampled_from(
            [
                (FP8(wide, scale=draw(st.sampled_from([scale, E8M0]))), stored.e4m3, tile),
                (INT8(wide, scale=scale), float, tile),
                (INT4(rows, scale=scale), lambda code: code - 8.0, row_tile),
                (INT4(rows, zero_point=True, scale=scale), None, row_tile),
                (MXFP8(), stored.e4m3, (1, 32)),
                (MXFP4(), stored.e2m1, (1, 32)),
                (NVFP4(), stored.e2m1, (1, 16)),
            ]
        )
    )


def any_numbers(needed, name, generator):
    """A tensor of that dtype and shape whose bits are any that a checkpoint may hold."""
    if name == "zero_point":
        return torch.tensor(generator.integers(16, size=needed.shape), dtype=torch.uint8)
    if needed.dtype in (torch.uint8, torch.int8):
        low = 0 if needed.dtype == torch.uint8 else -127
        return torch.tensor(generator.integers(low, low + 255, size=needed.shape)).to(needed.dtype)
    if needed.dtype in (E4M3, E8M0):
        top = 127 if name == "scale" and needed.dtype == E4M3 else 254
        return torch.tensor(generator.integers(top, size=needed.shape), dtype=torch.uint8).view(needed.dtype)
    return torch.tensor(2.0 ** generator.uniform(-12, 6, size=needed.shape)).to(needed.dtype)


def meant(kind, meaning, tile, tensors):
    """The values of one matrix by the definitions."""
    data, scales = tensors["data"], {name: t for name, t in tensors.items() if name != "data"}
    bits = data.view(torch.uint8) if data.dtype == E4M3 else data
    codes = [stored.nibbles(row) if isinstance(kind, INT4 | MXFP4 | NVFP4) else row for row in bits.tolist()]
    scale = scales["scale"]
    reads = {E4M3: stored.e4m3, E8M0: stored.e8m0}.get(scale.dtype)
    grid = [[reads(c) for c in row] for row in scale.view(torch.uint8).tolist()] if reads else scale.double().tolist()
    factor = scales["global_scale"].double().item() if "global_scale" in scales else 1.0
    zero = scales["zero_point"].tolist() if "zero_point" in scales else None

    def value(code, i, j):
        return meaning(code) if zero is None else float(code - zero[i][j])

    return stored.matrix(codes, value, tile, lambda i, j: grid[i][j] * factor)


@settings(max_examples=200)
@given(kinds(), shapes, seeds)
def test_any_stored_numbers_mean_what_the_definitions_say(drawn, shape, seed):
    (kind, meaning, tile), generator = drawn, np.random.default_rng(seed)
    packed = isinstance(kind, INT4 | MXFP4 | NVFP4)
    with unchecked():
        storage = kind.storage((shape[0], 2 * shape[1] if packed else shape[1]), torch.float32)
        tensors = {name: any_numbers(needed, name, generator) for name, needed in storage.items()}
        whole = Quantized(kind, tensors["data"], {n: t for n, t in tensors.items() if n != "data"})
        got = {dtype: whole.dequantize(dtype) for dtype in (torch.float64, torch.float32, BF16)}
    wanted = meant(kind, meaning, tile, tensors)
    np.testing.assert_array_equal(got[torch.float64].numpy(), wanted)
    with np.errstate(over="ignore", under="ignore"):
        assert torch.equal(got[torch.float32].nan_to_num(7.0), torch.tensor(wanted).float().nan_to_num(7.0))
    assert torch.equal(got[BF16].nan_to_num(7.0), got[torch.float32].to(BF16).nan_to_num(7.0))


@settings(max_examples=200)
@given(kinds(), shapes, seeds, st.integers(-6, 6))
def test_no_other_code_is_nearer(drawn, shape, seed, power):
    """Each value is stored as the nearest of all values that its scale can express, to the rounding of a quotient."""
    (kind, meaning, tile), generator = drawn, np.random.default_rng(seed)
    packed = isinstance(kind, INT4 | MXFP4 | NVFP4)
    shape = (shape[0], 2 * shape[1] if packed else shape[1])
    values = (generator.normal(size=shape) * 2.0**power).astype(np.float32)
    values[generator.random(shape) < 0.1] = 0
    with unchecked():
        got = kind.quantize(torch.tensor(values))
        back = got.dequantize(torch.float64).numpy()
    every = range(16) if packed else range(-127, 128) if isinstance(kind, INT8) else [c for c in range(255) if c != 127]
    ones = {"data": got.data, **got.scales}
    rows, columns = range(shape[0]), range(shape[1])
    step = meant_scale(ones)
    zero = ones.get("zero_point")
    for i in rows[:: max(1, shape[0] // 4)]:
        for j in columns[:: max(1, shape[1] // 8)]:
            at = (min(i // tile[0], step.shape[0] - 1), min(j // tile[1], step.shape[1] - 1))
            low = None if zero is None else int(zero[at])
            choices = [float(code - low) if low is not None else meaning(code) for code in every]
            nearest = min(abs(choice * step[at] - values[i, j]) for choice in choices)
            assert abs(back[i, j] - values[i, j]) <= nearest + 2**-22 * abs(values[i, j])


def meant_scale(tensors):
    """Every scale of a matrix as a float64 array, the global one multiplied in."""
    scale = tensors["scale"].double().numpy()
    return scale * tensors["global_scale"].double().item() if "global_scale" in tensors else scale


@settings(max_examples=200)
@given(kinds(), shapes, seeds)
def test_parts_and_experts_are_stored_apart(drawn, shape, seed):
    """Gate above up: each half has scales of its own, also where a tile would reach over their boundary."""
    (kind, *_), generator = drawn, np.random.default_rng(seed)
    packed = isinstance(kind, INT4 | MXFP4 | NVFP4)
    columns = 2 * shape[1] if packed else shape[1]
    values = generator.normal(size=(3, 2, shape[0], columns)) * np.array([1.0, 8.0, 0.1])[:, None, None, None]
    values[:, 1] *= 16
    with unchecked():
        joined = kind.quantize(torch.tensor(values, dtype=torch.float32)).join()
        got = joined.dequantize(torch.float32)
        for expert in range(3):
            halves = [kind.quantize(torch.tensor(half, dtype=torch.float32)) for half in values[expert]]
            wanted = torch.cat([half.dequantize(torch.float32) for half in halves])
            assert torch.equal(got[expert], wanted)
            assert torch.equal(joined.expert(expert).dequantize(torch.float32), wanted)
