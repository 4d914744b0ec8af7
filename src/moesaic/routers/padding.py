"""Padding rows, such as those that fill a captured graph, go to no expert."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from moesaic.batches import Routing
from moesaic.checks import whole_number
from moesaic.errors import RouterError


def deactivate_padding(routing: Routing, num_valid: Int[Tensor, ""] | int) -> Routing:
    """`routing` with every slot of the rows from `num_valid` on inactive: id -1, weight 0, identity weight 0.

    `num_valid` may be a device scalar, as in `PaddedStandardBatch`; it is never read on the host. The rows before it
    are unchanged, bit for bit; whatever the padding rows hold, NaN included, is gone.
    """
    if isinstance(num_valid, Tensor):
        if num_valid.shape != () or num_valid.dtype not in (torch.int32, torch.int64):
            raise RouterError(
                f"num_valid is {num_valid.dtype} of shape {tuple(num_valid.shape)}, "
                "but it needs a whole number or a torch.int32 scalar of shape ()"
            )
    else:
        whole_number("deactivate_padding", "num_valid", num_valid, RouterError, at_least=0)
    padding = torch.arange(routing.topk_ids.shape[0], device=routing.topk_ids.device) >= num_valid
    identity = routing.identity_weights
    return Routing(
        routing.topk_ids.masked_fill(padding.unsqueeze(-1), -1),
        routing.topk_weights.masked_fill(padding.unsqueeze(-1), 0.0),
        None if identity is None else identity.masked_fill(padding, 0.0),
    )
