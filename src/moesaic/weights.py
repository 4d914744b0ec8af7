"""ExpertWeights: the one canonical form of a layer's expert weights.

`gate_up [L, width, H]` with all gate rows above all up rows, not interleaved (`width` is I for an activation
without gate); `down [L, H, I]`; biases `[L, width]` and `[L, H]`. Interleaving, transposing and packing are
private to a backend's `prepare`, which never changes these tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from moesaic.errors import WeightsError
from moesaic.problem import Problem
from moesaic.quant import Plain, Quantized


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
        return cls(Quantized(Plain(), gate_up), Quantized(Plain(), down), gate_up_bias, down_bias, output_scale)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor of the layer."""
        optional = (self.gate_up_bias, self.down_bias, self.output_scale)
        return (*self.gate_up.tensors, *self.down.tensors, *(t for t in optional if t is not None))

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def __post_init__(self) -> None:
        for name in ("gate_up", "down"):
            stored = getattr(self, name)
            if not isinstance(stored, Quantized) or not isinstance(stored.data, Tensor):
                held = stored.data if isinstance(stored, Quantized) else stored
                raise WeightsError(
                    f"{name} is a {held.__class__.__name__}, but it needs a torch.Tensor (ExpertWeights.plain)"
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
        if isinstance(stored.format, Plain) and stored.data.dtype != problem.dtype:
            raise WeightsError(
                f"{name} is {stored.data.dtype}, but the problem computes in {problem.dtype}: convert the weights, "
                "or change Problem.dtype"
            )


def _check_vector(name: str, values: Tensor | None, shape: tuple[int, ...], *, wanted: bool, because: str) -> None:
    if not wanted:
        if values is not None:
            raise WeightsError(
                f"{name} is given, but the problem has {because}: a term would be lost; change the problem"
            )
        return
    if values is None:
        raise WeightsError(f"{name} is missing, but the problem has {because}: give a tensor of shape {shape}")
    if tuple(values.shape) != shape:
        raise WeightsError(f"{name} is {tuple(values.shape)}, but the problem needs {shape}")
    if not values.is_floating_point():
        raise WeightsError(f"{name} is {values.dtype}, but it needs a floating-point dtype")
