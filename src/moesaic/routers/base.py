"""Router: WHICH experts a token goes to, and with what weight. Nothing else in the package knows routers.

Dimensions: T tokens, E experts of the model (logical, all ranks), K slots per token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from moesaic.batches import Routing
from moesaic.errors import RouterError


@dataclass(frozen=True)
class Router(ABC):
    """A rule from logits to `Routing`, computed in float32.

    The routed scaling factor, where a model multiplies it into the weights, belongs here and nowhere else. Ties
    go to the lower expert id. A row of NaN logits gives distinct ids with NaN weights, never one id K times.
    To add one, copy a file beside this.
    """

    @abstractmethod
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        """Route every token. `token_ids` is read by hash routers only.

        Raises RouterError if E or the dtype does not fit the router's fields.
        """


def check_logits(owner: Router, logits: Tensor, *, top_k: int, num_experts: int | None = None) -> None:
    """Raise RouterError unless `logits` are floating, (T, E) with E at least `top_k` and, if given, `num_experts`."""
    name = type(owner).__name__
    if logits.ndim != 2 or not logits.is_floating_point():
        raise RouterError(f"{name} got logits {logits.dtype} {tuple(logits.shape)}, but it needs floating (T, E)")
    if num_experts is not None and logits.shape[1] != num_experts:
        raise RouterError(f"{name} is for {num_experts} experts, but the logits have {logits.shape[1]} columns")
    if logits.shape[1] < top_k:
        raise RouterError(f"{name}.top_k is {top_k}, but there are only {logits.shape[1]} experts")
