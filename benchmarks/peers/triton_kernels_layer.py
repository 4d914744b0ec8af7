"""A layer of triton_kernels: routing from logits, top-k included, and two matmul_ogs with GPT-OSS' activation.

Its activation, clamped and with gate and up in turns, costs what ours does, but is another function: its answers are
compared with float32 of that one.
"""

from __future__ import annotations

from typing import Any

import torch
from layers.clock import Call
from layers.contender import Bound
from peers.bundle import Bundle
from torch import Tensor

from moesaic import Problem, StandardBatch

TRITON_KERNELS = Bundle("triton_kernels", "triton_kernels", "as in vLLM 0.26.0")
TOLERANCE = 0.05
"""Of the error: router logits are in bfloat16."""
UNSEEN = -30.0
"""Logit of an expert that a token does not ask for."""


def logits(batch: StandardBatch, num_experts: int) -> Tensor:
    """bfloat16 `[T, E]`, of which its top-k with softmax makes the batch's ids and weights again."""
    routing = batch.routing
    size = (len(batch.hidden_states), num_experts)
    whole = torch.full(size, UNSEEN, device=batch.hidden_states.device)
    return whole.scatter_(1, routing.topk_ids.long(), routing.topk_weights.log()).bfloat16()


def layer(problem: Problem, gate_up: Any, down: Any, precisions: tuple[Any, Any]) -> Bound:
    """`gate_up [E, H, 2 I]` and `down [E, I, H]` as it takes them."""
    from triton_kernels.matmul_ogs import FnSpecs, FusedActivation, matmul_ogs  # noqa: PLC0415
    from triton_kernels.routing import routing  # noqa: PLC0415
    from triton_kernels.swiglu import swiglu_fn  # noqa: PLC0415

    activation = FusedActivation(FnSpecs("swiglu", swiglu_fn, ("alpha", "limit")), (1.702, 7.0), 2)
    first, second = precisions

    def prepared(batch: StandardBatch) -> Call:
        rows, given = batch.hidden_states, logits(batch, problem.num_experts)

        def call() -> Tensor:
            data, gather, scatter = routing(given, problem.top_k)
            inner = matmul_ogs(
                rows, gate_up, None, data, gather_indx=gather, precision_config=first, fused_activation=activation
            )
            return matmul_ogs(
                inner, down, None, data, scatter_indx=scatter, precision_config=second, gammas=data.gate_scal
            )

        return call

    return prepared
