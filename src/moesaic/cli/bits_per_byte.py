"""Bits per byte of a text under a causal language model: what the text would cost to store, lower is better."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

from moesaic.cli.text_coder import TextCoder
from moesaic.errors import CheckpointError

WINDOW = 512
"""Bytes that are read on their own, without what stands before them."""

BATCH = 16


def cut_windows(text: bytes, limit: int | None) -> tuple[bytes, ...]:
    """Windows of `WINDOW` bytes that do not overlap, a shorter last one dropped; `limit` of them, evenly spread."""
    starts = range(0, len(text) - WINDOW + 1, WINDOW)
    if not starts:
        raise CheckpointError(f"the text has {len(text)} bytes, but a window needs {WINDOW}: give a longer text")
    step = 1 if limit is None else max(1, len(starts) // limit)
    return tuple(text[start : start + WINDOW] for start in starts[::step][:limit])


@torch.no_grad()
def bits_per_byte(model: Any, coder: TextCoder, windows: Sequence[bytes]) -> float:
    """Cross entropy of every id but a window's first, in bits, over the bytes that these ids stand for.

    With a model of bytes: over the 511 predictions of each window of 512.
    """
    nats, num_bytes = 0.0, 0
    for batch in _batches([coder.encode(window) for window in windows]):
        ids = torch.tensor(batch, device=model.device)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        nats += float(functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"))
        num_bytes += sum(coder.num_bytes(row) - coder.num_bytes(row[:1]) for row in batch)
    return nats / math.log(2) / num_bytes


def _batches(rows: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Neighbours of one length together, `BATCH` at most."""
    batch: list[list[int]] = []
    for row in rows:
        if batch and (len(batch) == BATCH or len(row) != len(batch[0])):
            yield batch
            batch = []
        batch.append(row)
    yield batch
