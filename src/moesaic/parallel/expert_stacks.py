"""Expert weights as a run of tensors `[L, ...]`, one entry an expert, and room for other numbers of experts."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from moesaic.quant import Quantized
from moesaic.weights import ExpertWeights


def stacks(weights: ExpertWeights) -> tuple[Tensor, ...]:
    """Every tensor of which each expert has its own part, in one order for all layers of a kind."""
    biases = (weights.gate_up_bias, weights.down_bias)
    return (*weights.gate_up.tensors, *weights.down.tensors, *(bias for bias in biases if bias is not None))


def room_for(weights: ExpertWeights, num_experts: int) -> ExpertWeights:
    """Weights in the same form for `num_experts`, whose values are undefined memory; what belongs to all is shared."""
    return replace(
        weights,
        gate_up=_stored(weights.gate_up, num_experts),
        down=_stored(weights.down, num_experts),
        gate_up_bias=None if weights.gate_up_bias is None else _room(weights.gate_up_bias, num_experts),
        down_bias=None if weights.down_bias is None else _room(weights.down_bias, num_experts),
    )


def _stored(stored: Quantized, num_experts: int) -> Quantized:
    scales = {name: _room(scale, num_experts) for name, scale in stored.scales.items()}
    return Quantized(stored.format, _room(stored.data, num_experts), scales, stored.parts)


def _room(stack: Tensor, num_experts: int) -> Tensor:
    return stack.new_empty((num_experts, *stack.shape[1:]))
