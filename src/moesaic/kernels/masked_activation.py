"""out[e, r, :] = activation(rows[e, r, :]) for r < counts[e]; every other row of out keeps its bits.

Memory-bound: per live row (D + I) elements move and nothing else, so time falls with the live share. A persistent
grid strides over the live tiles only, which it counts itself: with one hot expert of 256 every program still has the
same number of tiles, where one program per (expert, lane) would leave the hot expert to a few of them.
"""

from __future__ import annotations

import contextlib
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from moesaic.activations.base import Activation
from moesaic.activations.masked import checked
from moesaic.errors import BatchError
from moesaic.kernels.activation_expressions import evaluate, expression
from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.whole_numbers import ceil_div, next_power_of_2

MAX_EXPERTS = 4096
"""Counts that one program sums in registers."""

TILE = 2048
"""Elements of a tile: 16 a thread with 4 warps, two 16-byte loads of bfloat16 in flight for each operand."""

PROGRAMS_PER_PROCESSOR = 8


def apply(
    activation: Activation,
    rows: Tensor,
    counts: Tensor,
    *,
    out: Tensor | None = None,
    expert_ids: Tensor | None = None,
) -> Tensor:
    """As `moesaic.activations.masked.apply`, to the word, for CUDA and for float32, float16 and bfloat16.

    Raises as that, and ActivationError for an activation without an expression, BatchError for float64, for a CPU
    (but Triton's interpreter runs there) and for more than 4096 experts.
    """
    target = checked(activation, rows, counts, out=out, expert_ids=expert_ids)
    batched = rows.ndim == 3
    num_experts = rows.shape[0] if batched else 1
    if torch.float64 in (rows.dtype, target.dtype):
        raise BatchError("the Triton kernel computes in float32: use moesaic.activations.masked.apply for float64")
    if num_experts > MAX_EXPERTS:
        raise BatchError(f"the Triton kernel takes at most {MAX_EXPERTS} experts, but the rows are for {num_experts}")
    chosen = expression(activation, rows.device)
    if _compiled() and rows.device.type != "cuda":
        raise BatchError(
            f"the Triton kernel needs CUDA, but the rows are on {rows.device}: use moesaic.activations.masked.apply"
        )
    capacity, width = rows.shape[-2], target.shape[-1]
    if not target.numel():
        return target
    columns = min(next_power_of_2(width), 1024)
    height = TILE // columns
    tiles = num_experts * ceil_div(capacity, height) * ceil_div(width, columns)
    ids = expert_ids if any(chosen.per_expert) else None
    with torch.cuda.device(rows.device) if _compiled() else contextlib.nullcontext():
        _masked_activation[(min(tiles, _programs(rows.device)),)](
            rows,
            target,
            counts,
            counts if ids is None else ids,
            chosen.constants,
            rows.stride() if batched else (0, *rows.stride()),
            target.stride() if batched else (0, *target.stride()),
            num_experts,
            min(activation.per_expert().values(), default=0),
            capacity,
            width,
            EXPRESSION=chosen.function,
            PER_EXPERT=chosen.per_expert,
            GATED=activation.gated,
            BATCHED=batched,
            READ_IDS=ids is not None,
            EXPERTS=next_power_of_2(num_experts),
            HEIGHT=height,
            COLUMNS=columns,
            num_warps=4,
        )
    return target


def _compiled() -> bool:
    """False in Triton's interpreter, which runs on a CPU."""
    return _masked_activation.compiles


def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return 3  # the interpreter runs one after another; more than one, so that each has to stride
    return torch.cuda.get_device_properties(device).multi_processor_count * PROGRAMS_PER_PROCESSOR


@DirectLaunch
@triton.jit
@no_type_check
def _masked_activation(
    rows,
    out,
    counts,
    ids,
    constants,
    row_strides,
    out_strides,
    num_experts,
    num_constants,
    capacity,
    width,
    EXPRESSION: tl.constexpr,
    PER_EXPERT: tl.constexpr,
    GATED: tl.constexpr,
    BATCHED: tl.constexpr,
    READ_IDS: tl.constexpr,
    EXPERTS: tl.constexpr,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    strips = tl.cdiv(width, COLUMNS)
    every = tl.arange(0, EXPERTS)
    live = tl.load(counts + every, mask=every < num_experts, other=0)
    live = tl.minimum(tl.maximum(live, 0), capacity)
    heights = (live + HEIGHT - 1) // HEIGHT
    ends = tl.cumsum(heights.to(tl.int64), 0) * strips  # of each expert's tiles, in the order in which they are done
    for tile in range(tl.program_id(0).to(tl.int64), tl.max(ends, 0), tl.num_programs(0)):
        if BATCHED:
            expert = tl.sum((ends <= tile).to(tl.int64), 0)
            count = tl.sum(tl.where(every == expert, live, 0), 0)
            local = tile - tl.sum(tl.where(every == expert, ends - heights * strips, 0), 0)
            slab, out_slab = rows + expert * row_strides[0], out + expert * out_strides[0]
        else:
            expert = 0
            count = tl.sum(live, 0)
            local = tile
            slab, out_slab = rows, out
        row = (local // strips) * HEIGHT + tl.arange(0, HEIGHT)  # int64, as everything that comes from `tile`
        column = (local % strips) * COLUMNS + tl.arange(0, COLUMNS)
        alive = row < count
        owner = expert
        if READ_IDS:
            owner = tl.load(ids + row, mask=alive, other=-1)
            alive = alive & (owner >= 0) & (owner < num_constants)
            owner = tl.where(alive, owner, 0)[:, None]
        mask = alive[:, None] & (column < width)[None, :]
        source = slab + row[:, None] * row_strides[1]
        first = tl.load(source + column * row_strides[2], mask=mask, other=0.0).to(tl.float32)
        if GATED:
            up = tl.load(source + (column + width) * row_strides[2], mask=mask, other=0.0).to(tl.float32)
            value = evaluate(EXPRESSION, (first, up), constants, PER_EXPERT, owner)
        else:
            value = evaluate(EXPRESSION, (first,), constants, PER_EXPERT, owner)
        place = out_slab + row[:, None] * out_strides[1] + column * out_strides[2]
        tl.store(place, value.to(out.dtype.element_ty), mask=mask)
