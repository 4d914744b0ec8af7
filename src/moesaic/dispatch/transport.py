"""Transport: how rows of all ranks come to lie on one rank, and the values that one is given and gives.

Dimensions: N ranks, T tokens of all ranks together in the order of ranks, K slots, H hidden size, L experts of the
rank. What a transport does not write is undefined memory and holds the fleet's poison.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.batches import Batch
from moesaic.checks import whole_number
from moesaic.errors import DispatchError
from moesaic.layouts import Layout


@final
@dataclass(frozen=True)
class Memory:
    """Memory as a transport finds it: `poison` everywhere, rows as wide as the next multiple of `hidden_multiple`."""

    poison: float
    hidden_multiple: int

    def rows(self, like: Tensor, *shape: int) -> Tensor:
        """`[*shape, H]` with H of `like`, cut out of rows that are as wide as the transport moves them."""
        hidden = like.shape[-1]
        wide = -(-hidden // self.hidden_multiple) * self.hidden_multiple
        return like.new_full((*shape, wide), self.poison)[..., :hidden]

    def weights(self, like: Tensor, *shape: int) -> Tensor:
        """Router weights that nobody may read."""
        return like.new_full(shape, self.poison)


@final
@dataclass(frozen=True, eq=False)
class Sent:
    """What all ranks hand in: `hidden_states [T, H]`, `ids [T, K]` int64, `weights [T, K]`, and each token's rank."""

    hidden_states: Tensor
    ids: Tensor
    weights: Tensor
    rank: Tensor
    num_ranks: int
    weight_on_input: bool

    def local(self, experts: range) -> tuple[Tensor, Tensor]:
        """The ids of a rank that holds `experts`, and which slots name one of them."""
        local = self.ids - experts.start
        return local, (local >= 0) & (local < len(experts))


@final
@dataclass(frozen=True, eq=False)
class Arrived:
    """Where the contributions to the output lie in a rank's batch: one per entry.

    `place`: row of the batch, slabs one behind the other. `token`: of all ranks' tokens. `turn`: its place in the sum
    over a token, which makes the order of the sum fixed. `weight`: what multiplies it; None if it is weighted already.
    """

    place: Tensor
    token: Tensor
    turn: Tensor
    weight: Tensor | None


@dataclass(frozen=True)
class Transport(ABC):
    """How rows arrive. To add one, copy a class of this file: a layout, and `deliver`."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How the rows lie that arrive."""

    @property
    def max_tokens_per_rank(self) -> int | None:
        """The most tokens that a rank may hand in; None if any number."""
        return None

    @abstractmethod
    def deliver(self, sent: Sent, experts: range, memory: Memory) -> tuple[Batch, Arrived]:
        """What a rank gets that holds `experts`."""


def check_max_tokens(transport: Transport, max_tokens: int) -> None:
    """Store `max_tokens` as a plain int; raises DispatchError if it is none, or below one."""
    checked = whole_number(transport.__class__.__name__, "max_tokens", max_tokens, DispatchError)
    object.__setattr__(transport, "max_tokens", checked)


def within(group: Tensor) -> Tensor:
    """The place of each entry among those of its group, for groups that do not fall: 0 0 1 1 1 gives 0 1 0 1 2."""
    return torch.arange(len(group), device=group.device) - torch.searchsorted(group, group)
