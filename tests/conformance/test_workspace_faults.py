"""A call that takes more than was stated is told with the allocations that took it."""

import re
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from moesaic import Capabilities, Machine, Reference
from moesaic.conformance import base_case, conform
from moesaic.conformance.live_allocations import largest_allocations
from tests.conformance import wrong

CPU = Machine.current("cpu")


@dataclass(frozen=True)
class StatesLittle(wrong.Around):
    name: ClassVar[str] = "states_little"
    capabilities: ClassVar[Capabilities] = replace(wrong.DECLARED, dtypes=(torch.float32,))

    def workspace(self, problem, num_rows):
        return 64

    def run(self, batch, prepared, problem):
        scratch = torch.empty(777, 1001)
        return Reference().run(batch, prepared, problem) + 0 * scratch.zero_()[0, 0]


def test_the_statement_and_the_largest_allocations_are_named():
    case = base_case(wrong.DECLARED)
    [fault] = conform(StatesLittle(), CPU, checks=["workspace"], cases=[case]).faults
    assert "workspace() states 64" in fault.detail
    assert re.search(r"3111108 in float32 \(777, 1001\) at test_workspace_faults.py:\d+; \d+ in", fault.detail)


def test_what_was_given_and_what_is_gone_is_not_alive():
    given = torch.ones(1000)

    def call():
        gone = torch.empty(5000)
        del gone
        kept = given.view(10, 100)[3:] + 1
        return kept.view(-1), torch.empty(2, 2)

    assert re.fullmatch(r"20000 in float32 \(5000,\) at test_workspace_faults.py:\d+", largest_allocations(call))

    def kept_by_a_view():
        view = torch.empty(5000)[:3]
        return view, torch.empty(7)

    assert len(largest_allocations(kept_by_a_view).split("; ")) == 2
    assert largest_allocations(lambda: given.view(2, 500)) == "none that Python code made"
