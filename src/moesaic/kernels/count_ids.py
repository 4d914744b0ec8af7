"""bins[e + 1] += how many ids are e, for e in [0, E): one launch, which needs no order of its programs.

64 bits are added where they lie, and nobody waits for the sums. Ids outside [0, E) count nowhere.
"""

# No `from __future__ import annotations` here: torch infers the operator's schema from real annotations.
from contextlib import nullcontext
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.launching import overlap_launches, wait_for_previous
from moesaic.kernels.whole_numbers import ceil_div

BLOCK = 512
"""Ids of a program of four warps: four a thread."""


def count_ids(ids: Tensor, bins: Tensor, num_experts: int) -> None:
    """Count `ids` [P] of int32 or int64 into `bins` [E + 2] of int64, of which the first and the last stay."""
    number = ids.numel()
    if number == 0:
        return
    overlap = overlap_launches(ids.device)
    with torch.cuda.device(ids.device) if ids.is_cuda else nullcontext():
        _count[(ceil_div(number, BLOCK),)](
            ids,
            bins,
            number,
            E=num_experts,
            BLOCK=BLOCK,
            OVERLAP=overlap,
            num_warps=4,
            **({"launch_pdl": True} if overlap else {}),
        )


@torch.library.custom_op("moesaic::count_ids", mutates_args=("bins",))
def count_as_operator(ids: Tensor, bins: Tensor, num_experts: int) -> None:
    """The same in a graph of `torch.compile`, which does not look into it. By itself it would cost the host more."""
    count_ids(ids, bins, num_experts)


@count_as_operator.register_fake
def _(ids: Tensor, bins: Tensor, num_experts: int) -> None:
    del ids, bins, num_experts


@DirectLaunch
@triton.jit(do_not_specialize=["number"])
@no_type_check
def _count(ids, bins, number, E: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wait_for_previous(OVERLAP)
    expert = tl.load(ids + place, mask=place < number, other=-1)
    active = (expert >= 0) & (expert < E)
    tl.atomic_add(bins + 1 + expert, tl.full([BLOCK], 1, tl.int64), mask=active, sem="relaxed")
