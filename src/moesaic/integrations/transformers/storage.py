"""How an experts module of transformers stores its weights, and the way to the canonical form and back.

Stored `gate_up_proj [E, 2I, H]` (or `up_proj [E, I, H]` without gate) and `down_proj [E, H, I]`; `transposed`:
`[E, H, 2I]` and `[E, I, H]`; `interleaved`: gate and up alternate along 2I. Biases are `[E, 2I]` and `[E, H]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from moesaic.weights import ExpertWeights

NORM_WEIGHT = "post_expert_norm.weight"
"""The parameter of the norm of expert outputs; its scale is one plus it."""


@final
@dataclass(frozen=True)
class Storage:
    """The layout of one module's parameters."""

    gated: bool
    transposed: bool
    interleaved: bool
    biased: bool
    normed: bool

    @property
    def first(self) -> str:
        """The name of the first projection."""
        return "gate_up_proj" if self.gated else "up_proj"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters that `stored` gives back."""
        biases = (f"{self.first}_bias", "down_proj_bias") if self.biased else ()
        return (self.first, "down_proj", *biases)

    @property
    def reordered(self) -> tuple[str, ...]:
        """The names of the parameters that canonical weights cannot view, so that they hold a copy."""
        if not self.interleaved:
            return ()
        return (self.first, f"{self.first}_bias") if self.biased else (self.first,)

    def canonical(self, tensors: Mapping[str, Tensor]) -> ExpertWeights:
        """The canonical weights, given the stored tensors by name: views of them but for `reordered` ones."""
        first, down = tensors[self.first], tensors["down_proj"]
        if self.transposed:
            first, down = first.mT, down.mT
        bias = tensors[f"{self.first}_bias"] if self.biased else None
        if self.interleaved:
            first = _gates_first(first)
            bias = None if bias is None else _gates_first(bias)
        return ExpertWeights.plain(
            first,
            down,
            gate_up_bias=bias,
            down_bias=tensors["down_proj_bias"] if self.biased else None,
            output_scale=1.0 + tensors[NORM_WEIGHT] if self.normed else None,
        )

    def stored(self, weights: ExpertWeights) -> dict[str, Tensor]:
        """The tensors by name from which `canonical` made `weights`, bit for bit, contiguous."""
        first, bias = weights.gate_up.data, weights.gate_up_bias
        if self.interleaved:
            first = _alternating(first)
            bias = None if bias is None else _alternating(bias)
        down = weights.down.data
        if self.transposed:
            first, down = first.mT, down.mT
        found = {self.first: first, "down_proj": down}
        if bias is not None and weights.down_bias is not None:
            found |= {f"{self.first}_bias": bias, "down_proj_bias": weights.down_bias}
        return {name: tensor.detach().contiguous() for name, tensor in found.items()}


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """All parameters of `module` and of its children by name."""
    return dict(module.named_parameters(remove_duplicate=False))


def declared_storage(module: nn.Module) -> Storage:
    """How the module says that it stores its weights."""
    said: Mapping[str, Any] = vars(module)
    return Storage(
        gated=said["has_gate"],
        transposed=said["is_transposed"],
        interleaved=said["has_gate"] and not said["is_concatenated"],
        biased=said["has_bias"],
        normed=said.get("has_post_expert_norm", False),  # transformers 5.17 knows no norm
    )


def _gates_first(values: Tensor) -> Tensor:
    """`[E, (I 2), ...]` to `[E, (2 I), ...]`."""
    return values.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)


def _alternating(values: Tensor) -> Tensor:
    """`[E, (2 I), ...]` to `[E, (I 2), ...]`."""
    return values.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
