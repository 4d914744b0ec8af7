"""What `patch` did and did not do, one entry per MoE layer, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, final

from moesaic.backends import Backend
from moesaic.problem import Problem
from moesaic.quant import Format
from moesaic.resolve import Resolution


@final
class GapCode(StrEnum):
    """What keeps a layer from being covered."""

    INTERFACE = "interface"
    SCHEME = "scheme"
    PLACEMENT = "placement"
    PARAMETERS = "parameters"
    ACTIVATION = "activation"
    OUTPUT_NORM = "output_norm"
    BACKEND = "backend"


@final
@dataclass(frozen=True)
class Gap:
    """One reason why a layer is not covered."""

    code: GapCode
    text: str

    def __repr__(self) -> str:
        return f"Gap(code=GapCode.{self.code.name}, text={self.text!r})"

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


@final
@dataclass(frozen=True)
class LayerReport:
    """One MoE layer: `name` of the module in the model, its class, and the choice of backend or what stood against it.

    `resolution` is None if the layer could not be described as a problem. `num_bytes` is what holds its expert weights:
    the backend that runs it, in that backend's own form, or the model.
    """

    name: str
    module: str
    resolution: Resolution | None
    gaps: tuple[Gap, ...] = ()
    num_bytes: int = 0

    @property
    def covered(self) -> bool:
        """True if the layer runs through moesaic."""
        return not self.gaps

    @property
    def problem(self) -> Problem | None:
        """The layer as a problem; None if it could not be described as one."""
        return None if self.resolution is None else self.resolution.problem

    @property
    def format(self) -> Format | None:
        """The format in which the weights are stored; None if the layer could not be described as a problem."""
        return None if self.problem is None else self.problem.scheme.weights

    @property
    def backend(self) -> Backend[Any] | None:
        """The backend that runs the layer; None if it is not covered."""
        return self.resolution.backend if self.resolution is not None and self.covered else None


@final
@dataclass(frozen=True)
class PatchReport:
    """Every MoE layer that was found in a model, in the model's order; `print` it."""

    layers: tuple[LayerReport, ...]

    @property
    def covered(self) -> tuple[LayerReport, ...]:
        """The layers that run through moesaic."""
        return tuple(layer for layer in self.layers if layer.covered)

    @property
    def not_covered(self) -> tuple[LayerReport, ...]:
        """The layers that run as they did before."""
        return tuple(layer for layer in self.layers if not layer.covered)

    def __str__(self) -> str:
        problems = list(dict.fromkeys(layer.problem for layer in self.covered))
        rows = [(layer.name, *_columns(layer, problems)) for layer in self.layers]
        widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
        return "\n".join(
            [
                f"{len(self.covered)} of {len(self.layers)} MoE layers run through moesaic",
                *(f"  {name:<{widths[0]}}  {state:<{widths[1]}}  {detail}" for name, state, detail in rows),
                *(f"problem {number}: {problem!r}" for number, problem in enumerate(problems, 1)),
            ]
        )


def _columns(layer: LayerReport, problems: list[Problem | None]) -> tuple[str, str]:
    if layer.backend is not None:
        size = _in_words(layer.num_bytes)
        return layer.backend.name, f"problem {problems.index(layer.problem) + 1}, {size} of {layer.format!r}"
    return "not covered", "; ".join(map(str, layer.gaps))


def _in_words(num_bytes: int) -> str:
    """So many bytes in the largest unit of which there is one."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size >= 1024:
            size, unit = size / 1024, larger
    return f"{size:.1f} {unit}"
