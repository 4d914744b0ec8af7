"""Batches in every layout, undefined memory filled with NaN or with a large finite value, and the expected rows."""

import numpy as np
import torch

from moesaic import (
    BatchedBatch,
    BatchedExperts,
    GroupedBatch,
    GroupedContiguous,
    PaddedStandard,
    PaddedStandardBatch,
    Routing,
    StandardBatch,
)
from tests.backends import example, numpy_oracle

COUNTS = (7, 1, 0, 11, 4)
"""Rows per expert in the layouts without routing; expert 2 is empty."""


def feed(case, given, poison):
    """(batch, expected array, mask of defined output rows) for the layout of `case`."""
    oracle = example.as_oracle(case, given)
    match case.layout:
        case GroupedContiguous(alignment):
            return _grouped(case, oracle, alignment, poison)
        case BatchedExperts():
            return _batched(case, oracle, poison)
        case _:
            return _tokens(case, oracle, poison)


def _tokens(case, oracle, poison, num_tokens=19):
    rows, routing = example.rows(case, num_tokens), example.routing(case, num_tokens)
    if not isinstance(case.layout, PaddedStandard):
        batch = StandardBatch(rows, routing)
        return batch, _expected(rows, routing, oracle), np.ones(num_tokens, dtype=bool)
    ids = routing.topk_ids.clone()
    padding = torch.tensor([0, 7, 8, 17, 18])
    ids[padding] = torch.tensor(example.GARBAGE_IDS[: len(padding)], dtype=torch.int32).unsqueeze(1)
    rows[padding] = poison
    weights = routing.topk_weights.clone()
    weights[padding] = float("nan")
    batch = PaddedStandardBatch(rows, Routing(ids, weights), num_valid=torch.tensor(17, dtype=torch.int32))
    live = ((ids >= 0) & (ids < case.num_experts)).any(1).numpy()
    expected = np.zeros(tuple(rows.shape))
    expected[live] = _expected(rows[live], Routing(ids[live], weights[live]), oracle)
    return batch, expected, live


def _expected(rows, routing, oracle):
    weights = np.nan_to_num(routing.topk_weights.double().numpy())
    return numpy_oracle.tokens(rows.double().numpy(), routing.topk_ids.numpy(), weights, oracle)


def _grouped(case, oracle, alignment, poison):
    gap = 3 if alignment > 1 else 0
    offsets, at = [], gap * alignment
    for count in COUNTS:
        offsets.append(at)
        at += -(-count // alignment) * alignment + gap * alignment
    rows = torch.full((at + 5, case.hidden_size), poison, dtype=case.dtype)
    expected, live = np.zeros(tuple(rows.shape)), np.zeros(len(rows), dtype=bool)
    source = example.rows(case, sum(COUNTS))
    taken = 0
    for expert, (start, count) in enumerate(zip(offsets, COUNTS, strict=True)):
        for r in range(start, start + count):
            rows[r] = source[taken]
            expected[r] = numpy_oracle.one_row(rows[r].double().numpy(), expert, oracle)
            live[r], taken = True, taken + 1
    index = {"dtype": torch.int32}
    return GroupedBatch(rows, torch.tensor(offsets, **index), torch.tensor(COUNTS, **index), alignment), expected, live


def _batched(case, oracle, poison, capacity=13):
    rows = torch.full((len(COUNTS), capacity, case.hidden_size), poison, dtype=case.dtype)
    expected, live = np.zeros(tuple(rows.shape)), np.zeros(rows.shape[:2], dtype=bool)
    source, taken = example.rows(case, sum(COUNTS)), 0
    for expert, count in enumerate(COUNTS):
        for r in range(count):
            rows[expert, r] = source[taken]
            expected[expert, r] = numpy_oracle.one_row(source[taken].double().numpy(), expert, oracle)
            live[expert, r], taken = True, taken + 1
    return BatchedBatch(rows, torch.tensor(COUNTS, dtype=torch.int32)), expected, live


def moved(batch, device):
    """The same batch on another device."""
    match batch:
        case GroupedBatch():
            return GroupedBatch(
                batch.rows.to(device), batch.offsets.to(device), batch.counts.to(device), batch.alignment
            )
        case BatchedBatch():
            return BatchedBatch(batch.rows.to(device), batch.counts.to(device))
    routing = Routing(batch.routing.topk_ids.to(device), batch.routing.topk_weights.to(device))
    if isinstance(batch, PaddedStandardBatch):
        return PaddedStandardBatch(batch.hidden_states.to(device), routing, batch.num_valid.to(device))
    return StandardBatch(batch.hidden_states.to(device), routing)


def copy_into(target, source):
    """Overwrite the tensors of `target` with those of `source`, in place, as a captured graph needs it."""
    for name in ("rows", "offsets", "counts"):
        if isinstance(target, GroupedBatch | BatchedBatch) and hasattr(target, name):
            getattr(target, name).copy_(getattr(source, name))
    if isinstance(target, StandardBatch | PaddedStandardBatch):
        target.hidden_states.copy_(source.hidden_states)
        target.routing.topk_ids.copy_(source.routing.topk_ids)
        target.routing.topk_weights.copy_(source.routing.topk_weights)
