"""Rows split into two E4M3 numbers each times powers of two, read back in numpy."""

from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from tests.kernels.row_cases import RowCase
from tests.quant import oracle

BLOCK, SHARED = 128, 64
POISON = 0x5A
"""Of undefined memory: 10.0 in E4M3, and in float32 a number that nobody computes."""

EXACT = 2.0**-9
"""Of the largest of 64 columns: a number of that size is kept."""

HALF_STEP = 2.0**-10
"""Times the power of two, what a smaller one may lose: E4M3 has steps of 2^-9, and the largest is 128 to 256 there."""

LEAST = 2.0**-110
"""What is smaller counts as that where it is the largest."""


@contextmanager
def gpu_like():
    """The interpreter with a GPU's arithmetic: sums and products that are NaN are 0x7FFFFFFF, not what came in; numbers
    in bfloat16 are rounded to, where triton's interpreter cuts them off, and read where they are subnormal.
    """
    binary_op, convert = interpreter.InterpreterBuilder.binary_op, interpreter._convert_float

    def computed(self, lhs, rhs, op):
        found = binary_op(self, lhs, rhs, op)
        if found.data.dtype == np.float32:
            found.data = np.where(np.isnan(found.data), np.uint32(0x7FFFFFFF).view(np.float32), found.data)
        return found

    def converted(values, source, target, rounding):
        if (source, target) == (tl.float32, tl.bfloat16):
            return torch.from_numpy(np.ascontiguousarray(values)).bfloat16().view(torch.int16).numpy().view(np.uint16)
        if (source, target) == (tl.bfloat16, tl.float32):
            return values.view(np.uint16).astype(np.uint32) << 16
        return convert(values, source, target, rounding)

    with (
        mock.patch.object(interpreter.InterpreterBuilder, "binary_op", computed),
        mock.patch.object(interpreter, "_convert_float", converted),
        np.errstate(invalid="ignore"),
    ):
        yield


