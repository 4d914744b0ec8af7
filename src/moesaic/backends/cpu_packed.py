"""One projection of every expert where oneDNN packed it, for a kernel that reads that memory without oneDNN."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from moesaic.backends.cpu_projection import Projection

BLOCK_COLUMNS: tuple[int, ...] = (64, 32)
"""Columns of one packed block that the kernel knows; oneDNN takes 32 with AMX, 64 without, at most shapes."""


@final
@dataclass(frozen=True, eq=False)
class PackedProjection:
    """`rows @ W_e.T + b_e` for the rows of several experts at once, in float32.

    `addresses`: int64 `[E]`, of the packed weights that `projections` own. `biases`: float32 `[E, columns]`, zero
    where there is none, columns padded to whole blocks. `depth`: of the rows, padded as the weights are.
    """

    projections: Sequence[Projection]
    addresses: Tensor
    biases: Tensor
    shape: tuple[int, int]
    depth: int
    block_columns: int
    tiles: bool
    """Whether this processor has AMX, and this process its system's leave to use it."""

    @classmethod
    def of(cls, projections: Sequence[Projection], bias: Tensor | None, shape: tuple[int, int]) -> PackedProjection:
        """Find out how oneDNN packed weights of `shape`.

        A packing that the kernel does not know (none is known of torch 2.11 to 2.13) is left to oneDNN: as slow as Cpu.
        """
        block_columns, depth = packing_of(shape)
        padding = -shape[0] % block_columns if block_columns else 0
        biases = torch.zeros(len(projections), shape[0] + padding)
        if bias is not None:
            biases[:, : shape[0]] = bias.detach()
        addresses = [torch.ops.mkldnn.data_ptr(p.weight) for p in projections] if block_columns else []
        return cls(
            projections,
            torch.tensor(addresses, dtype=torch.int64),
            biases,
            shape,
            depth,
            block_columns,
            tiles=_has_tiles(),
        )

    def __call__(self, experts: list[int], counts: list[int], rows: Tensor) -> Tensor:
        """`[S, columns]` for `rows`, bfloat16 `[S, depth]`, expert by expert, zero behind the real columns."""
        if not self.block_columns:
            return self._by_onednn(experts, counts, rows)
        starts = (0, *itertools.accumulate(counts))
        groups = list(zip(experts, starts, counts, strict=False))
        out = torch.empty(rows.shape[0], self.biases.shape[1])
        if self.tiles:
            from moesaic.kernels.tiled_product import tiled_product  # noqa: PLC0415

            tiled_product(self.addresses, self.biases, groups, rows, out, self.block_columns)
        else:
            from moesaic.kernels.packed_product import packed_product  # noqa: PLC0415

            packed_product(self.addresses, self.biases, groups, rows, out, self.block_columns)
        return out[:, : self.shape[0]]

    def _by_onednn(self, experts: list[int], counts: list[int], rows: Tensor) -> Tensor:
        pieces = rows[:, : self.shape[1]].split(counts)
        products = [self.projections[e](piece.contiguous()) for e, piece in zip(experts, pieces, strict=True)]
        return torch.cat(products).float() if products else torch.empty(0, self.shape[0])


def packing_of(shape: tuple[int, int]) -> tuple[int, int]:
    """(columns of a block, padded depth) of bfloat16 weights of `shape` `[columns, depth]`; (0, depth) if unknown.

    Found by packing numbers and looking where they lie, since oneDNN promises no layout.
    """
    columns, depth = shape
    numbers = torch.randint(0x7F00, shape, dtype=torch.int16, generator=torch.Generator().manual_seed(0))
    packed = Projection.of(numbers.view(torch.bfloat16), None)
    if not packed.packed:
        return 0, depth
    address, size = torch.ops.mkldnn.data_ptr(packed.weight), torch.ops.mkldnn._nbytes(packed.weight)  # noqa: SLF001
    found = torch.frombuffer(bytearray(ctypes.string_at(address, size)), dtype=torch.int16)
    for block in BLOCK_COLUMNS:
        padded = columns + -columns % block
        padded_depth = found.numel() // padded
        if padded * padded_depth == found.numel() and padded_depth % 2 == 0 and padded_depth >= depth:
            whole = functional.pad(numbers, (0, padded_depth - depth, 0, padded - columns))
            blocks = whole.view(padded // block, block, padded_depth // 2, 2).transpose(1, 2)
            if torch.equal(blocks.flatten(), found):
                return block, padded_depth
    return 0, depth


def _has_tiles() -> bool:
    supported: bool = torch.cpu._is_amx_tile_supported()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return supported and bool(torch.cpu._init_amx())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
