"""What is right and was blamed once: equal rows, bounded activations, statements for any counts."""

from dataclasses import replace

import pytest
import torch

from moesaic import ACTIVATIONS, BatchedExperts, Machine, PowLU, ReLU2, SiTU, SwiGLU, SwiGLUStep, TorchGrouped
from moesaic.conformance import Subject, base_case, conform
from moesaic.conformance.checks.wide import grows_with_its_input
from moesaic.conformance.oracle import Oracle
from moesaic.conformance.slope import row_slopes
from moesaic.conformance.subject import num_distinct

CPU = Machine.current("cpu")
COPIES = replace(
    base_case(TorchGrouped.capabilities, torch.bfloat16)
    .changed(top_k=8, activation=ReLU2(), hidden_size=72, intermediate_size=40)
    .in_layout(BatchedExperts()),
    num_tokens=2,
    padding=0.0,
    seed=1,
)
"""The slots of two tokens at one expert: a dozen rows, of which two differ."""


def test_copies_of_a_row_average_no_rounding():
    assert conform(TorchGrouped(), CPU, checks=["hot_expert"], cases=[COPIES]).faults == ()


def test_equal_rows_count_once():
    rows = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert num_distinct(rows) == (6, 6)
    assert num_distinct(rows.repeat(5, 1)) == (30, 6)
    assert num_distinct(rows.repeat(5, 1) * (1 + 1e-15)) == (30, 6)
    assert num_distinct(torch.cat([rows, torch.zeros(4, 8, dtype=torch.float64)])) == (6, 6)
    assert num_distinct(rows[:0]) == (0, 0)


def test_as_many_copies_allow_what_the_rows_alone_do():
    rows = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alone = row_slopes(COPIES.problem, rows, rows).allowed
    assert torch.allclose(row_slopes(COPIES.problem, rows.repeat(5, 1), rows.repeat(5, 1), copies=5).allowed, alone)
    assert row_slopes(COPIES.problem, rows.repeat(5, 1), rows.repeat(5, 1)).allowed < alone


def test_a_wrong_copy_among_right_ones_is_seen():
    subject = Subject(TorchGrouped(), CPU, Oracle())
    wanted = torch.randn(2, 72, generator=torch.Generator().manual_seed(0), dtype=torch.float64).repeat(9, 1)
    subject.compare(COPIES, wanted.float(), wanted, "copies")
    got = wanted.float()
    got[-1] *= 1.1
    with pytest.raises(Exception, match="row"):
        subject.compare(COPIES, got, wanted, "copies")


def test_which_activations_are_bounded():
    bounded = {PowLU, SiTU, SwiGLUStep}
    assert {kind for kind in ACTIVATIONS if not grows_with_its_input(kind())} == bounded
    assert not grows_with_its_input(SwiGLU(limit=(7.0, 8.0)))
    assert not grows_with_its_input(ReLU2(limit=3.0))
