"""Every format bit for bit against the oracle: codes, scales, and the values read back."""

import numpy as np
import pytest
import torch

from tests.quant import oracle
from tests.quant.examples import EIGHT_BITS, FORMATS, FOUR_BITS, RULES, rule_of, values

SHAPES = [(5, 256), (130, 160), (3, 2), (1, 64), (33, 80)]
"""Multiples of the tiles, and matrices whose last tile is short in one direction or both."""

each_format = pytest.mark.parametrize("stored", FORMATS, ids=repr)


def raw(tensor):
    """The bits of a float8 tensor as uint8, since numpy has no such dtype; others as they are."""
    return (tensor.view(torch.uint8) if tensor.element_size() == 1 and tensor.is_floating_point() else tensor).numpy()


def same_bits(a, b):
    """Whether two tensors agree in dtype, shape and every bit; `torch.equal` does not know float8."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return (
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))
    )


def in_four_bits(stored):
    return stored in FOUR_BITS


def assert_stored_as_the_oracle_does(got, matrix):
    rule = rule_of(got.format)
    codes, scales, back = oracle.matrix(matrix.float().numpy(), rule)
    assert np.array_equal(raw(got.data), oracle.packed(codes) if in_four_bits(got.format) else codes)
    assert set(scales) == set(got.format.scale_names)
    for name, wanted in scales.items():
        assert np.array_equal(got.scales[name].double().numpy(), wanted), name
    assert np.array_equal(got.dequantize(torch.float64).numpy(), back)
    with np.errstate(over="ignore"):
        assert np.array_equal(got.dequantize(torch.float32).numpy(), back.astype(np.float32))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_format
def test_codes_scales_and_values_are_those_of_the_oracle(stored, shape):
    matrix = values(*shape, seed=sum(shape))
    assert_stored_as_the_oracle_does(stored.quantize(matrix), matrix)


@pytest.mark.parametrize("sigma", [1e-36, 1e-6, 1.0, 3e3, 1e30])
@each_format
def test_numbers_of_every_size(stored, sigma):
    if getattr(stored, "scale", None) == torch.float16 and sigma > 1e6:
        pytest.skip("refused: see test_refusals.py")
    matrix = values(4, 64, sigma=sigma)
    assert_stored_as_the_oracle_does(stored.quantize(matrix), matrix)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@each_format
def test_inputs_of_every_dtype(stored, dtype):
    matrix = values(6, 96, dtype=dtype)
    assert_stored_as_the_oracle_does(stored.quantize(matrix), matrix)


@pytest.mark.parametrize("stored", EIGHT_BITS, ids=repr)
def test_odd_columns_in_eight_bits(stored):
    matrix = values(7, 65)
    assert_stored_as_the_oracle_does(stored.quantize(matrix), matrix)


@pytest.mark.parametrize(("stored", "rule"), RULES, ids=repr)
def test_ties_go_to_even(stored, rule):
    steps = np.arange(-32, 33)[:64] / 4  # with a scale that is a power of two every tie of a 4-bit format is met
    top = {"fp8": 448, "int8": 127, "int4": 7.5, "mxfp4": 6, "nvfp4": 6}[rule["kind"]]
    matrix = torch.tensor(np.stack([np.clip(steps, -top, top)] * 2), dtype=torch.float32)
    matrix[:, 0::32] = top
    assert_stored_as_the_oracle_does(stored.quantize(matrix), matrix)


@each_format
def test_stacked_matrices_are_stored_as_each_alone(stored):
    stack = values(2, 3, 20, 160) * torch.tensor([1.0, 3.0, 0.1]).view(3, 1, 1)
    whole = stored.quantize(stack)
    for i in range(2):
        for j in range(3):
            alone, inside = stored.quantize(stack[i, j]), whole.expert(i).expert(j)
            for got, wanted in zip(inside.tensors, alone.tensors, strict=True):
                assert same_bits(got, wanted)
                assert got.data_ptr() != wanted.data_ptr()
            assert torch.equal(inside.dequantize(torch.float32), whole.dequantize(torch.float32)[i, j])
            assert inside.data.data_ptr() == whole.data[i, j].data_ptr(), "a copy"


@each_format
def test_zeros_are_read_back_as_zeros_with_scales_above_zero(stored):
    matrix = torch.zeros(3, 40, 256)
    matrix[1] = values(40, 256)
    matrix[1, :16, :128] = 0
    got = stored.quantize(matrix)
    back = got.dequantize(torch.float32)
    assert bool(back.isfinite().all())
    assert not bool(back[[0, 2]].any())
    assert not bool(back[1, :16, :128].any())
    scales = [got.scales[name].float() for name in got.format.scale_names if name != "zero_point"]
    assert all(bool((scale > 0).all()) and bool((scale[[0, 2]] == 1).all()) for scale in scales)


@each_format
def test_two_runs_agree_and_the_values_are_left_alone(stored):
    matrix = values(40, 192)
    before = matrix.clone()
    first, second = stored.quantize(matrix), stored.quantize(matrix)
    assert torch.equal(matrix, before)
    assert all(same_bits(a, b) for a, b in zip(first.tensors, second.tensors, strict=True))
    assert all(t.data_ptr() != matrix.data_ptr() for t in first.tensors)


@each_format
def test_views_are_stored_as_their_copies(stored):
    transposed = values(160, 48).T[::2]
    got, wanted = stored.quantize(transposed), stored.quantize(transposed.contiguous())
    assert all(same_bits(a, b) for a, b in zip(got.tensors, wanted.tensors, strict=True))


@each_format
def test_no_rows_are_stored_and_read(stored):
    got = stored.quantize(torch.zeros(0, 64))
    assert got.dequantize(torch.float32).shape == (0, 64)
    assert stored.round_trip(torch.zeros(0, 64)).shape == (0, 64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@each_format
def test_narrow_dtypes_are_rounded_from_float32(stored, dtype):
    got = stored.quantize(values(16, 192))
    assert torch.equal(got.dequantize(dtype), got.dequantize(torch.float32).to(dtype))
    assert got.dequantize(dtype).dtype == dtype


@each_format
def test_nothing_is_read_on_the_host_while_reading_back(stored):
    got = stored.quantize(values(2, 4, 128))
    on_meta = type(got)(stored, got.data.to("meta"), {name: s.to("meta") for name, s in got.scales.items()})
    assert on_meta.dequantize(torch.bfloat16).shape == (2, 4, 128)
