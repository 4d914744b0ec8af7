"""ExpertWeights: the one canonical form of a layer's expert weights.

`gate_up [L, width, H]` with all gate rows above all up rows, not interleaved (`width` is I for an activation
without gate); `down [L, H, I]`; biases `[L, width]` and `[L, H]`. Interleaving, transposing and packing are
private to a backend's `prepare`, which never changes these tensors. In a format other than Plain, gate and up are
two parts of `gate_up` (`Quantized.parts`), quantized apart, so no block of scales reaches over their boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from moesaic.checks import whole_number
from moesaic.errors import WeightsError
from moesaic.problem import Problem
from moesaic.quant import Format, Plain, Quantized
from moesaic.quant.shards import shard
from moesaic.quant.values import refuse_nonfinite


@final
@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """Both projections as stored, their biases, and the scale of the output norm where the model has one."""

    gate_up: Quantized
    down: Quantized
    gate_up_bias: Float[Tensor, "L width"] | None = None
    down_bias: Float[Tensor, "L H"] | None = None
    output_scale: Float[Tensor, " H"] | None = None

    @classmethod
    def plain(
        cls,
        gate_up: Float[Tensor, "L width H"],
        down: Float[Tensor, "L H I"],
        *,
        gate_up_bias: Float[Tensor, "L width"] | None = None,
        down_bias: Float[Tensor, "L H"] | None = None,
        output_scale: Float[Tensor, " H"] | None = None,
    ) -> ExpertWeights:
        """Weights that are not quantized, taken as they are (no copy)."""
        for name, values in (("gate_up", gate_up), ("down", down)):
            if not isinstance(values, Tensor):
                raise WeightsError(f"{name} is a {values.__class__.__name__}, but it needs a torch.Tensor")
        return cls(Quantized(Plain(), gate_up), Quantized(Plain(), down), gate_up_bias, down_bias, output_scale)

    def quantize(self, stored: Format) -> ExpertWeights:
        """These weights in the format `stored`, expert by expert, gate and up apart; biases stay as they are.

        Raises FormatError naming the projection and the index of a NaN or infinity, WeightsError if the weights are
        already quantized: rounding twice loses more than either format does.
        """
        if isinstance(stored, Plain):
            return self
        if not (isinstance(self.gate_up.format, Plain) and isinstance(self.down.format, Plain)):
            raise WeightsError(
                f"the weights are stored as {self.gate_up.format!r}; quantize the plain ones they are of"
            )
        gate_up = _quantized(stored, self.gate_up.data, self._num_parts(), "gate_up")
        return replace(self, gate_up=gate_up, down=_quantized(stored, self.down.data, 1, "down"))

    def dequantize(self, dtype: torch.dtype) -> ExpertWeights:
        """Plain weights of the values stored, rounded to `dtype`; biases stay as they are."""
        gate_up, down = (Quantized(Plain(), stored.dequantize(dtype)) for stored in (self.gate_up, self.down))
        return replace(self, gate_up=gate_up, down=down)

    def select(self, expert_ids: Sequence[int]) -> ExpertWeights:
        """The weights of the experts `expert_ids`, in that order, copied: those of one rank of a `Placement`.

        Raises FormatError for anything but whole numbers in `[0, L)`. The scale of the output norm belongs to all.
        """
        gate_up, down, own = self.gate_up.select(expert_ids), self.down.select(expert_ids), list(expert_ids)
        gate_up_bias = None if self.gate_up_bias is None else self.gate_up_bias[own]
        down_bias = None if self.down_bias is None else self.down_bias[own]
        return replace(self, gate_up=gate_up, down=down, gate_up_bias=gate_up_bias, down_bias=down_bias)

    def shard(self, index: int, count: int) -> ExpertWeights:
        """Shard `index` of `count` along I, copied: what a rank binds under a dispatcher with `shards=count`.

        Rows of gate and of up, and columns of down, as stored. Shard 0 has the bias of down, the others zeros, so
        that outputs of shards add up to that of the layer. Raises WeightsError for an I that does not give equal
        shares along the tiles of the format, and for an output norm, which needs the whole sum; FormatError for a
        format that does not say its `tiles`.
        """
        count = whole_number("ExpertWeights.shard", "count", count, WeightsError)
        index = whole_number("ExpertWeights.shard", "index", index, WeightsError, at_least=0)
        if index >= count:
            raise WeightsError(f"ExpertWeights.shard.index is {index}, but there are {count} shards, from 0")
        if self.output_scale is not None and count > 1:
            raise WeightsError(
                f"the layer has an output norm, which needs the sum over all of I, but a rank with 1 of {count} shards "
                "has a part of it: keep its experts whole, and spread them over ranks"
            )
        parts, inner = self._num_parts(), self.down.shape[-1]
        if inner % count:
            raise WeightsError(
                f"I={inner} over {count} shards gives {inner / count:.2f} rows and columns: choose a number of shards "
                f"that divides {inner}"
            )
        if self.gate_up.parts != parts and not isinstance(self.gate_up.format, Plain):
            raise WeightsError(
                f"gate_up is quantized in {self.gate_up.parts} part(s), but its {self.gate_up.shape[-2]} rows are "
                f"{parts} times I={inner}: quantize gate and up apart (ExpertWeights.quantize, Quantized.join)"
            )
        gate_up = shard(replace(self.gate_up, parts=parts), "gate_up", -2, index, count)
        gate_up_bias, down_bias = self.gate_up_bias, self.down_bias
        if gate_up_bias is not None:
            shape = tuple(self.gate_up.shape[:-1])
            _check_vector("gate_up_bias", gate_up_bias, shape, wanted=True, because="")
            split = gate_up_bias.unflatten(-1, (parts, count, inner // count))
            gate_up_bias = split[..., index, :].clone(memory_format=torch.contiguous_format).flatten(-2)
        if down_bias is not None:
            down_bias = torch.zeros_like(down_bias) if index else down_bias.clone()
        return replace(
            self,
            gate_up=replace(gate_up, parts=self.gate_up.parts),
            down=shard(self.down, "down", -1, index, count),
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
        )

    def _num_parts(self) -> int:
        """2 if gate stands above up in the rows of `gate_up`, else 1."""
        rows, inner = self.gate_up.shape[-2], self.down.shape[-1]
        if rows not in (inner, 2 * inner):
            raise WeightsError(
                f"gate_up has {rows} rows, but down has {inner} columns: it needs {inner} or {2 * inner}"
            )
        return rows // inner

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor of the layer."""
        optional = (self.gate_up_bias, self.down_bias, self.output_scale)
        return (*self.gate_up.tensors, *self.down.tensors, *(t for t in optional if t is not None))

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors: `Problem.weight_bytes`, and the biases and the norm's scale on top.

        The problem leaves those two out: it does not state their dtype, and they are a thousandth of the projections.
        """
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def __post_init__(self) -> None:
        for name in ("gate_up", "down"):
            stored = getattr(self, name)
            if not isinstance(stored, Quantized):
                raise WeightsError(
                    f"{name} is a {stored.__class__.__name__}, but it needs a Quantized (or ExpertWeights.plain)"
                )

    def __repr__(self) -> str:
        shapes = (f"{name}={tuple(getattr(self, name).shape)}" for name in ("gate_up", "down"))
        return f"ExpertWeights({', '.join(shapes)}, {self.gate_up.format!r}, {self.gate_up.data.dtype})"

    def check(self, problem: Problem) -> None:
        """Raise WeightsError unless shapes, formats, dtypes, devices and biases are those of `problem`."""
        experts, width, hidden = problem.num_experts, problem.width, problem.hidden_size
        reading = (
            f"{problem.activation!r} over {experts} local experts of intermediate size {problem.intermediate_size}"
        )
        self._check_projection("gate_up", self.gate_up, (experts, width, hidden), problem, reading)
        self._check_projection("down", self.down, (experts, hidden, problem.intermediate_size), problem, reading)
        biased = problem.bias
        _check_vector("gate_up_bias", self.gate_up_bias, (experts, width), wanted=biased, because=f"bias={biased}")
        _check_vector("down_bias", self.down_bias, (experts, hidden), wanted=biased, because=f"bias={biased}")
        norm = problem.output_norm
        _check_vector(
            "output_scale", self.output_scale, (hidden,), wanted=norm is not None, because=f"output_norm={norm}"
        )
        devices = sorted({str(t.device) for t in self.tensors})
        if len(devices) > 1:
            raise WeightsError(f"the weights are spread over {', '.join(devices)}; move all of them to one device")

    def _check_projection(
        self, name: str, stored: Quantized, shape: tuple[int, ...], problem: Problem, reading: str
    ) -> None:
        if stored.format != problem.scheme.weights:
            raise WeightsError(
                f"{name} is stored as {stored.format!r}, but the problem's scheme reads {problem.scheme.weights!r}: "
                "change Problem.scheme, or quantize the weights"
            )
        if stored.shape != shape:
            raise WeightsError(f"{name} is {stored.shape}, but {reading} needs {shape}")
        parts = 2 if name == "gate_up" and problem.activation.gated and not isinstance(stored.format, Plain) else 1
        if stored.parts != parts:
            raise WeightsError(
                f"{name} is quantized in {stored.parts} part(s), but {problem.activation!r} in {stored.format!r} needs "
                f"{parts}: gate and up have scales of their own (ExpertWeights.quantize, Quantized.join)"
            )
        if isinstance(stored.format, Plain) and stored.data.dtype != problem.dtype:
            raise WeightsError(
                f"{name} is {stored.data.dtype}, but the problem computes in {problem.dtype}: convert the weights, "
                "or change Problem.dtype"
            )


def _quantized(stored: Format, values: Tensor, parts: int, name: str) -> Quantized:
    """Expert by expert, so that only one expert's float32 copies exist at a time."""
    refuse_nonfinite(values, name)  # here, where the index is that of the canonical tensor
    split = values.unflatten(-2, (parts, values.shape[-2] // parts)) if parts > 1 else values
    experts = [stored.quantize(expert, name=name) for expert in split]
    data = torch.stack([expert.data for expert in experts])
    scales = {name: torch.stack([expert.scales[name] for expert in experts]) for name in stored.scale_names}
    stacked = Quantized(stored, data, scales)
    return stacked.join() if parts > 1 else stacked


def _check_vector(name: str, values: Tensor | None, shape: tuple[int, ...], *, wanted: bool, because: str) -> None:
    if not wanted:
        if values is not None:
            raise WeightsError(
                f"{name} is given, but the problem has {because}: a term would be lost; change the problem"
            )
        return
    if values is None:
        raise WeightsError(
            f"{name} is missing, but the problem has {because}: give {name}= to ExpertWeights.plain, a tensor of shape "
            f"{shape}"
        )
    if tuple(values.shape) != shape:
        raise WeightsError(f"{name} is {tuple(values.shape)}, but the problem needs {shape}")
    if not values.is_floating_point():
        raise WeightsError(f"{name} is {values.dtype}, but it needs a floating-point dtype")
