"""A batch of any layout on a CPU, for a backend that computes rows that lie expert by expert."""

from __future__ import annotations

import torch
from torch import Tensor

from moesaic.backends.cpu_few import Compute, run_few
from moesaic.backends.host_rows import grouped_segments, slab_counts
from moesaic.batches import Batch, BatchedBatch, GroupedBatch
from moesaic.problem import Problem


def run_batch(batch: Batch, problem: Problem, compute: Compute) -> Tensor:
    """What `Backend.run` returns, with the unweighted results of `compute`."""
    match batch:
        case GroupedBatch():
            return _in_place(batch.rows, batch.rows, list(grouped_segments(batch)), compute)
        case BatchedBatch():
            capacity = batch.rows.shape[1]
            counts = enumerate(slab_counts(batch))
            segments = [(e, e * capacity, e * capacity + count) for e, count in counts if count]
            return _in_place(batch.rows, batch.rows.flatten(0, 1), segments, compute)
        case _:
            return run_few(batch.hidden_states, batch.routing, problem, compute)


def _in_place(like: Tensor, rows: Tensor, segments: list[tuple[int, int, int]], compute: Compute) -> Tensor:
    """The results of `segments` (expert, start, stop) of `rows` `[R, H]` in their places, zeros elsewhere."""
    output = torch.zeros_like(like, memory_format=torch.contiguous_format)
    if not segments:
        return output
    places = output.view(-1, rows.shape[1])
    counts = [stop - start for _, start, stop in segments]
    live = torch.cat([rows[start:stop] for _, start, stop in segments])
    results = compute([expert for expert, _, _ in segments], counts, live)
    for (_, start, stop), result in zip(segments, results.split(counts), strict=True):
        places[start:stop] = result
    return output
