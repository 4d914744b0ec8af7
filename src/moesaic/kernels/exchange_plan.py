"""ExchangePlan: how an exchange through a window is spread over the programs of a GPU.

The numbers are chosen from 220 measurements on two H200: 4096 tokens, there and back, of two shapes, in bfloat16 and as
FP8 (`benchmarks/results/exchange_plans_h200x2.json`). One rule serves all of them; another is 3 to 6 % faster for one
alone. No triton is loaded here: a window is opened before any kernel is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

STRIPES = 4
"""For each multiprocessor, so eight programs, of which five or six run at once. Those that receive must stay fewer than
that: then others are left to send, in whatever order a GPU starts programs."""

STEP_BYTES = 16384
"""Of a step's rows on their way, at least, if the stripe has as many."""

MOST_ROWS = 64
"""Of a step: rows may be short."""

REGISTERS, OF_MANY = 80, 96
"""Of two ranks, as measured, and of more: 80 spilled for 3, 4 and 8. Six programs run on a multiprocessor, or five."""


@final
@dataclass(frozen=True, kw_only=True)
class ExchangePlan:
    """Token t is of stripe t % `stripes`. For each stripe one program sends and one receives, some tokens in a step.

    A step, of `rows` tokens at most and `step_bytes` about, ends with one flag to every other rank. `elements`: of a
    row of 16 bits that a program holds at once, at most; `warps` of a program, each thread of which moves 16 bytes at a
    time in `registers` at most.

    Programs that send are the first of a launch and wait for nobody, so they all come to their end, and those that
    receive take their places: not all need to run at once.
    """

    stripes: int
    rows: int = 1
    step_bytes: int = STEP_BYTES
    elements: int = 2048
    warps: int = 4
    registers: int = REGISTERS

    @classmethod
    def of(cls, max_tokens: int, multiprocessors: int, num_ranks: int) -> ExchangePlan:
        """For at most `max_tokens` of each of `num_ranks`."""
        stripes = min(max_tokens, STRIPES * multiprocessors)
        rows = min(MOST_ROWS, -(-max_tokens // stripes))
        return cls(stripes=stripes, rows=rows, registers=REGISTERS if num_ranks <= 2 else OF_MANY)

    def rows_of(self, row_bytes: int) -> int:
        """Of a step, if a row is `row_bytes` bytes on its way: the same on all ranks, which send equal rows."""
        return min(self.rows, -(-self.step_bytes // row_bytes))

    @property
    def programs(self) -> int:
        """Of a launch."""
        return 2 * self.stripes
