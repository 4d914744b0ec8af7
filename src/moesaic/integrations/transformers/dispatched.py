"""DispatchedExperts: an experts module of an expert-parallel model, reached through a dispatcher of moesaic.

transformers gives each rank its experts and calls this in the place of the module's forward, with ids of all experts.
Dimensions: T tokens, K slots, H hidden size; ranks that share a batch all hold the same T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from moesaic.batches import Routing, StandardBatch
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.placement import Placement, even_share
from moesaic.errors import PatchError
from moesaic.integrations.transformers.forward import experts_forward
from moesaic.integrations.transformers.state import implementation_of

DISPATCHERS: Mapping[str, type[AllToAll | AllGather]] = {
    "moesaic_all_to_all": AllToAll,
    "moesaic_all_gather": AllGather,
}
"""What the dispatchers are called in transformers."""


@final
class DispatchedExperts:
    """`module`, whose experts are an equal part of all, in order; its forward runs whatever computes them.

    `experts`: the group whose ranks share the experts; `batch`: the group whose ranks hold the same tokens, of which
    each then dispatches its share. All ranks of `experts` make this at the same point of the program. Raises
    DispatchError, the same on all ranks, if they differ; CollectiveError if one is not heard from.
    """

    def __init__(
        self,
        module: nn.Module,
        dispatcher: str,
        experts: ProcessGroup,
        batch: ProcessGroup,
        device: torch.device | str,
    ) -> None:
        self.module = module
        self.forward: Callable[..., Tensor] = module.forward
        ranks, self._sharing = Ranks(experts, device), Ranks(batch, device)
        self.num_local = int(vars(module)["num_experts"])
        placement = Placement.contiguous(self.num_local * ranks.size, ranks.size)
        self.dispatcher = DISPATCHERS[dispatcher](ranks, placement)
        self.dispatcher.agree(self.num_local, {"experts": module.__class__.__name__})

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """What the experts of all ranks make of this rank's tokens: weighted sums `[T, H]`, all of them on each rank.

        Called where the module's parameters are those of this rank alone. Raises GradientError if the tokens require
        gradients, PatchError for experts that moesaic would compute while FSDP manages their memory.
        """
        self._check_memory()
        number, size = len(hidden_states), self._sharing.size
        share = even_share(number, size, self._sharing.rank)
        own = slice(share.start, share.stop)
        weights = top_k_weights[own]
        routing = Routing(top_k_index[own], weights.to(torch.promote_types(weights.dtype, torch.float32)))
        batch, receipt = self.dispatcher.dispatch(hidden_states[own], routing)
        output = self.dispatcher.combine(self._computed(batch), receipt)
        return output if size == 1 else self._gathered(output, number)

    def _computed(self, batch: StandardBatch) -> Tensor:
        """What this rank's experts add up to for each row, in the convention of transformers for what is elsewhere."""
        rows, ids = batch.rows.contiguous(), batch.routing.topk_ids
        if not len(rows):  # no implementation is asked what it does with none
            return torch.zeros_like(rows)
        active = ids >= 0
        index = ids.where(active, self.num_local).long()
        output = self.forward(rows, index, batch.routing.topk_weights.where(active, 0))
        return output.to(rows.dtype)

    def _gathered(self, output: Tensor, number: int) -> Tensor:
        """The outputs of all ranks that share the batch, in order."""
        shares = [len(even_share(number, self._sharing.size, rank)) for rank in range(self._sharing.size)]
        padded = output.new_zeros(shares[0], output.shape[1])
        padded[: len(output)] = output
        every = self._sharing.all_gather(padded, f"{self.dispatcher.name}, the outputs of the shared batch")
        return torch.cat([part[:share] for part, share in zip(every, shares, strict=True)])

    def _check_memory(self) -> None:
        chosen = ALL_EXPERTS_FUNCTIONS.get_interface(implementation_of(self.module) or "eager", self.forward)
        if isinstance(self.module, FSDPModule) and chosen is experts_forward:
            raise PatchError(
                f"{self.module.__class__.__name__} is managed by FSDP, which frees its weights after each call, so no "
                'backend can keep them: load with fsdp_size=1, or with experts_implementation="grouped_mm" (tokens '
                f"still go through {self.dispatcher.name})"
            )
