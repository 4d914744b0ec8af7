"""turned: contents for a batch of the same shapes, with other values, other routing and other counts."""

from __future__ import annotations

from dataclasses import replace

import torch

from moesaic.conformance.case import Case
from moesaic.conformance.contents import Contents


def turned(case: Case, given: Contents, shift: int) -> Contents:
    """`given` with active ids moved on by `shift` experts, routing by as many tokens, and values by as many columns.

    Counts of experts move with the ids, so that sums of counts, a capacity and the sizes of a batch stay.
    """
    ids = torch.where(given.active, (given.ids + shift) % case.problem.num_experts, given.ids)
    return replace(given, hidden_states=given.hidden_states.roll(shift, 1), ids=ids.roll(shift, 0))
