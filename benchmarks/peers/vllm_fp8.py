"""vLLM's fused_experts with blocks of FP8: two roundings of rows around Triton's products of codes."""

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

BLOCK = 128


@final
@dataclass(frozen=True)
class VLLMBlockFP8(Bundled):
    """With its tuned configuration where it has one. Rows are rounded to FP8 twice, hence the tolerance."""

    name: str = "vllm"
    tolerance: float | None = 0.1
    bundle: ClassVar[Bundle] = VLLM_BUNDLE

    def remarks(self, problem: Problem) -> Mapping[str, Any]:
        """A default configuration makes it look slower than it can be."""
        found = configuration(problem.num_experts, problem.intermediate_size, "fp8_w8a8", BLOCK)
        return {"configuration": found}

    def bound(self, weights: ExpertWeights, problem: Problem) -> Bound:
        """Codes and scales as they are. Raises ValueError where a block would reach over gate and up."""
        if problem.hidden_size % BLOCK or problem.intermediate_size % BLOCK:
            raise ValueError(f"vLLM's blocks need H and I to be multiples of {BLOCK}")
        module = fused_moe()
        from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config  # noqa: PLC0415

        gate_up, down = weights.gate_up, weights.down
        config = fp8_w8a8_moe_quant_config(
            w1_scale=gate_up.scales["scale"], w2_scale=down.scales["scale"], block_shape=[BLOCK, BLOCK]
        )

        def prepared(batch: StandardBatch) -> Call:
            rows, routing = batch.hidden_states, batch.routing
            given = (rows, gate_up.data, down.data, routing.topk_weights, routing.topk_ids)
            return lambda: module.fused_experts(*given, quant_config=config)

        return prepared
