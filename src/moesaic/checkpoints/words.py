"""Words of 32 bits that hold eight codes, and the order of columns that goes with them."""

from __future__ import annotations

import torch
from torch import Tensor

from moesaic.checkpoints.matrix import StoredMatrix


def bytes_of_words(words: Tensor) -> Tensor:
    """int32 `[..., W]` as uint8 `[..., 4 W]`, the lowest bits first (files are little-endian, and so are machines)."""
    return words.flatten().view(torch.uint8).unflatten(0, (*words.shape[:-1], 4 * words.shape[-1]))


def words_of_bytes(data: Tensor) -> Tensor:
    """The opposite of `bytes_of_words`."""
    # Flattened first: strides along a dimension of one are anything, and no such tensor is viewed in wider words.
    return data.flatten().view(torch.int32).unflatten(0, (*data.shape[:-1], data.shape[-1] // 4))


def check_order(matrix: StoredMatrix, suffix: str, columns: int, group: int) -> None:
    """Raise CheckpointError if `suffix` is there and says that a column's group is not that of its place."""
    if not matrix.has(suffix):
        return
    found = matrix.read(suffix, (torch.int32, torch.int64), (columns,)).to(torch.int64)
    moved = (found != torch.arange(columns) // group).nonzero()
    if len(moved):
        column = int(moved[0].item())
        needed = (
            f"{column // group}, its place over {group}: groups in the order of activations (desc_act, actorder=group) "
            "are in no format of moesaic; quantize without them"
        )
        raise matrix.fault(suffix, f"[{column}] is {int(found[column].item())}", needed)
