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
    def of(cls, projections: Sequence[Projection], bias: Tensor | None, weight: Tensor) -> PackedProjection:
        """Find out how oneDNN packed; `weight`, `[columns, depth]`, is that of the first of `projections`.

        A packing that the kernel does not know (none is known of torch 2.11 to 2.13) is left to oneDNN: as slow as Cpu.
        """
        columns, depth = weight.shape
        block_columns, padded_depth = packing_of(projections[0], weight)
        padding = -columns % block_columns if block_columns else 0
        biases = torch.zeros(len(projections), columns + padding, dtype=torch.float32, device="cpu")
        if bias is not None:
            biases[:, :columns] = bias.detach()
        addresses = [torch.ops.mkldnn.data_ptr(p.weight) for p in projections] if block_columns else []
        return cls(
            projections,
            torch.tensor(addresses, dtype=torch.int64, device="cpu"),
            biases,
            (columns, depth),
            padded_depth,
            block_columns,
            tiles=_has_tiles(),
        )

    def __call__(self, experts: list[int], counts: list[int], rows: Tensor) -> Tensor:
        """`[S, columns]` for `rows`, bfloat16 `[S, depth]`, expert by expert, zero behind the real columns."""
        if not self.block_columns:
            return self._by_onednn(experts, counts, rows)
        starts = (0, *itertools.accumulate(counts))
        groups = list(zip(experts, starts, counts, strict=False))
        out = self.biases.new_empty(rows.shape[0], self.biases.shape[1])
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
        return torch.cat(products).float() if products else self.biases.new_empty(0, self.shape[0])


def packing_of(projection: Projection, weight: Tensor) -> tuple[int, int]:
    """(columns of a block, padded depth) of `projection`, which packed `weight` `[columns, depth]`.

    The block is 0 if oneDNN's layout is unknown, or Numba of no use. oneDNN promises no layout, so every value is
    looked for where the kernel would read it. A weight whose values are all equal, and so are found in any layout, is
    tried again with numbers that differ.
    """
    from moesaic.kernels.parallel_loop import is_usable  # noqa: PLC0415

    if not projection.packed or not is_usable():
        return 0, weight.shape[1]
    found = _readings(projection, weight)
    if len(found) > 1:
        generator = torch.Generator("cpu").manual_seed(0)
        numbers = torch.randint(0x7F00, tuple(weight.shape), dtype=torch.int16, generator=generator, device="cpu")
        values = numbers.view(torch.bfloat16)
        # One block of one pair reads the same in any width, so several may be left: each is right.
        found = _readings(Projection.of(values, None), values)
    return found[0] if found else (0, weight.shape[1])


def _readings(projection: Projection, weight: Tensor) -> list[tuple[int, int]]:
    return [(block, depth) for block in BLOCK_COLUMNS if (depth := _depth_if_read_as(projection, weight, block))]


def _depth_if_read_as(projection: Projection, weight: Tensor, block: int) -> int:
    """The padded depth if the packed memory holds `weight`, zeros behind it, in blocks of `block` columns; else 0."""
    columns, depth = weight.shape
    address, size = torch.ops.mkldnn.data_ptr(projection.weight), torch.ops.mkldnn._nbytes(projection.weight)  # noqa: SLF001
    memory = torch.frombuffer((ctypes.c_int16 * (size // 2)).from_address(address), dtype=torch.int16)
    blocks = -(-columns // block)
    padded_depth = memory.numel() // (blocks * block)
    if padded_depth * blocks * block != memory.numel() or padded_depth % 2 or padded_depth < depth:
        return 0
    for i, packed in enumerate(memory.view(blocks, padded_depth // 2, block, 2)):
        wanted = weight[i * block : (i + 1) * block].contiguous().view(torch.int16)
        wanted = functional.pad(wanted, (0, padded_depth - depth, 0, block - wanted.shape[0]))
        if not torch.equal(packed.transpose(0, 1).reshape(block, padded_depth), wanted):
            return 0
    return padded_depth


def _has_tiles() -> bool:
    supported: bool = torch.cpu._is_amx_tile_supported()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return supported and bool(torch.cpu._init_amx())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
