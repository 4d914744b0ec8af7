"""Routing, and one batch class per layout: tensors together with the contract of `layouts.py`.

Shapes, dtypes and devices are checked when a batch is built; values are not, because a check must not read a
device from the host. Dimensions: T tokens, K slots, L local experts, H hidden size, R rows, C capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from moesaic.checks import instance
from moesaic.errors import BatchError
from moesaic.layouts import BatchedExperts, GroupedContiguous, Layout, PaddedStandard, Standard


@final
@dataclass(frozen=True, eq=False)
class Routing:
    """Which experts, how much: `topk_ids` int32 (int64 is converted) and `topk_weights` float32.

    An id outside `[0, L)` marks an inactive slot, whatever its value; its weight is never read. `identity_weights`,
    if given, is the weight of the hidden state itself (LongCat's "zero experts"), which the layer adds.
    """

    topk_ids: Int[Tensor, "T K"]
    topk_weights: Float[Tensor, "T K"]
    identity_weights: Float[Tensor, " T"] | None = None

    def __post_init__(self) -> None:
        ids, weights = self.topk_ids, self.topk_weights
        _check_tensors(topk_ids=ids, topk_weights=weights)
        if ids.ndim != 2 or ids.shape != weights.shape:
            raise BatchError(
                f"topk_ids is {tuple(ids.shape)} and topk_weights {tuple(weights.shape)}; both need one shape (T, K)"
            )
        if ids.dtype not in (torch.int32, torch.int64):
            raise BatchError(f"topk_ids is {ids.dtype}, but it needs torch.int32 (or torch.int64, which is converted)")
        if weights.dtype not in (torch.float32, torch.float64):
            raise BatchError(f"topk_weights is {weights.dtype}, but it needs torch.float32: convert it with .float()")
        if ids.device != weights.device:
            raise BatchError(f"topk_ids is on {ids.device} and topk_weights on {weights.device}; move one to the other")
        identity = self.identity_weights
        if identity is not None and (identity.shape != ids.shape[:1] or not identity.is_floating_point()):
            raise BatchError(
                f"identity_weights is {identity.dtype} of shape {tuple(identity.shape)}, but it needs torch.float32 of "
                f"shape ({ids.shape[0]},), one for each token"
            )
        if identity is not None and identity.device != ids.device:
            raise BatchError(f"identity_weights is on {identity.device} and topk_ids on {ids.device}; move one of them")
        if ids.dtype == torch.int64:
            # Clamping keeps every id that is out of range of int32 out of the range of any expert.
            object.__setattr__(self, "topk_ids", ids.clamp(-1, 2**31 - 1).to(torch.int32))


@final
@dataclass(frozen=True, eq=False)
class StandardBatch:
    """`hidden_states` in token order, every row defined."""

    hidden_states: Float[Tensor, "T H"]
    routing: Routing

    def __post_init__(self) -> None:
        _check_tokens(self.hidden_states, self.routing)

    @property
    def layout(self) -> Layout:
        """`Standard()`."""
        return Standard()

    @property
    def rows(self) -> Tensor:
        """The tensor of rows, `[T, H]`."""
        return self.hidden_states


@final
@dataclass(frozen=True, eq=False)
class PaddedStandardBatch:
    """`hidden_states` in token order; a row whose slots are all inactive is undefined memory.

    `num_valid`, if given, is a device scalar (int32, shape ()): rows from there on have no active slot.
    """

    hidden_states: Float[Tensor, "T H"]
    routing: Routing
    num_valid: Int[Tensor, ""] | None = None

    def __post_init__(self) -> None:
        _check_tokens(self.hidden_states, self.routing)
        if self.num_valid is not None and (self.num_valid.shape != () or self.num_valid.dtype != torch.int32):
            raise BatchError(
                f"num_valid is {self.num_valid.dtype} of shape {tuple(self.num_valid.shape)}, "
                "but it needs a torch.int32 scalar of shape ()"
            )
        if self.num_valid is not None and self.num_valid.device != self.hidden_states.device:
            raise BatchError(
                f"num_valid is on {self.num_valid.device} and hidden_states on {self.hidden_states.device}; "
                "keep it on the device of the rows"
            )

    @property
    def layout(self) -> Layout:
        """`PaddedStandard()`."""
        return PaddedStandard()

    @property
    def rows(self) -> Tensor:
        """The tensor of rows, `[T, H]`."""
        return self.hidden_states


@final
@dataclass(frozen=True, eq=False)
class GroupedBatch:
    """Rows in expert order: expert e owns rows `offsets[e]` to `offsets[e] + counts[e]`; gaps are undefined.

    For example L=3, alignment 4, counts (2, 0, 3): offsets (0, 4, 4), R at least 7; rows 2 and 3 are a gap.
    """

    rows: Float[Tensor, "R H"]
    offsets: Int[Tensor, " L"]
    counts: Int[Tensor, " L"]
    alignment: int = 1

    def __post_init__(self) -> None:
        _check_tensors(rows=self.rows)
        if self.rows.ndim != 2:
            raise BatchError(f"rows is {tuple(self.rows.shape)}, but GroupedContiguous needs (R, H)")
        _check_per_expert("offsets", self.offsets, self.rows)
        _check_per_expert("counts", self.counts, self.rows)
        if self.offsets.shape != self.counts.shape:
            raise BatchError(
                f"offsets is {tuple(self.offsets.shape)} and counts {tuple(self.counts.shape)}; both need (L,)"
            )
        object.__setattr__(self, "alignment", GroupedContiguous(self.alignment).alignment)

    @property
    def layout(self) -> Layout:
        """`GroupedContiguous(alignment)`."""
        return GroupedContiguous(self.alignment)


@final
@dataclass(frozen=True, eq=False)
class BatchedBatch:
    """One slab of C rows per expert, the first `counts[e]` of them defined."""

    rows: Float[Tensor, "L C H"]
    counts: Int[Tensor, " L"]

    def __post_init__(self) -> None:
        _check_tensors(rows=self.rows)
        if self.rows.ndim != 3:
            raise BatchError(f"rows is {tuple(self.rows.shape)}, but BatchedExperts needs (L, C, H)")
        _check_per_expert("counts", self.counts, self.rows)
        if self.counts.shape[0] != self.rows.shape[0]:
            raise BatchError(
                f"counts has {self.counts.shape[0]} entries, but rows holds {self.rows.shape[0]} experts: "
                "give one count per local expert"
            )

    @property
    def layout(self) -> Layout:
        """`BatchedExperts()`."""
        return BatchedExperts()


Batch: TypeAlias = StandardBatch | PaddedStandardBatch | GroupedBatch | BatchedBatch
"""What a dispatcher hands to the experts."""

TokenBatch: TypeAlias = StandardBatch | PaddedStandardBatch
"""The batches that carry routing."""


def _check_tensors(**values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise BatchError(
                f"{name} is a {value.__class__.__name__}, but it needs a torch.Tensor: torch.as_tensor does"
            )
        if value.layout != torch.strided:
            raise BatchError(f"{name} is stored as {value.layout}, but it needs a dense tensor: {name}.to_dense()")


def _check_tokens(hidden_states: Tensor, routing: Routing) -> None:
    _check_tensors(hidden_states=hidden_states)
    instance("the batch", "routing", routing, Routing, BatchError, example="Routing(topk_ids, topk_weights)")
    ids = routing.topk_ids
    if hidden_states.ndim != 2:
        raise BatchError(
            f"hidden_states is {tuple(hidden_states.shape)}, but it needs (T, H): flatten batch and sequence"
        )
    if hidden_states.shape[0] != ids.shape[0]:
        raise BatchError(
            f"hidden_states has {hidden_states.shape[0]} rows, but the routing is for {ids.shape[0]} tokens"
        )
    if hidden_states.device != ids.device:
        raise BatchError(
            f"hidden_states is on {hidden_states.device} and the routing on {ids.device}; move one of them"
        )
    if not hidden_states.is_floating_point():
        raise BatchError(f"hidden_states is {hidden_states.dtype}, but it needs a floating-point dtype")


def _check_per_expert(name: str, values: Tensor, rows: Tensor) -> None:
    _check_tensors(**{name: values})
    if values.dtype != torch.int32:
        raise BatchError(f"{name} is {values.dtype}, but it needs torch.int32: convert it with .int()")
    if values.ndim != 1:
        raise BatchError(f"{name} is {tuple(values.shape)}, but it needs the shape (L,), one for each local expert")
    if values.device != rows.device:
        raise BatchError(f"{name} is on {values.device} and the rows on {rows.device}; move one to the other")
    if not rows.is_floating_point():
        raise BatchError(f"rows is {rows.dtype}, but it needs a floating-point dtype")
