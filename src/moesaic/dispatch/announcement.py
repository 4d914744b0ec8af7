"""announce: before rows travel each rank tells all others how many go where, and what they are.

This is the one place where a dispatcher waits for its device on the host. Fixed in size whatever a rank hands in, it
also turns everything that would leave the others waiting, or read another rank's bytes wrongly, into an error on all
ranks: another dispatcher or placement, another dtype or size, tokens that a rank refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor

from moesaic.batches import StandardBatch
from moesaic.dispatch.agreement import apart
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.texts import ranks_named
from moesaic.dispatch.wire import CODED_DTYPES, WIRES, Wire
from moesaic.errors import BatchError, CollectiveError, DispatchError, GradientError
from moesaic.quant import Format, Plain

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)
"""What hidden states may be; an announcement says it as a number."""

FIELDS = (
    "fitness",
    "fingerprint of dispatcher and placement",
    "wire",
    "hidden size",
    "slots a token",
    "dtype",
    "weights' dtype",
)
"""What is announced besides the rows: first 1, or 0 from a rank that has no tokens to hand in."""


@final
@dataclass(frozen=True)
class Announced:
    """`rows[r][s]`: how many rows rank r sends to rank s, the same on every rank; `wire`: what a row is."""

    rows: tuple[tuple[int, ...], ...]
    wire: Wire

    def sent(self, rank: int) -> tuple[int, ...]:
        """How many rows `rank` sends to each rank."""
        return self.rows[rank]

    def got(self, rank: int) -> tuple[int, ...]:
        """How many rows `rank` gets from each rank."""
        return tuple(row[rank] for row in self.rows)


def handed_in(hidden_states: object, routing: object, ranks: Ranks, *, owner: str, wire: Format) -> StandardBatch:
    """The tokens of this rank. If they are none, the other ranks are told before the error is raised.

    Raises BatchError, DispatchError for another device or an unknown dtype, GradientError if they require gradients.
    """
    try:
        return checked_tokens(hidden_states, routing, ranks, wire)
    except BaseException:
        withdraw(ranks, owner=owner)
        raise


def withdraw(ranks: Ranks, *, owner: str) -> None:
    """Announce that this rank has no tokens to hand in; its own error is worth more than that nobody hears of it."""
    with suppress(CollectiveError):
        _exchange(ranks, torch.zeros(len(FIELDS) + ranks.size, dtype=torch.int64, device=ranks.device), owner)


def announce(
    ranks: Ranks, tokens: StandardBatch, counts: Int[Tensor, " N"], *, owner: str, identity: int, wire: Format
) -> Announced:
    """What all ranks announce; `counts` of `tokens` go to each rank as `wire`, which the host need not know.

    Raises DispatchError on every rank, naming the ranks, if one of them has no tokens to hand in or if they do not fit
    together; CollectiveError if a rank is not heard from.
    """
    weights = tokens.routing.topk_weights
    described = (tokens.rows.shape[1], weights.shape[1], DTYPES.index(tokens.rows.dtype), DTYPES.index(weights.dtype))
    fields = torch.tensor((1, identity, WIRES.index(wire), *described))
    found = _exchange(ranks, torch.cat([fields.to(ranks.device, non_blocking=True), counts]), owner)
    _judge(found, owner)
    hidden_size, top_k, dtype, weight_dtype = found[0][3 : len(FIELDS)]
    agreed = Wire(hidden_size, top_k, DTYPES[dtype], DTYPES[weight_dtype], wire)
    return Announced(tuple(tuple(row[len(FIELDS) :]) for row in found), agreed)


def identity(dispatcher: str) -> int:
    """A number that tells dispatchers apart, the same in every process."""
    return int.from_bytes(hashlib.sha256(dispatcher.encode()).digest()[:7])


def _exchange(ranks: Ranks, mine: Tensor, owner: str) -> list[list[int]]:
    return ranks.all_gather(mine, f"{owner}.dispatch, announcing the rows").tolist()


def checked_tokens(hidden_states: Any, routing: Any, ranks: Ranks, wire: Format) -> StandardBatch:
    """The tokens of this rank, looked at on this rank alone. Raises what `handed_in` raises."""
    tokens = StandardBatch(hidden_states, routing)
    rows = tokens.rows
    if rows.device != ranks.device:
        raise DispatchError(f"the tokens are on {rows.device}, but {ranks} exchange what is on {ranks.device}")
    if not rows.shape[1]:
        raise BatchError(f"hidden_states is {tuple(rows.shape)}, but tokens need at least one column to travel")
    if rows.dtype not in DTYPES:
        raise DispatchError(f"hidden_states is {rows.dtype}, but it needs one of {', '.join(map(str, DTYPES))}")
    if wire != Plain() and rows.dtype not in CODED_DTYPES:
        known = ", ".join(map(str, CODED_DTYPES))
        raise DispatchError(
            f"hidden_states is {rows.dtype}, but what travels as {wire!r} needs one of {known}: hand in one of these, "
            "or use wire=Plain()"
        )
    if torch.is_grad_enabled() and (rows.requires_grad or tokens.routing.topk_weights.requires_grad):
        raise GradientError("the tokens require gradients, but ranks exchange none: call it under torch.no_grad()")
    return tokens


def refuse_gradients(rows: Tensor) -> None:
    """Raise GradientError if gradients of the experts' rows are needed, since none would come back through `combine`.

    As of trainable weights, which would be left without any and without a word.
    """
    if torch.is_grad_enabled() and rows.requires_grad:
        raise GradientError(
            "the experts' rows require gradients, as those of trainable weights do, but ranks exchange none: call it "
            "under torch.no_grad(), or train on one rank with Local()"
        )


def _judge(found: Sequence[Sequence[int]], owner: str) -> None:
    fit, *columns = list(zip(*found, strict=True))[: len(FIELDS)]
    if not all(fit):
        unfit = [rank for rank, value in enumerate(fit) if not value]
        raise DispatchError(f"{owner}: no tokens came from {ranks_named(unfit)}, whose own error says why")
    for name, column in zip(FIELDS[1:], columns, strict=True):
        if len(set(column)) > 1:
            known = DTYPES if name.endswith("dtype") else WIRES if name == "wire" else None
            shown = [str(value if known is None else known[value]) for value in column]
            raise DispatchError(f"{owner}: the ranks differ in {name}: {apart(shown)}")
