"""What each activation is inside a kernel: one expression of float32 tiles, beside the constants that it takes.

The meaning stays in `Activation.formula`; an expression here is its optimisation and is compared with it. A kernel
takes the expression as a compile-time constant and the constants as one tuple, and calls `evaluate` on its tiles, in
the middle of a product as well as alone. `docs/design/activations_in_kernels.md` says why it is done so. To add an
activation: its expression, and one line in `EXPRESSIONS`.
"""
# ruff: noqa: D103 - tiles have no Python type, the names say what is computed

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, final, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import KernelInterface

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
from moesaic.activations.base import Constant, column
from moesaic.errors import ActivationError
from moesaic.kernels.elementary import at_most, power, relu, tanh, within

Jitted: TypeAlias = KernelInterface[Any]
"""A function under `triton.jit`, compiled or interpreted."""


@final
class Expression(NamedTuple):
    """An expression and its constants, as a kernel takes them."""

    function: Jitted
    constants: tuple[float | Tensor, ...]
    """A float, or a float32 tensor with one value per expert."""
    per_expert: tuple[bool, ...]
    """Which constants are tensors: a compile-time constant of the kernel."""


def expression(activation: Activation, device: torch.device) -> Expression:
    """The expression of `activation` with its per-expert constants on `device`, filled there without a host copy.

    Raises ActivationError for an activation that has none: nothing takes its place.
    """
    # Looked up by class: one that derives from an activation computes something else.
    written = EXPRESSIONS.get(activation.__class__)
    if written is None:
        names = ", ".join(sorted(known.__name__ for known in EXPRESSIONS))
        raise ActivationError(
            f"the Triton kernels have no expression of {activation!r}, only of {names}: write one in "
            "activation_expressions.py, or use moesaic.activations.masked.apply, which takes every activation"
        )
    function, *constants = written(activation)
    per_expert = tuple(isinstance(value, tuple) for value in constants)
    like = torch.empty(0, device=device)
    taken = tuple(column(value, like) if isinstance(value, tuple) else value for value in constants)
    return Expression(function, taken, per_expert)


@triton.jit
@no_type_check
def evaluate(EXPRESSION: tl.constexpr, operands, constants, PER_EXPERT: tl.constexpr, expert):
    """EXPRESSION of `operands`: the tuple (gate, up), or (x,). `expert`, which a constant may differ by, is an integer
    or a tile of integers that spreads over the operands; all of them are indices of the constants.
    """
    # One chain: a branch behind a return would be compiled too.
    tl.static_assert(len(PER_EXPERT) <= 3, "an expression has at most three constants")
    if len(PER_EXPERT) == 0:
        return EXPRESSION(*operands)
    elif len(PER_EXPERT) == 1:
        return EXPRESSION(*operands, _own(constants[0], PER_EXPERT[0], expert))
    elif len(PER_EXPERT) == 2:
        return EXPRESSION(
            *operands,
            _own(constants[0], PER_EXPERT[0], expert),
            _own(constants[1], PER_EXPERT[1], expert),
        )
    else:
        return EXPRESSION(
            *operands,
            _own(constants[0], PER_EXPERT[0], expert),
            _own(constants[1], PER_EXPERT[1], expert),
            _own(constants[2], PER_EXPERT[2], expert),
        )


@triton.jit
@no_type_check
def _own(constant, PER_EXPERT: tl.constexpr, expert):
    if PER_EXPERT:
        return tl.load(constant + expert)
    else:
        return constant


@triton.jit
@no_type_check
def swiglu(gate, up, alpha, beta, limit):
    gate, up = at_most(gate, limit), within(up, limit)
    return gate * tl.sigmoid(alpha * gate) * (up + beta)


@triton.jit
@no_type_check
def swiglu_step(gate, up, limit):
    return at_most(gate * tl.sigmoid(gate), limit) * within(up, limit)


@triton.jit
@no_type_check
def situ(gate, up, gate_scale, linear_scale, limit):
    gate, up = at_most(gate, limit), within(up, limit)
    return gate_scale * tanh(gate / gate_scale) * tl.sigmoid(gate) * linear_scale * tanh(up / linear_scale)


@triton.jit
@no_type_check
def situ_with_linear_up(gate, up, gate_scale, limit):
    gate, up = at_most(gate, limit), within(up, limit)
    return gate_scale * tanh(gate / gate_scale) * tl.sigmoid(gate) * up


@triton.jit
@no_type_check
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
@no_type_check
def gelu_tanh(x):
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
@no_type_check
def geglu(gate, up):
    return gelu(gate) * up


@triton.jit
@no_type_check
def geglu_tanh(gate, up):
    return gelu_tanh(gate) * up


@triton.jit
@no_type_check
def reglu(gate, up):
    return relu(gate) * up


@triton.jit
@no_type_check
def powlu(gate, up, exponent, limit):
    base = tl.where(gate > 0, gate, 1.0)
    grown = power(base, exponent / (tl.sqrt(base) + 1.0))
    value = tl.where(gate > 0, grown, gate) * tl.sigmoid(gate)
    return at_most(value, limit) * within(up, limit)


@triton.jit
@no_type_check
def relu2(x):
    root = relu(x)
    return root * root


@triton.jit
@no_type_check
def relu2_limited(x, limit):
    root = limit * tanh(relu(x) / limit)
    return root * root


@triton.jit
@no_type_check
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
@no_type_check
def identity(x):
    return x


def _limit(activation: SwiGLU | SiTU | PowLU) -> Constant:
    """A limit that is not there is infinite: no clamp at infinity changes a value."""
    return math.inf if activation.limit is None else activation.limit


def _situ(a: SiTU) -> tuple[Any, ...]:
    if a.linear_scale is None:
        return situ_with_linear_up, a.gate_scale, _limit(a)
    return situ, a.gate_scale, a.linear_scale, _limit(a)


EXPRESSIONS: dict[type[Activation], Callable[[Any], tuple[Any, ...]]] = {
    SwiGLU: lambda a: (swiglu, a.alpha, a.beta, _limit(a)),
    SwiGLUStep: lambda a: (swiglu_step, a.limit),
    SiTU: _situ,
    GeGLU: lambda a: (geglu_tanh if a.approximate == "tanh" else geglu,),
    ReGLU: lambda _: (reglu,),
    PowLU: lambda a: (powlu, a.exponent, _limit(a)),
    ReLU2: lambda a: (relu2,) if a.limit is None else (relu2_limited, a.limit),
    ReLU: lambda _: (relu,),
    GELU: lambda a: (gelu_tanh if a.approximate == "tanh" else gelu,),
    SiLU: lambda _: (silu,),
    Identity: lambda _: (identity,),
}
"""Activation class -> its expression, then the constants in the order of the expression's parameters."""