def as_bfloat16(values):
    """Float32 rounded to the nearest number with 8 significant bits, ties to the even one; NaN stays."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), rounded)


@dataclass(frozen=True)
class SplitCase(RowCase):
    """One call of `split_rows`, of tokens that lie apart; `numbers` beside a block of a row."""

    weighted: bool = False
    numbers: int = 2

    @property
    def x(self):
        """[T, C] in float32, all of them numbers of bfloat16; the first rows are of the kinds that may go wrong."""
        g = np.random.default_rng(self.hidden)
        rows = g.normal(size=(self.num_tokens, self.hidden))
        column = np.arange(self.hidden)
        kinds = (
            2.0 ** g.integers(-100, 101, size=self.hidden) * g.choice((-1.0, 1.0), size=self.hidden),
            np.where(column % 19 == 6, 1.9921875, (128 + column * 37 % 128) / 128 * 2.0 ** -(column % 23) / 2),
            np.where(column % 31 == 7, -1.0, (128 + column * 37 % 128) / 128 * 2.0 ** -(column % 21) / 2),
            0.0 * column,
            g.normal(size=self.hidden) * 2.0**-118,
            np.where(column % 50 == 5, np.nan, rows[-1]),
            np.where(column % 60 == 11, np.inf * np.where(column % 120 == 11, 1, -1), rows[-1]),
            np.where((column >= SHARED) & (column < BLOCK), np.inf, rows[-1]),
        )
        for row, values in zip(rows, kinds, strict=False):
            row[:] = values
        return as_bfloat16(rows.astype(np.float32))

    def run(self, device):
        """Codes as bytes and what lies beside them, POISON where nothing was written."""
        from moesaic.kernels.split_rows import SplitRows, split_rows  # noqa: PLC0415

        empty = SplitRows.empty

        def poisoned(*args):
            made = empty(*args)
            for memory in (made.codes, made.beside):
                memory.view(torch.uint8).fill_(POISON)
            return made

        wide = torch.full((self.num_tokens, self.hidden + 8), torch.nan, dtype=torch.bfloat16, device=device)
        x = wide[:, : self.hidden].copy_(torch.from_numpy(self.x))
        places = self.tensor(self.places.ravel(), device, torch.int32) if self.placed else None
        weights = self.tensor(self.weights, device, torch.float32) if self.weighted else None
        num_rows = 2 * self.ids.size + 1 if self.placed else self.num_tokens
        with gpu_like(), mock.patch.object(SplitRows, "empty", poisoned):
            out = split_rows(x, places, weights, self.top_k if self.placed else 1, num_rows, self.numbers)
        assert out.columns == self.hidden
        return out.codes.view(torch.uint8).cpu(), out.beside.cpu()

    @property
    def owed(self):
        """Place -> the row that belongs there."""
        x = self.x
        if not self.placed:
            return dict(enumerate(x))
        with np.errstate(over="ignore", invalid="ignore"):
            return {
                self.places[token, slot]: as_bfloat16(x[token] * (self.weights[token, slot] if self.weighted else 1))
                for token, slot in np.argwhere(self.active)
            }

    def check(self, found):
        """Every row that is owed, and that nothing else was written."""
        blocks, owed = -(-self.hidden // BLOCK), self.owed
        codes, beside = found[0].numpy(), found[1].numpy()
        assert codes.shape[1] == 2 * BLOCK * blocks
        assert beside.shape[0] == self.numbers * blocks
        assert beside.shape[1] % 4 == 0
        free = sorted(set(range(beside.shape[1])) - set(owed))
        assert (codes[[row for row in free if row < len(codes)]] == POISON).all()
        assert (np.ascontiguousarray(beside[:, free]).view(np.uint8) == POISON).all()
        for place, values in owed.items():
            self.check_row(values.astype(np.float64), codes[place].reshape(blocks, 2, BLOCK), beside[:, place])

    def check_row(self, values, codes, beside):
        """One row: its codes [blocks, 2, 128], and what is beside them."""
        blocks = len(codes)
        padded = np.concatenate([values, np.zeros(blocks * BLOCK - len(values))]).reshape(2 * blocks, SHARED)
        parts = oracle.e4m3_value(codes).reshape(blocks, 2, 2, SHARED).transpose(1, 0, 2, 3).reshape(2, -1, SHARED)
        powers = beside.reshape(blocks, -1, 2)[:, 0].ravel().astype(np.float64)
        finite = np.isfinite(padded)
        largest = np.where(finite, np.abs(padded), 0).max(1)
        assert (np.frexp(powers)[0] == 0.5).all()
        held = np.maximum(largest, LEAST)
        assert (held / powers >= 128).all()
        assert (held / powers < 256).all()
        got = parts.sum(0) * powers[:, None]
        assert np.isnan(got[~finite]).all()
        error = np.where(finite, np.abs(np.where(finite, got, 0) - np.where(finite, padded, 0)), 0)
        exact = np.abs(np.where(finite, padded, 0)) >= held[:, None] * EXACT
        assert (error[exact] == 0).all()
        assert (error <= powers[:, None] * HALF_STEP).all()
        assert (codes.transpose(0, 2, 1).reshape(-1, 2)[len(values) :] == 0).all()
        if self.numbers == 4:
            sums = beside.reshape(blocks, -1, 2)[:, 1].ravel().astype(np.float64)
            assert np.array_equal(sums, got.sum(1) / 64, equal_nan=True)


CASES = {
    "three-slots": SplitCase(11, 300),
    "weighted": SplitCase(11, 300, weighted=True, numbers=4),
    "with-sums": SplitCase(11, 300, numbers=4),
    "as-they-are": SplitCase(10, 300, placed=False, numbers=4),
    "one-slot-of-a-short-block": SplitCase(9, 40, top_k=1, numbers=4),
    "many-columns": SplitCase(9, 2184, top_k=2, weighted=True),
    "whole-blocks": SplitCase(37, 256, placed=False),
}
