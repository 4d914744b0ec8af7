"""The consumers of a grouped product on Hopper: tile after tile, each one half of its weights or of its rows."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from moesaic.kernels.hopper_queue import announce_stored, counted_at, receive
from moesaic.kernels.slot_sums import sum_slots


@gluon.jit
@no_type_check
def consume(
    output,
    operands,
    barriers,
    epilogue,
    task,
    MULTIPLY: gl.constexpr,
    WHO: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """Half WHO of every tile. MULTIPLY computes and stores that of one tile, announces the tile before on the way, and
    returns the number of the step after it. It takes all that is the same for every tile as one tuple.
    """
    control, width, depth = task[:3]
    steps = gl.cdiv(depth, FORM.depth)
    product = (output, operands, barriers, epilogue, (control, width, depth, steps))
    _, late, queue = barriers
    step = 0
    i = 0
    before = -1
    tile, row, count, expert, column = receive(i, queue)
    if WHO == 1:
        if count > 0:  # a program without a tile would wait for ever
            mbarrier.wait(late, 0)
    while count > 0:
        where = (row, count, expert, column)
        step = MULTIPLY(product, where, before, step, WHO, EXPRESSION, PER_EXPERT, FORM)
        before = counted_at(tile, column, width, FORM)
        i += 1
        tile, row, count, expert, column = receive(i, queue)
    announce_stored(control, before, FORM)
    tma.store_wait(pendings=0)
    if FORM.slots > 0:
        sum_slots(task[3], control, width, FORM)
