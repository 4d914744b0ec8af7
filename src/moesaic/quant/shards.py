"""A share of the rows or columns of a stored tensor, with its data and scales, as a tensor of its own."""

from __future__ import annotations

import torch

from moesaic.errors import WeightsError
from moesaic.quant.base import Quantized


def shard(stored: Quantized, name: str, dimension: int, index: int, count: int) -> Quantized:
    """Share `index` of `count` of the rows of each part (`dimension` -2) or of the columns (-1), copied.

    `count` divides their number. Raises WeightsError, which calls the tensor `name`, if any of the shares would begin
    or end inside of a tile that it does not lie in: the rest of that tile's data or scale is another share's.
    """
    split = stored.split()
    whole = split.shape[dimension]
    share = whole // count
    tiles = {tensor: tile[dimension] for tensor, tile in stored.format.tiles(*split.shape[-2:]).items()}
    _refuse(stored, name, dimension, count, tiles)
    cut = {}
    for tensor, values in {"data": split.data, **split.scales}.items():
        first = index * share // tiles[tensor]
        behind = -(-(index + 1) * share // tiles[tensor])
        cut[tensor] = values.narrow(dimension, first, behind - first).clone(memory_format=torch.contiguous_format)
    made = Quantized(stored.format, cut.pop("data"), cut)
    return made.join() if stored.parts > 1 else made


def _refuse(stored: Quantized, name: str, dimension: int, count: int, tiles: dict[str, int]) -> None:
    whole = stored.split().shape[dimension]
    share = whole // count

    def fits(tensor: str, tile: int) -> bool:
        """Whole tiles; or all shares within one, so that each has its scale (an element of data has one owner)."""
        return share % tile == 0 or share == whole or (tensor != "data" and (tile % share == 0 or whole <= tile))

    tile, tensor = max(((tile, tensor) for tensor, tile in tiles.items() if not fits(tensor, tile)), default=(0, ""))
    if tensor:
        needed = f"multiples of {tile}" if tensor == "data" else f"multiples or divisors of {tile}"
        raise WeightsError(
            f"{name}: I={whole} over {count} shards gives {share} {'rows' if dimension == -2 else 'columns'}, but "
            f"{stored.format!r} has one element of {tensor} for {tile} and needs {needed}: choose another number of "
            "shards, or cut the plain weights and quantize each shard"
        )
