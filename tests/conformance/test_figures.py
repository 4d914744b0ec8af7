"""Messages name the measures that went over their limit, in three significant digits."""

import re

import pytest
import torch

from moesaic import Machine
from moesaic.conformance import Nonconformance, Subject, base_case, conform
from moesaic.conformance.figures import apart, excess, figure
from moesaic.conformance.noise import Deviation
from moesaic.conformance.oracle import Oracle
from moesaic.conformance.piece import close
from tests.conformance import wrong

CASE = base_case(wrong.DECLARED)
SUBJECT = Subject(wrong.Right(), Machine.current("cpu"), Oracle())
SMALL = Deviation(0.0, 0.0, 0.0)


def test_only_the_measures_that_are_exceeded_are_named():
    names = tuple(vars(SMALL))
    for index, name in enumerate(names):
        found = Deviation(*(0.123456 if i == index else 0.0 for i in range(len(names))))
        assert excess(found, Deviation(*[0.0114999] * len(names))) == (f"{name} at most 0.0115", f"{name} 0.123")
    nan = Deviation(*[float("nan")] * len(names))
    assert excess(nan, SMALL)[1] == ", ".join(f"{name} nan" for name in names)


def test_one_wrong_row_is_not_said_to_exceed_the_mean():
    wanted = torch.randn(64, 72, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = wanted.clone()
    got[5] += 8e-6  # twice what one row may have, and 2/3 of what all rows may
    with pytest.raises(Nonconformance) as found:
        SUBJECT.compare(CASE, got, wanted, "rows")
    assert re.fullmatch(r"row at most [\d.]+e-0\d", found.value.wanted)
    assert re.match(r"row [78]\.\d+e-06; row 5 column \d+ is ", found.value.got)


def test_rows_that_are_not_finite_are_counted():
    wanted = torch.randn(64, 72, dtype=torch.float64)
    got = wanted.clone()
    got[7, 3] = torch.nan
    with pytest.raises(Nonconformance, match="rows: needs finite rows, got 1 of 64 rows that are not"):
        SUBJECT.compare(CASE, got, wanted, "rows")


def test_no_figure_of_a_report_has_more_than_three_digits():
    fault = conform(wrong.SwapsGateAndUp(), cases=[CASE], checks=["equals_reference"]).faults[0]
    digits = [re.sub(r"^0+", "", n.replace(".", "").split("e")[0]) for n in re.findall(r"\d+\.[\de-]+", fault.detail)]
    assert digits
    assert all(len(number) <= 3 for number in digits), fault.detail


def test_values_that_three_digits_do_not_tell_apart_come_with_their_distance():
    assert figure(1234567.0) == "1.23e+06"
    assert figure(1234567) == "1234567"
    assert apart(1.5000012, 1.5) == "1.5 instead of 1.5, off by 1.2e-06"
    assert apart(float("nan"), 1.5) == "nan instead of 1.5"
    assert apart(3, 2) == "3 instead of 2"
    assert apart(1234568, 1234567) == "1234568 instead of 1234567, off by 1"
    with pytest.raises(Nonconformance, match=r"needs 1.5, got 1.5 instead of 1.5, off by 1.19e-06 \(1 such\)"):
        close(torch.tensor([1.5000012]).double(), torch.tensor([1.5]).double(), torch.tensor([0.0]), "x")
