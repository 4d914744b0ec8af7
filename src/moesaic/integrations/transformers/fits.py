"""Candidates for a pointwise function: each fit solves the constants of one activation class from a few values.

A fit assumes its own formula and proposes; whether the formula holds is decided by `Pointwise.agrees`. All
constants are rounded to the shortest decimal within the precision of the evaluation, so 1.702 is found as 1.702.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from moesaic.activations import (
    GELU,
    Activation,
    GeGLU,
    Identity,
    PowLU,
    ReGLU,
    ReLU,
    ReLU2,
    SiLU,
    SiTU,
    SwiGLU,
    SwiGLUStep,
)
from moesaic.integrations.transformers.pointwise import HUGE, Pointwise

STEPS = (0.5, 1 / 32)
"""Where constants are measured: the second serves limits below the first."""


def gated_candidates(f: Pointwise) -> Iterator[Activation]:
    """Activations that `f(gate, up)` may be."""
    yield from _attempted(_swiglu, f, STEPS[0])  # nearly every model's
    yield from (GeGLU("none"), GeGLU("tanh"), ReGLU())
    for step in STEPS:
        for fit in (_swiglu, _swiglu_step, _situ, _powlu):
            yield from _attempted(fit, f, step)


def plain_candidates(f: Pointwise) -> Iterator[Activation]:
    """Activations that `f(x)` may be."""
    yield from (ReLU2(), ReLU(), GELU("none"), GELU("tanh"), SiLU(), Identity())
    yield from _attempted(_capped_relu2, f, STEPS[0])


def shortest(value: float, tolerance: float) -> float:
    """The decimal with the fewest digits within `tolerance` of `value`, relative (absolute below one)."""
    for digits in range(1, 18):
        rounded = float(f"{value:.{digits}g}")
        if abs(rounded - value) <= tolerance * abs(value):
            return rounded if abs(value) > tolerance else 0.0
    return value


def _attempted(
    fit: Callable[[Pointwise, float], Iterator[Activation]], f: Pointwise, step: float
) -> Iterator[Activation]:
    try:
        yield from fit(f, step)
    except (ArithmeticError, ValueError):
        return  # the formula does not hold, so its equations have no solution


def _swiglu(f: Pointwise, step: float) -> Iterator[Activation]:
    above, below = f.at(step, step), f.at(step, -step)
    gate = (above - below) / (2 * step)
    beta = (above + below) / (2 * gate)
    alpha = math.log(gate / (step - gate)) / step
    limit = _limit(f.at(step, HUGE) / gate - beta)
    yield SwiGLU(_rounded(f, alpha), _rounded(f, beta), None if limit is None else _rounded(f, limit))


def _swiglu_step(f: Pointwise, step: float) -> Iterator[Activation]:
    limit = _limit(f.at(step, HUGE) / (step * _sigmoid(step)))
    if limit is not None:
        yield SwiGLUStep(_rounded(f, limit))


def _powlu(f: Pointwise, step: float) -> Iterator[Activation]:
    gate = f.at(step, step) / step
    exponent = math.log(gate / _sigmoid(step)) / math.log(step) * (math.sqrt(step) + 1)
    limit = _limit(f.at(step, HUGE) / gate)
    yield PowLU(_rounded(f, exponent), None if limit is None else _rounded(f, limit))


def _situ(f: Pointwise, step: float) -> Iterator[Activation]:
    tiny = step / 2**14  # so small that both caps leave it as it is
    gate, up = f.at(step, tiny) / tiny, f.at(tiny, step) / (tiny * _sigmoid(tiny))
    bound = _limit(f.at(step, HUGE) / gate)
    if bound is None:
        scales = [(f.at(HUGE, step) / up, None, None)]
    else:
        capped = _scale(bound / 2, f.at(step, bound / 2) / gate)
        limit = bound if capped is None else _limit_under(capped, bound)
        scales = [(f.at(HUGE, step) / up, bound, None)]
        if limit is not None:
            point = limit / 2
            soft = _scale(point, f.at(point, step) / (up * _sigmoid(point)))
            scales += [] if soft is None else [(soft, capped, limit)]
    for tolerance in (None, 1e-4):  # the curvature of a cap is known less well than its end
        for constants in scales:
            yield SiTU(*(None if c is None else _rounded(f, c, tolerance) for c in constants))  # pyright: ignore[reportArgumentType]


def _capped_relu2(f: Pointwise, step: float) -> Iterator[Activation]:
    del step
    bound = _limit(f.at(HUGE))
    if bound is not None:
        yield ReLU2(_rounded(f, math.sqrt(bound)))


def _rounded(f: Pointwise, value: float, tolerance: float | None = None) -> float:
    return shortest(value, tolerance or 50 * f.tolerance if f.exact else tolerance or 4 * f.tolerance)


def _limit(bound: float) -> float | None:
    """A bound measured at HUGE, or None if there is none."""
    return None if bound > HUGE / 1e3 else bound


def _limit_under(scale: float, bound: float) -> float | None:
    """The limit L with `scale * tanh(L / scale) = bound`; None if the bound is the scale itself."""
    ratio = bound / scale
    return None if ratio > 1 - 1e-5 else scale * math.atanh(ratio)


def _scale(x: float, y: float) -> float | None:
    """The scale s with `s * tanh(x / s) = y`; None if y is x, so nothing is capped."""
    if y > x * (1 - 1e-6):
        return None
    low, high = y, 1e4 * x
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.tanh(x / middle) < y else (low, middle)
    return (low + high) / 2


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
