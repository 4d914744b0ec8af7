"""Router: WHICH experts a token goes to, and with what weight. Nothing else in the package knows routers.

Dimensions: T tokens, E experts of the model (logical, all ranks), K slots per token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from moesaic.batches import Routing
from moesaic.errors import RouterError
from moesaic.routers.fields import check_fields


@dataclass(frozen=True, eq=False)
class Router(ABC):
    """A rule from logits to `Routing`, computed in float32 (in float64 if the logits are float64).

    The routed scaling factor, where a model multiplies it into the weights, belongs here and nowhere else. Ties
    go to the lower expert id. A NaN score counts as the highest one: it is selected, its weight is NaN, and the ids
    of a row stay distinct and in range, never one id K times. Other rows are unaffected. Infinite logits follow the
    rule's formula: softmax of a row that holds +inf, or nothing but -inf, is NaN; a sigmoid gives 1 and 0. No
    router reads a device value on the host, and every shape follows from the fields and T.

    To add one, copy a file beside this: a final frozen dataclass whose fields declare their kind (`fields.py`).
    One without tensors is compared and hashed by its fields, and its repr evaluates; one that holds a tensor is
    declared with `eq=False` and compared by identity.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        """Route every token. `token_ids` is read by hash routers only.

        Raises RouterError if E or the dtype does not fit the router's fields, or its tensors are elsewhere.
        """

    def stated(self, field: str) -> int | None:
        """The value of `field` ("num_experts" or "top_k") if this router states it before it is called."""
        return next((getattr(self, f.name) for f in fields(self) if f.name == field), None)

    def to(self, device: torch.device | str) -> Router:
        """The same router with its tensors on `device`; itself if it holds none."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {name: value.to(device) for name, value in held.items() if isinstance(value, Tensor)}
        return replace(self, **moved) if moved else self


def float_logits(owner: Router, logits: Tensor, num_logits: int | None = None) -> Tensor:
    """`logits` as float32 (float64 stays).

    Raises RouterError unless they are floating, (T, num_logits) and on the device of every tensor of `owner`.
    """
    name = type(owner).__name__
    if logits.ndim != 2 or not logits.is_floating_point():
        raise RouterError(
            f"{name} got logits of {logits.dtype} and shape {tuple(logits.shape)}, but it needs floating (T, E)"
        )
    if num_logits is not None and logits.shape[1] != num_logits:
        raise RouterError(
            f"{name} is for {num_logits} logits per token, but it got {logits.shape[1]}: "
            f"give it the router projection's output, (T, {num_logits})"
        )
    for f in fields(owner):
        value = getattr(owner, f.name)
        if isinstance(value, Tensor) and value.device != logits.device:
            raise RouterError(
                f"{name}.{f.name} is on {value.device} and the logits on {logits.device}: "
                f'move the router with .to("{logits.device}")'
            )
    return logits if logits.dtype == torch.float64 else logits.float()
