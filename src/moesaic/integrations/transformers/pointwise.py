"""A function of one or two numbers that is known by evaluation only, and the grid on which it is compared.

Nothing here knows an activation by name: `fits.py` proposes candidates, `Pointwise.agrees` accepts or refuses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from moesaic.activations import Activation

Function: TypeAlias = Callable[[Tensor], Tensor]
"""From rows `[N, 2I]` (gate and up, in either order of columns) or `[N, I]` to `[N, I]`."""

FAULTS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What foreign code may raise when it is evaluated on numbers that it was not written for."""

HUGE = 1e30
"""Beyond every limit, and still a float32."""


@final
@dataclass(frozen=True)
class Pointwise:
    """`function` seen as a function of single numbers, evaluated in `dtype`.

    `interleaved`: gate and up columns alternate (g0, u0, g1, u1). `exact`: it computes in float64 when asked to;
    else in float32, whatever it is given.
    """

    function: Function
    gated: bool
    dtype: torch.dtype
    device: torch.device
    interleaved: bool
    exact: bool

    @property
    def tolerance(self) -> float:
        """How far two evaluations of one formula may lie apart, relative to its values."""
        return 1e-10 if self.exact else 1e-6

    def at(self, *arguments: float) -> float:
        """The value at one number, or at one gate and one up."""
        rows = torch.tensor([arguments], dtype=self.dtype, device=self.device)
        return float(_evaluated(self.function, rows).item())

    def agrees(self, activation: Activation) -> bool:
        """Whether the function is `activation`, far beyond its limits and scales too.

        The error allowed is `tolerance` of the value and of the values near zero for the same up: where a gate is
        almost closed, `1 + tanh` and the like lose their digits.
        """
        points = _points(activation, self.dtype, self.device)
        pairs = torch.cartesian_prod(points, points) if self.gated else points.unsqueeze(-1)
        got = _evaluated(self.function, pairs).view(points.shape[0], -1).double()
        expected = activation(pairs.double()).view(points.shape[0], -1)
        size = expected.abs()
        usual = size[points.abs() <= 2].amax(0, keepdim=True)
        return bool(((got - expected).abs() <= self.tolerance * (1 + size + usual)).all())


def as_pointwise(function: Function, *, gated: bool, device: torch.device) -> Pointwise | None:
    """`function` as a pointwise one, or None if it is not one or cannot be evaluated."""
    for dtype in (torch.float64, torch.float32):
        try:
            found = _columns(function, gated=gated, dtype=dtype, device=device)
        except FAULTS:
            continue
        if found is not None:
            interleaved, exact = found
            return Pointwise(function, gated, dtype, device, interleaved, exact)
    return None


def _columns(function: Function, *, gated: bool, dtype: torch.dtype, device: torch.device) -> tuple[bool, bool] | None:
    """(interleaved, exact) if three columns are computed as three single ones; None if they are not."""
    generator = torch.Generator().manual_seed(0)
    gate, up = (4 * torch.randn(2, 32, 3, generator=generator, dtype=torch.float64)).to(dtype).to(device)
    if not gated:
        single = _evaluated(function, gate.reshape(-1, 1)).view(gate.shape)
        return (False, _computes_in_float64(single)) if _same(_evaluated(function, gate), single) else None
    single = _evaluated(function, torch.stack([gate, up], dim=-1).view(-1, 2)).view(gate.shape)
    for interleaved, rows in (
        (False, torch.cat([gate, up], dim=-1)),
        (True, torch.stack([gate, up], dim=-1).flatten(-2)),
    ):
        if _same(_evaluated(function, rows), single):
            return interleaved, _computes_in_float64(single)
    return None


def _evaluated(function: Function, rows: Tensor) -> Tensor:
    with torch.no_grad():
        return function(rows.clone())


def _same(values: Tensor, single: Tensor) -> bool:
    # Vectorised and scalar code paths of one function may differ in the last bits.
    return values.shape == single.shape and torch.allclose(values.double(), single.double(), rtol=1e-5, atol=1e-6)


def _computes_in_float64(values: Tensor) -> bool:
    return values.dtype == torch.float64 and not torch.equal(values, values.float().double())


def _points(activation: Activation, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Both signs, dense near zero, on both sides of every constant, and far outside."""
    inner = torch.linspace(-12.06, 11.97, 60, dtype=torch.float64)
    magnitudes = [1e-3, 20.0, 50.0, 100.0, 1000.0]
    for constant in _numbers(activation.constants()):
        magnitudes += [constant * factor for factor in (0.5, 0.99, 1.0, 1.01, 1.5, 4.0)]
    outer = torch.tensor([sign * m for m in magnitudes for sign in (1, -1)], dtype=torch.float64)
    return torch.cat([inner, torch.zeros(1, dtype=torch.float64), outer]).to(dtype).to(device)


def _numbers(constants: dict[str, Any]) -> list[float]:
    return [value for value in constants.values() if isinstance(value, float)]
