"""Counts and offsets read on the host, checked against the rows; for backends that loop over experts on a CPU."""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.batches import BatchedBatch, GroupedBatch
from moesaic.errors import BatchError


def grouped_segments(batch: GroupedBatch) -> Iterator[tuple[int, int, int]]:
    """(expert, start, stop) of every expert with rows, in order.

    Raises BatchError if groups overlap, run past the rows, or start off their alignment.
    """
    num_rows, end = batch.rows.shape[0], 0
    for expert, (start, count) in enumerate(zip(batch.offsets.tolist(), batch.counts.tolist(), strict=True)):
        if count <= 0:
            if count < 0:
                raise BatchError(f"counts[{expert}] is {count}, but a count is at least 0")
            continue
        if start % batch.alignment:
            raise BatchError(f"offsets[{expert}] is {start}, but the batch declares multiples of {batch.alignment}")
        if start < end or start + count > num_rows:
            raise BatchError(
                f"expert {expert} owns rows {start} to {start + count}, but it needs rows between {end}, where the "
                f"expert before it ends, and {num_rows}, where the rows end"
            )
        end = start + count
        yield expert, start, end


def slab_counts(batch: BatchedBatch) -> list[int]:
    """The number of defined rows of every expert. Raises BatchError if one is negative or above the capacity."""
    capacity = batch.rows.shape[1]
    counts: list[int] = batch.counts.tolist()
    for expert, count in enumerate(counts):
        if not 0 <= count <= capacity:
            raise BatchError(f"counts[{expert}] is {count}, but a slab holds 0 to {capacity} rows")
    return counts
