"""vLLM's fused_experts in bfloat16: align, Triton product, activation, product, sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from layers.clock import Call
from layers.contender import Bound
from peers.bundle import Bundle
from peers.bundled import Bundled
from peers.vllm_import import VLLM_BUNDLE, configuration, fused_moe

from moesaic import ExpertWeights, Problem, StandardBatch


@final
@dataclass(frozen=True)
class VLLM(Bundled):
    """With its tuned configuration where it has one."""

    name: str = "vllm"
    tolerance: float | None = 0.02
    bundle: ClassVar[Bundle] = VLLM_BUNDLE

    def remarks(self, problem: Problem) -> Mapping[str, Any]:
        """A default configuration makes it look slower than it can be."""
        return {"configuration": configuration(problem.num_experts, problem.intermediate_size, None, None)}

    def bound(self, weights: ExpertWeights, problem: Problem) -> Bound:
        """The weights as they are."""
        del problem
        fused_experts = fused_moe().fused_experts
        gate_up, down = weights.gate_up.data, weights.down.data

        def prepared(batch: StandardBatch) -> Call:
            rows, routing = batch.hidden_states, batch.routing
            return lambda: fused_experts(rows, gate_up, down, routing.topk_weights, routing.topk_ids)

        return prepared
