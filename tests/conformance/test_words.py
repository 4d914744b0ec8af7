"""What authors read: one message says what to write, names are distinct, numbers are short, pages say what they are."""

from dataclasses import dataclass

import pytest
import torch

from moesaic import ACTIVATIONS, BatchedBatch, Machine, SwiGLU
from moesaic.cli.mutants_page import mutants_page
from moesaic.conformance import DispatcherConformance, base_case, conform
from moesaic.conformance.declaration import faults_of
from moesaic.conformance.dispatcher import short
from moesaic.conformance.moved import moved_per_expert
from moesaic.conformance.mutants import Verdict
from moesaic.conformance.mutants.every import MUTANTS
from moesaic.conformance.mutants.kill_matrix import KillMatrix
from moesaic.dispatch import Local
from moesaic.dispatch.fleet import OneRank
from moesaic.errors import BatchError
from tests.conformance import wrong

CPU = Machine.current("cpu")


class Bare(wrong.Right):
    name = "bare"
    capabilities = wrong.DECLARED


def test_a_class_that_is_no_frozen_dataclass_is_told_once_what_to_write():
    [fault] = faults_of(Bare())
    assert "write @dataclass(frozen=True) above class Bare" in str(fault)
    text = " ".join(map(str, faults_of(wrong.Inherits())))
    assert "write name: ClassVar[...] = ... in class Inherits" in text
    assert len(faults_of(wrong.Inherits())) == 2  # the name is told once


@dataclass(frozen=True)
class SumsInBfloat16(wrong.Around):
    name = "sums_in_bfloat16"
    capabilities = wrong.replace(wrong.DECLARED, dtypes=(torch.bfloat16,))

    def run(self, batch, prepared, problem):
        coarse = batch.routing.topk_weights.bfloat16().float()
        routing = wrong.replace(batch.routing, topk_weights=coarse)
        return wrong.Reference().run(wrong.replace(batch, routing=routing), prepared, problem)


def test_the_sum_over_slots_says_in_what_the_rows_are():
    case = base_case(SumsInBfloat16.capabilities)
    [fault] = conform(SumsInBfloat16(), CPU, checks=["float32_sum"], cases=[case]).faults
    assert "(in float32: only the sum is rounded to torch.bfloat16)" in fault.detail


def test_dispatcher_tests_have_names_of_their_own():
    class Kit(DispatcherConformance):
        fleet = OneRank(num_experts=10, num_ranks=1, dispatcher=Local())

    names = [f"{check.name}-{short(traffic)}" for check, traffic in Kit().trials()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_constants_that_are_tried_are_short_numbers(kind):
    for name, default in kind().constants().items():
        if not isinstance(default, str):
            values = moved_per_expert(kind, name, 13)
            assert all(len(repr(value)) <= 7 for value in values)
            assert len(set(values)) == 13


@pytest.mark.parametrize("quick", [True, False])
def test_the_page_of_a_quick_run_does_not_pass_for_that_of_the_documentation(quick):
    verdicts = tuple(Verdict(m.name, m.check, {m.check: "found"}) for m in MUTANTS)
    page = mutants_page(KillMatrix(verdicts, (), quick), MUTANTS)
    assert ("docs/mutants.md" in page) is not quick
    assert ("--quick" in page) is quick


@pytest.mark.usefixtures("unchecked")
def test_a_batch_is_told_what_is_wrong_and_nothing_that_is_right():
    rows = torch.ones(2, 3, 4)
    with pytest.raises(
        BatchError, match=r"^counts is torch.int64, but it needs torch.int32: convert it with .int\(\)$"
    ):
        BatchedBatch(rows, torch.tensor([1, 2]))
    with pytest.raises(BatchError, match=r"^counts is \(1, 2\), but it needs the shape \(L,\)"):
        BatchedBatch(rows, torch.tensor([[1, 2]]).int())


def test_activations_can_be_written_with_public_names():
    from moesaic.activations import Constant, constant  # noqa: PLC0415

    assert constant(1.0).default == SwiGLU().alpha
    assert Constant is not None
