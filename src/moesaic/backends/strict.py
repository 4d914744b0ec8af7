"""check: everything that a batch promises, read on the host; for whoever writes a dispatcher.

`batches.py` checks shapes and dtypes; what is checked here are values, which no backend may read on a GPU. So a
broken promise shows there as a wrong answer, and under `Reference(strict=True)` as an error that names it.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch, TokenBatch
from moesaic.errors import BatchError
from moesaic.problem import Problem


def check(batch: Batch, problem: Problem) -> None:
    """Raise BatchError unless `batch` keeps every promise of its layout and of `problem`.

    Live rows and the weights of active slots need to be finite: the tokens of a dispatcher's test are, so anything
    else is memory that nobody wrote. Ids outside of `[0, L)` are inactive whatever they are, and never refused.
    """
    if not problem.layout.accepts(batch.layout):
        raise BatchError(f"the batch is {batch.layout!r}, but the problem was bound with layout={problem.layout!r}")
    match batch:
        case GroupedBatch():
            _check_grouped(batch, problem)
        case BatchedBatch():
            _check_batched(batch, problem)
        case _:
            _check_tokens(batch, problem)


def _check_tokens(batch: TokenBatch, problem: Problem) -> None:
    ids, weights = batch.routing.topk_ids, batch.routing.topk_weights
    if ids.shape[1] > problem.top_k:
        raise BatchError(f"the routing has {ids.shape[1]} slots a token, but the problem has top_k={problem.top_k}")
    active = (ids >= 0) & (ids < problem.num_experts)
    live = active.any(1)
    if isinstance(batch, PaddedStandardBatch):
        _check_num_valid(batch, live)
        # A row without an active slot is padding here, whatever the problem says of inactive slots.
        partly = live & ~active.all(1)
    else:
        live, partly = torch.ones_like(live), ~active.all(1)
    if not problem.inactive_slots and bool(partly.any()):
        token = _first(partly)
        raise BatchError(
            f"row {token} has the ids {ids[token].tolist()}, of which not all are of {problem.num_experts} local "
            "experts, but the problem has inactive_slots=False: name experts only, or bind it with inactive_slots=True"
        )
    if not problem.duplicate_ids:
        _check_distinct(ids, active)
    wrong = active & ~weights.isfinite()
    if bool(wrong.any()):
        token = _first(wrong.any(1))
        slot = _first(wrong[token])
        raise BatchError(
            f"the weight of row {token} slot {slot} is {float(weights[token, slot])}, but the slot is active (expert "
            f"{int(ids[token, slot])}): write its weight, or give it the id -1"
        )
    _check_finite(batch.hidden_states, live, "rows without an active slot may be undefined under PaddedStandard only")


def _check_num_valid(batch: PaddedStandardBatch, live: Tensor) -> None:
    if batch.num_valid is None:
        return
    num_valid, num_rows = int(batch.num_valid), len(live)
    if not 0 <= num_valid <= num_rows:
        raise BatchError(f"num_valid is {num_valid}, but the batch has {num_rows} rows: it needs 0 to {num_rows}")
    if bool(live[num_valid:].any()):
        token = num_valid + _first(live[num_valid:])
        raise BatchError(
            f"num_valid is {num_valid}, but row {token} has the active ids {batch.routing.topk_ids[token].tolist()}: "
            "count that row, or give it the ids -1"
        )


def _check_distinct(ids: Tensor, active: Tensor) -> None:
    same = (ids.unsqueeze(1) == ids.unsqueeze(2)) & active.unsqueeze(1) & active.unsqueeze(2)
    repeated = same.triu(1).flatten(1).any(1)
    if bool(repeated.any()):
        token = _first(repeated)
        raise BatchError(
            f"row {token} names an expert twice ({ids[token].tolist()}), but the problem has duplicate_ids=False: add "
            "the weights up into one slot, or bind it with duplicate_ids=True"
        )


def _check_grouped(batch: GroupedBatch, problem: Problem) -> None:
    offsets, counts, num_rows = batch.offsets.tolist(), batch.counts.tolist(), len(batch.rows)
    _check_experts(len(counts), problem)
    for expert, (start, count) in enumerate(zip(offsets, counts, strict=True)):
        if count < 0:
            raise BatchError(f"counts[{expert}] is {count}, but it needs at least 0")
        if start % batch.alignment:
            raise BatchError(
                f"offsets[{expert}] is {start}, but the batch declares multiples of {batch.alignment}: round every "
                "group up, empty ones too"
            )
        if start < 0 or start + count > num_rows:
            raise BatchError(
                f"expert {expert} owns rows {start} to {start + count}, but the batch has rows 0 to {num_rows}"
            )
    for expert, ((start, following), count) in enumerate(zip(pairwise(offsets), counts, strict=False)):
        if following < start:
            raise BatchError(
                f"offsets[{expert + 1}] is {following} behind offsets[{expert}], which is {start}: offsets do not "
                "decrease, those of empty experts neither"
            )
        if following < start + count:
            raise BatchError(
                f"expert {expert} owns rows {start} to {start + count}, but expert {expert + 1} begins at {following}: "
                "groups do not overlap"
            )
    live = torch.zeros(num_rows, dtype=torch.bool, device=batch.rows.device)
    for start, count in zip(offsets, counts, strict=True):
        live[start : start + count] = True
    _check_finite(batch.rows, live, "offsets or counts may be those of other rows")


def _check_batched(batch: BatchedBatch, problem: Problem) -> None:
    counts, capacity = batch.counts.tolist(), batch.rows.shape[1]
    _check_experts(len(counts), problem)
    for expert, count in enumerate(counts):
        if not 0 <= count <= capacity:
            raise BatchError(f"counts[{expert}] is {count}, but a slab holds 0 to {capacity} rows")
    live = torch.arange(capacity, device=batch.rows.device) < batch.counts.unsqueeze(1)
    _check_finite(batch.rows.flatten(0, 1), live.flatten(), f"row r of expert e is e * {capacity} + r here")


def _check_experts(given: int, problem: Problem) -> None:
    if given != problem.num_experts:
        raise BatchError(
            f"counts has {given} entries, but the problem has {problem.num_experts} local experts: give one for each"
        )


def _check_finite(rows: Tensor, live: Tensor, hint: str) -> None:
    wrong = live & ~rows.isfinite().all(-1)
    if bool(wrong.any()):
        row = _first(wrong)
        column = _first(~rows[row].isfinite())
        raise BatchError(
            f"row {row} is live, but column {column} of it is {float(rows[row, column])}: a live row needs the token "
            f"that was sent ({hint})"
        )


def _first(where: Tensor) -> int:
    return int(where.nonzero()[0])
