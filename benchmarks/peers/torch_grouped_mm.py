"""torch.nn.functional.grouped_mm as a whole layer: sort, gather, two products, weighted sum, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from layers.clock import Call
from layers.contender import Bound, Contender
from layers.exact import swiglu
from torch import Tensor
from torch.nn import functional

from moesaic import ExpertWeights, Problem, StandardBatch


@final
@dataclass(frozen=True)
class TorchGroupedMM(Contender):
    """Nothing is read on the host."""

    name: str = "torch_grouped_mm"
    tolerance: float | None = 0.02

    def bound(self, weights: ExpertWeights, problem: Problem) -> Bound:
        """The weights as they are, read transposed."""
        gate_up, down = (part.data.transpose(1, 2) for part in (weights.gate_up, weights.down))
        every = torch.arange(problem.num_experts, dtype=torch.int32, device=gate_up.device)

        def layer(rows: Tensor, ids: Tensor, shares: Tensor) -> Tensor:
            experts, order = ids.flatten().sort()
            ends = torch.searchsorted(experts, every, right=True, out_int32=True)
            inner = swiglu(functional.grouped_mm(rows[order // problem.top_k], gate_up, offs=ends))
            products = functional.grouped_mm(inner, down, offs=ends) * shares.flatten()[order].unsqueeze(1)
            place = torch.empty_like(order)
            place[order] = torch.arange(len(order), device=order.device)
            return products[place].unflatten(0, (-1, problem.top_k)).sum(1).to(rows.dtype)

        def prepared(batch: StandardBatch) -> Call:
            routing = batch.routing
            return lambda: layer(batch.hidden_states, routing.topk_ids, routing.topk_weights)

        return prepared
