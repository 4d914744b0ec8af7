"""RowOrder: which rows belong to which expert, as the products read it. Made by `order_rows.py` and `tile_map.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

BLOCKS_AT, MOST_BLOCKS = 4, 8
"""Where `control` counts what is stored of each block of columns, and how many there may be."""

HEADER = BLOCKS_AT + MOST_BLOCKS
"""Slots of `control` before the flags: the number of tiles, three counters, and one for each block of columns."""

TILE_FIELDS = 5
"""Rows of `tiles`."""


@final
@dataclass(frozen=True, eq=False)
class RowOrder:
    """Rows in expert order, cut into tiles of `tile_rows` rows. All int32, all on the device.

    `pairs` [P]: of each row its pair, token * K + slot; a pair whose slot is inactive has no row. What lies between
    two experts' rows, where they begin at multiples, is undefined. `places` [T * K]: of each pair its row, -1 if it has
    none. `tiles` [5, M]: of each tile its expert, its first row, the end of its rows, the first tile of its group and
    the tiles in its group; a group is a few tiles of one expert that should be computed side by side. A tile past the
    last has the expert -1 and no rows. `control` [12 + M]: the number of tiles, and all zero three counters, those of
    blocks of columns and a flag for each tile.
    """

    pairs: Tensor
    places: Tensor
    tiles: Tensor
    control: Tensor
    tile_rows: int

    @property
    def max_tiles(self) -> int:
        """M: the number of tiles for the worst routing."""
        return self.tiles.shape[1]

    @classmethod
    def empty(cls, num_rows: int, num_pairs: int, max_tiles: int, tile_rows: int, device: torch.device) -> RowOrder:
        """Memory for an order of `num_rows` rows; one allocation."""
        tiles, flags = TILE_FIELDS * max_tiles, HEADER + max_tiles
        # Every piece begins at a multiple of 16 bytes: behind each of them are up to three slots that nobody reads.
        sizes = (num_rows, -num_rows % 4, num_pairs, -num_pairs % 4, tiles, -tiles % 4, flags)
        memory = torch.empty(sum(sizes), dtype=torch.int32, device=device)
        pairs, _, places, _, entries, _, control = memory.split_with_sizes(sizes)
        return cls(pairs, places, entries.view(TILE_FIELDS, max_tiles), control, tile_rows)


def most_tiles(num_pairs: int, num_experts: int, tile_rows: int) -> int:
    """Tiles for the worst routing of `num_pairs` pairs: each touched expert may waste one."""
    return max(1, min(num_pairs, num_pairs // tile_rows + min(num_experts, num_pairs)))


def most_rows(num_pairs: int, num_experts: int, alignment: int) -> int:
    """Rows for the worst routing, where each expert's begin at a multiple of `alignment`."""
    return num_pairs + min(num_experts, num_pairs) * (alignment - 1)
