"""The systematic part of an error: rounding has none, a factor near 1 has, in whatever group of values it is."""

import dataclasses

import pytest
import torch

from moesaic import Cpu, CpuJit, Machine, Reference, TorchGrouped
from moesaic.conformance import CHECKS, Subject, base_case, conform
from moesaic.conformance.oracle import Oracle
from moesaic.conformance.slope import column_slopes, row_slopes
from moesaic.errors import Nonconformance
from moesaic.problem import DTYPES
from moesaic.quant import SCHEMES

CPU = Machine.current("cpu")
SYSTEMATIC = next(check for check in CHECKS if check.name == "systematic")


def rows_of(dtype, num_tokens):
    case = dataclasses.replace(base_case(Reference.capabilities, dtype), num_tokens=num_tokens, padding=0.0)
    return case, Oracle().rows(case)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 19, 400])
def test_rounding_has_no_systematic_part(dtype, tokens):
    case, wanted = rows_of(dtype, tokens)
    got = wanted.to(dtype)
    row_slopes(case.problem, got, wanted).judge("all rows")
    row_slopes(case.problem, got, wanted, torch.arange(len(got))).judge("row {}")
    column_slopes(case.problem, got, wanted).judge("column {}")


@pytest.mark.parametrize("share", [0.0025, -0.0025])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_quarter_of_a_percent_of_all_rows_is_seen_though_the_three_measures_pass_it(dtype, share):
    case, wanted = rows_of(dtype, 600)
    subject = Subject(Reference(), CPU, Oracle())
    with pytest.raises(Nonconformance) as fault:
        subject.compare(case, (wanted * (1 + share)).to(dtype), wanted, "rows")
    assert ("the systematic part of rows" in str(fault.value)) == (dtype == torch.bfloat16)


def test_the_group_that_is_off_is_named():
    case, wanted = rows_of(torch.bfloat16, 600)
    owner = torch.arange(len(wanted)) % 7
    got = torch.where((owner == 5).unsqueeze(1), wanted * 1.01, wanted).bfloat16()
    row_slopes(case.problem, got, wanted).judge("all rows")
    with pytest.raises(Nonconformance, match=r"part of group 5: needs .* at most 0.00\d+ times .*, got \+0.0\d+ times"):
        row_slopes(case.problem, got, wanted, owner).judge("group {}")
    columns = wanted.clone()
    columns[:, 11] *= 0.98
    with pytest.raises(Nonconformance, match=r"part of column 11: .*, got -0.02 times"):
        column_slopes(case.problem, columns.bfloat16(), wanted).judge("column {}")


def test_what_is_allowed_shrinks_with_the_rows_and_counts_large_ones_for_more():
    case, wanted = rows_of(torch.bfloat16, 400)
    allowed = [float(row_slopes(case.problem, wanted[:n], wanted[:n]).allowed) for n in (1, 10, 400)]
    assert allowed == sorted(allowed, reverse=True)
    one_outweighs = wanted.clone()
    one_outweighs[0] *= 1e6
    alone = row_slopes(case.problem, wanted[:1], wanted[:1])
    assert torch.allclose(row_slopes(case.problem, one_outweighs, one_outweighs).allowed, alone.allowed)


def test_rows_of_zeros_and_no_rows_are_no_error():
    case, wanted = rows_of(torch.bfloat16, 3)
    zeros = torch.zeros_like(wanted)
    assert row_slopes(case.problem, zeros, zeros).worst is None
    assert row_slopes(case.problem, wanted[:0], wanted[:0]).worst is None
    assert column_slopes(case.problem, wanted[:0], wanted[:0]).worst is None


@pytest.mark.parametrize("backend", [Reference(), Cpu(), CpuJit(), TorchGrouped()], ids=lambda b: b.name)
def test_the_backends_of_the_package_have_no_systematic_error_where_slots_must_all_be_active_too(backend):
    case = base_case(backend.capabilities, torch.bfloat16)
    each = [case, case.changed(inactive_slots=False), case.changed(inactive_slots=False, duplicate_ids=False)]
    schemes = SCHEMES[1::6] if backend.capabilities.any_scheme else ()
    each += [case.changed(scheme=scheme) for scheme in schemes]
    assert conform(backend, CPU, checks=[SYSTEMATIC], cases=each).faults == ()
