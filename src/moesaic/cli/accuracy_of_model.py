"""What quantized experts cost one model: bits per byte of a text, and the error of each layer's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from moesaic.batches import Batch, StandardBatch
from moesaic.cli.bits_per_byte import bits_per_byte
from moesaic.cli.layers_in_place import LayerInPlace, layers_of, running
from moesaic.cli.text_coder import TextCoder
from moesaic.layer import Experts
from moesaic.quant import UNQUANTIZED, Scheme


@final
@dataclass(frozen=True)
class Accuracy:
    """One scheme of one model. `errors`: for each layer the rms of its error over the standard deviation of its output.

    `bits_per_weight` counts scales; `bits_per_byte` is that of the text under the whole model.
    """

    scheme: Scheme
    bits_per_weight: float
    bits_per_byte: float
    errors: Mapping[str, float]

    @property
    def worst(self) -> float:
        """The error of the layer that errs most."""
        return max(self.errors.values())


@torch.no_grad()
def accuracies(
    model: Any, coder: TextCoder, windows: Sequence[bytes], schemes: Sequence[Scheme], advance: Callable[[], None]
) -> tuple[Accuracy, ...]:
    """Every scheme, the unquantized one first; `advance` is called after each.

    Bits per byte are those of the model in bfloat16, its experts run by the oracle. Errors are those of a layer on the
    rows that the unquantized model gives it, in float32: what the formats lose and nothing else.
    """
    layers = layers_of(model)
    seen: dict[str, list[StandardBatch]] = {}
    bits = _bits(model, coder, windows, layers, UNQUANTIZED, seen)
    batches = {name: [_widened(batch) for batch in found] for name, found in seen.items()}
    wanted = {layer.name: _outputs(layer.bound(UNQUANTIZED, torch.float32), batches[layer.name]) for layer in layers}
    found = [Accuracy(UNQUANTIZED, _bits_per_weight(layers, UNQUANTIZED), bits, {layer.name: 0.0 for layer in layers})]
    advance()
    for scheme in schemes:
        if scheme != UNQUANTIZED:
            errors = {
                layer.name: _error(
                    _outputs(layer.bound(scheme, torch.float32), batches[layer.name]), wanted[layer.name]
                )
                for layer in layers
            }
            bits = _bits(model, coder, windows, layers, scheme, None)
            found.append(Accuracy(scheme, _bits_per_weight(layers, scheme), bits, errors))
            advance()
    return tuple(found)


def _bits(
    model: Any,
    coder: TextCoder,
    windows: Sequence[bytes],
    layers: tuple[LayerInPlace, ...],
    scheme: Scheme,
    seen: dict[str, list[StandardBatch]] | None,
) -> float:
    experts = {layer.name: layer.bound(scheme, layer.problem.dtype) for layer in layers}
    with running(layers, experts, seen):
        return bits_per_byte(model, coder, windows)


def _widened(batch: StandardBatch) -> StandardBatch:
    return StandardBatch(batch.hidden_states.float(), batch.routing)


def _outputs(experts: Experts, batches: Sequence[Batch]) -> Tensor:
    """Rows `[T, H]` of all batches."""
    return torch.cat([experts(batch) for batch in batches])


def _error(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted.double()).pow(2).mean().sqrt() / wanted.double().std(correction=0))


def _bits_per_weight(layers: Sequence[LayerInPlace], scheme: Scheme) -> float:
    problem = replace(layers[0].problem, scheme=scheme)
    return 8 * problem.weight_bytes / (problem.num_experts * problem.num_weights)
