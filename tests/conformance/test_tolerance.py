"""The noise floor is what is measured, and the tolerance over it tells wrong answers from rounding."""

import dataclasses

import pytest
import torch

from moesaic import GELU, UNQUANTIZED, Reference, Scheme, SiLU, SwiGLU
from moesaic.conformance import Subject, base_case
from moesaic.conformance.noise import Deviation, deviation, measure
from moesaic.conformance.oracle import Oracle
from moesaic.conformance.tolerance import NOISE, floor, tolerance
from moesaic.errors import Nonconformance
from moesaic.machine import Machine
from moesaic.problem import DTYPES
from moesaic.quant import SCHEMES

CPU = Machine.current("cpu")


@pytest.mark.parametrize(("dtype", "length", "noted"), [row for row in NOISE if row[1] <= 256], ids=str)
def test_the_table_is_what_is_measured(dtype, length, noted):
    found = measure(dtype, length)
    for name in ("rms", "worst", "row"):
        assert 0.5 < getattr(found, name) / getattr(noted, name) < 1.5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_floor_covers_shorter_and_longer_sums_than_those_measured(dtype):
    rms = [floor(dtype, UNQUANTIZED, length).rms for length in (1, 32, 33, 256, 1024, 3072, 10**6)]
    assert rms == sorted(rms)
    assert tolerance(dtype, UNQUANTIZED, 64, 1).rms >= tolerance(dtype, UNQUANTIZED, 64, 100).rms


def test_rounded_inputs_have_more_noise_and_rounded_weights_hardly_any():
    plain = floor(torch.bfloat16, UNQUANTIZED, 64).rms
    for scheme in SCHEMES[1:]:
        rms = floor(torch.bfloat16, scheme, 64).rms
        assert plain < rms < (1.5 * plain if scheme in set(weight_only()) else 0.07)
        assert floor(torch.float64, scheme, 64).rms <= rms


def weight_only():
    return (s for s in SCHEMES if s.inputs == UNQUANTIZED.inputs)


WRONG = {
    "zeros": lambda case, rows: torch.zeros_like(rows),
    "twice": lambda case, rows: 2 * rows,
    "one row": lambda case, rows: torch.cat([rows[1:2], rows[1:]]),
    "one column": lambda case, rows: torch.cat([rows[:, :-1], 0 * rows[:, -1:]], dim=1),
    "a share": lambda case, rows: rows * 1.06,
    "nan": lambda case, rows: rows.clone().index_fill_(0, torch.tensor([3]), torch.nan),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 19, 400])
def test_wrong_rows_are_told_from_rounding(dtype, wrong, tokens):
    subject = Subject(Reference(), CPU, Oracle())
    case = dataclasses.replace(base_case(Reference.capabilities, dtype), num_tokens=max(tokens, 5), padding=0.0)
    rows = subject.oracle.rows(case)
    subject.compare(case, rows.to(dtype), rows, "rounded rows")
    with pytest.raises(Nonconformance):
        subject.compare(case, wrong(case, rows).to(dtype), rows, "wrong rows")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("right", "wrong"), [(SiLU(), GELU()), (SwiGLU(), SwiGLU(alpha=1.702))], ids=repr)
def test_like_activations_are_told_apart_in_every_dtype(dtype, right, wrong):
    subject = Subject(Reference(), CPU, Oracle())
    case = base_case(Reference.capabilities, dtype)
    rows = {a: subject.oracle.rows(case.changed(activation=a)) for a in (right, wrong)}
    with pytest.raises(Nonconformance):
        subject.compare(case, rows[wrong].to(dtype), rows[right], "another activation")


def test_a_row_of_zeros_must_be_zero_and_what_is_not_finite_is_infinitely_wrong():
    wanted = torch.tensor([[0.0, 0.0], [1.0, -1.0]], dtype=torch.float64)
    assert deviation(wanted, wanted) == Deviation(0.0, 0.0, 0.0)
    off = wanted.clone()
    off[0, 0] = 1e-30
    assert deviation(off, wanted).row == float("inf")
    assert deviation(wanted / 0, wanted).rms == float("inf")
    assert Deviation(float("nan"), 0.0, 0.0).exceeds(Deviation(1.0, 1.0, 1.0))
    assert isinstance(UNQUANTIZED, Scheme)
