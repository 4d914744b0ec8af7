"""How far a value read back may lie from the one stored, for every format, as a property of any tensor."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moesaic import FP8, INT4, INT8, MXFP4, MXFP8, NVFP4, Plain
from tests.quant.examples import FORMATS, values

each_format = pytest.mark.parametrize("stored", FORMATS, ids=repr)


@st.composite
def matrices(draw):
    """A matrix of even width whose rows differ in size by powers of ten, with zeros and equal values among them."""
    rows, columns = draw(st.integers(1, 9)), 2 * draw(st.integers(1, 100))
    g = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = 10.0 ** draw(st.integers(-4, 3))
    drawn = g.normal(size=(rows, columns)) if draw(st.booleans()) else g.choice([-1.0, 0.0, 0.5, 1.0], (rows, columns))
    drawn *= size * 10.0 ** -g.integers(0, 4, size=(rows, 1))
    return torch.tensor(drawn).to(draw(st.sampled_from([torch.float32, torch.bfloat16])))


def bound(stored, scale, matrix):
    """The largest error of each value: half a step there, or what saturates where the scale was rounded down."""
    steps = matrix.abs().double().numpy() / scale
    match stored:
        case FP8() | MXFP8():
            half, top = np.maximum(steps / 16, 2.0**-10), 448  # three bits after the leading one
        case INT8():
            half, top = 0.5, 127
        case INT4(zero_point=False):
            half, top = 0.5, 7
        case INT4():
            low, high = (stored.granularity.spread(end, matrix.shape) for end in stored.granularity.extremes(matrix))
            half, top = 0.5 + np.maximum((high - low).double().numpy() / scale - 15, 0), np.inf
        case MXFP4() | NVFP4():
            half, top = np.where(steps <= 2, 0.25, np.where(steps <= 4, 0.5, 1.0)), 6
    # The quotient of value and scale is rounded to float32: 2^-23 of it.
    return (np.maximum(half, steps - top) + steps * 2**-23) * scale


def scale_at_each_value(got):
    columns = {MXFP8: 32, MXFP4: 32, NVFP4: 16}
    scale = got.scales["scale"].double()
    if got.format.__class__ in columns:
        spread = scale.repeat_interleave(columns[got.format.__class__], -1)[..., : got.shape[-1]]
    else:
        spread = got.format.granularity.spread(scale, got.shape).expand(got.shape)
    return (spread * got.scales.get("global_scale", torch.ones(1, 1)).double()).numpy()


@each_format
@given(matrix=matrices())
def test_no_error_is_above_half_a_step(stored, matrix):
    got = stored.quantize(matrix)
    exact = matrix.double().numpy()
    error = np.abs(got.dequantize(torch.float64).numpy() - exact)
    assert (error <= bound(stored, scale_at_each_value(got), matrix)).all()


@each_format
@given(matrix=matrices())
def test_zero_and_sign_are_kept(stored, matrix):
    back = stored.quantize(matrix).dequantize(torch.float32)
    assert not bool(back[matrix == 0].any())
    assert bool((back * matrix >= 0).all())


@pytest.mark.parametrize("stored", [MXFP8(), MXFP4()], ids=repr)
@given(matrix=matrices())
def test_powers_of_two_make_a_second_round_trip_change_nothing(stored, matrix):
    once = stored.round_trip(matrix.float())
    assert torch.equal(stored.round_trip(once), once)


@pytest.mark.parametrize("stored", [Plain(), *FORMATS], ids=repr)
def test_a_round_trip_is_storing_and_reading_in_the_dtype_of_the_values(stored):
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        rows = values(5, 160, dtype=dtype)
        got = stored.round_trip(rows)
        assert got.dtype == dtype
        assert torch.equal(got, stored.quantize(rows).dequantize(dtype))


@each_format
def test_a_round_trip_has_no_gradient(stored):
    rows = values(5, 160).requires_grad_()
    assert not stored.round_trip(rows).requires_grad
    assert not stored.quantize(rows).dequantize(torch.float32).requires_grad


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")], ids=str)
@each_format
def test_what_is_not_finite_stays_and_takes_part_in_no_scale(stored, number):
    rows = values(5, 160)
    without, struck = rows.clone(), rows.clone()
    without[2, 31], struck[2, 31] = 0, number
    got, wanted = stored.round_trip(struck), stored.round_trip(without)
    assert repr(got[2, 31].item()) == repr(number)
    got[2, 31] = wanted[2, 31]
    assert torch.equal(got, wanted)
