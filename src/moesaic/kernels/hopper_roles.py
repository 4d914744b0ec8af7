"""The roles of a grouped product on Hopper: a producer and two consumers, and the barriers between them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents

from moesaic.kernels.hopper_consume import consume
from moesaic.kernels.hopper_form import QUEUED
from moesaic.kernels.hopper_produce import produce
from moesaic.kernels.launching import wait_for_previous
from moesaic.kernels.slot_sums import sum_slots

_FILES = ("hopper_form", "hopper_product", "coded_product", "nibble_form", "split_form")
_SOURCES = (Path(__file__).with_name(f"{name}.py").read_bytes() for name in _FILES)
_FORMS = gl.constexpr(sha256(b"".join(_SOURCES)).hexdigest())
"""Triton remembers what it compiled by the fields of a form, and would not see that a property of it has changed."""


@gluon.jit
@no_type_check
def begin(FORM: gl.constexpr):
    """The first thing in a kernel: wait for the launch before, unless its flags say what it has stored."""
    gl.static_assert(_FORMS != "")
    if FORM.after > 0:
        gdc_launch_dependents()
    else:
        wait_for_previous(True)


@gluon.jit
@no_type_check
def run_roles(
    MULTIPLY: gl.constexpr,
    source,
    operands,
    output,
    epilogue,
    task,
    sums,
    COUNTER: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """All tiles of a program. MULTIPLY is a consumer's part of one tile: see `consume`.

    `source`: what `produce` copies from. `operands`: shared memory of weights, of rows, and of spare rows or of scales
    of rows. `output`: a descriptor, and what both consumers stage. `epilogue`: bias, constants, and what MULTIPLY takes
    besides. `task`: tiles, the most of them, control, rows and columns of a matrix of weights. `sums`: what `sum_slots`
    takes, if it does.
    """
    barriers = _barriers(FORM)
    out_desc, stage = output
    _, _, control, width, depth = task
    # Roles are written out: a tuple held in a variable turns its constants into run-time values (triton 3.6).
    # fmt: off
    if FORM.slots > 0:
        gl.warp_specialize(
            [
                (consume, ((out_desc, stage.index(0)), operands, barriers, epilogue, (control, width, depth, sums), MULTIPLY, 0, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
                (consume, ((out_desc, stage.index(1)), operands, barriers, epilogue, (control, width, depth, sums), MULTIPLY, 1, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
                (produce, (source, task, operands, barriers, COUNTER, FORM)),
                (sum_slots, (sums, control, width, FORM)),
            ],
            [4, FORM.producer_warps, 2],
            [FORM.consumer_registers, FORM.producer_registers, FORM.producer_registers],
        )
    else:
        gl.warp_specialize(
            [
                (consume, ((out_desc, stage.index(0)), operands, barriers, epilogue, (control, width, depth), MULTIPLY, 0, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
                (consume, ((out_desc, stage.index(1)), operands, barriers, epilogue, (control, width, depth), MULTIPLY, 1, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
                (produce, (source, task, operands, barriers, COUNTER, FORM)),
            ],
            [4, FORM.producer_warps],
            [FORM.consumer_registers, FORM.producer_registers],
        )
    # fmt: on


@gluon.jit
@no_type_check
def _barriers(FORM: gl.constexpr):
    """Of the steps in flight (ready, free); of the second consumer's late start; of the tiles handed out (what they
    are, full, empty).
    """
    STAGES: gl.constexpr = FORM.pipeline.stages
    one: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    entries = gl.allocate_shared_memory(gl.int64, [2 * QUEUED, 1], one)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [QUEUED, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [QUEUED, 1], mbarrier.MBarrierLayout())
    late = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        # With a gather, 128 threads arrive once their copies have landed, and the expectation of the weights does.
        mbarrier.init(ready.index(s), count=129 if FORM.gather > 0 else 1)
        mbarrier.init(free.index(s), count=2)
    for q in gl.static_range(QUEUED):
        mbarrier.init(full.index(q), count=1)
        mbarrier.init(empty.index(q), count=2)
    mbarrier.init(late, count=1)
    return (ready, free), late, (entries, full, empty)
