"""Marlin in vLLM: products of codes of 4 bits, as stored, with rows in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from layers.clock import Call
from layers.contender import Bound
from peers.bundle import Bundle
from peers.bundled import Bundled
from peers.vllm_import import VLLM_BUNDLE, fused_moe
from torch import Tensor

from moesaic import INT4, MXFP4, ExpertWeights, Problem, Quantized, StandardBatch


@final
@dataclass(frozen=True)
class Marlin(Bundled):
    """Codes and scales are those of the weights, in Marlin's order."""

    name: str = "marlin"
    tolerance: float | None = 0.03
    bundle: ClassVar[Bundle] = VLLM_BUNDLE

    def bound(self, weights: ExpertWeights, problem: Problem) -> Bound:
        """Repacked once, expert by expert. Raises ValueError for another format."""
        fused_moe()
        from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe  # noqa: PLC0415
        from vllm.scalar_type import scalar_types  # noqa: PLC0415

        stored = weights.gate_up.format
        if isinstance(stored, MXFP4):
            kind, scales = scalar_types.float4_e2m1f, _powers
        elif isinstance(stored, INT4) and not stored.zero_point:
            kind, scales = scalar_types.uint4b8, _numbers
        else:
            raise ValueError(f"Marlin has nothing for {stored!r} here: MXFP4 or INT4 without zero points")
        first, first_scales = _packed(weights.gate_up, scales)
        second, second_scales = _packed(weights.down, scales)
        options: dict[str, Any] = {"quant_type_id": kind.id, "global_num_experts": problem.num_experts}

        def prepared(batch: StandardBatch) -> Call:
            routing = batch.routing
            held = (first, second, None, None, first_scales, second_scales)
            given = (batch.hidden_states, *held, routing.topk_weights, routing.topk_ids)
            return lambda: fused_marlin_moe(*given, **options)

        return prepared


Scales = Callable[[Tensor, int, int, int], Tensor]


def _packed(stored: Quantized, scales: Scales) -> tuple[Tensor, Tensor]:
    """Of a stack of matrices `[N, K]`: eight codes of a row in a word are what GPTQ has, column by column."""
    from vllm import _custom_ops as ops  # noqa: PLC0415

    rows, columns = stored.shape[-2:]
    group = -(-columns // stored.scales["scale"].shape[-1])
    order = torch.empty(0, dtype=torch.int32, device=stored.data.device)
    words, powers = [], []
    for codes, scale in zip(stored.data, stored.scales["scale"], strict=True):
        word = codes.view(torch.int32).T.contiguous()
        words.append(ops.gptq_marlin_repack(word, order, columns, rows, 4))
        powers.append(scales(scale, columns, rows, group))
    return torch.stack(words), torch.stack([power.view(torch.uint8) for power in powers]).view(powers[0].dtype)


def _numbers(scale: Tensor, columns: int, rows: int, group: int) -> Tensor:
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_permute_scales  # noqa: PLC0415

    return marlin_permute_scales(scale.T.contiguous(), columns, rows, group)


def _powers(scale: Tensor, columns: int, rows: int, group: int) -> Tensor:
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import (  # noqa: PLC0415
        mxfp4_marlin_process_scales,
    )

    return mxfp4_marlin_process_scales(_numbers(scale.to(torch.bfloat16), columns, rows, group))
