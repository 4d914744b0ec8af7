"""Gradients, where a backend declares that it computes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends import Reference
from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.checks.ownership import batch_tensors
from moesaic.conformance.feeding import CALM, NAN, Poison, feed
from moesaic.conformance.figures import excess
from moesaic.conformance.noise import Deviation, deviation
from moesaic.conformance.oracle import placed
from moesaic.conformance.slope import row_slopes
from moesaic.conformance.subject import Subject
from moesaic.conformance.tolerance import FEW_ROWS, tolerance
from moesaic.errors import Nonconformance
from moesaic.quant import Plain

BACKWARD = 1.5
"""How much more than forward rows a gradient of a 16-bit layer may deviate; kernels that round each tensor that they
store have up to 0.6 times what rows may."""

SINGULAR = 16.0
"""The same in float32 and float64, where the derivatives of activations are not as mild: PowLU's near zero makes 11."""

WEIGHT = "weight tensor"
"""How the names of the layer's own tensors begin."""

ROUTER = "the router weights"
"""They are float32 whatever the dtype of the layer."""


@final
@dataclass(frozen=True)
class Gradients(Check):
    """Gradients of rows, router weights and every weight equal those of the reference, with NaN in undefined memory.

    Then again with some of them frozen: all weights, the whole batch, every second tensor. Meant for F01, F18, F20,
    F31 and F70 in the backward pass: a clamp or a norm that it leaves out, an expert without rows whose gradient is
    uninitialised, NaN that comes back from a masked row, a gradient that comes only beside that of another tensor.
    """

    name: ClassVar[str] = "gradients"
    meaning: ClassVar[str] = "gradients equal those of the reference, and undefined memory reaches none"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if not case.problem.differentiable:
            return "gradients are not asked for"
        if not isinstance(case.problem.scheme.weights, Plain):
            return "codes have no gradient"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        wanted = _gradients(subject, case, CALM, wide=True)
        for frozen in _frozen(tuple(wanted)):
            beside = f" beside {len(frozen)} frozen tensors, {frozen[0]} among them" if frozen else ""
            for name, ours in _gradients(subject, case, NAN, wide=False, frozen=frozen).items():
                allowed = _allowed(case, is_float32=name == ROUTER)
                found = deviation(ours, wanted[name])
                if found.exceeds(allowed):
                    raise Nonconformance(f"the gradient of {name}{beside}", *excess(found, allowed))
                if case.problem.dtype.itemsize == 2:  # elsewhere a factor that is off is far above the rounding
                    row_slopes(case.problem, ours, wanted[name]).judge(f"the gradient of {name}{beside}")


def _frozen(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Which tensors need no gradient, in turn; there are at least two weights and the rows, so some always do."""
    weights = tuple(name for name in names if name.startswith(WEIGHT))
    batch = tuple(name for name in names if not name.startswith(WEIGHT))
    return (), weights, batch, names[::2], names[1::2]


def _allowed(case: Case, *, is_float32: bool) -> Deviation:
    problem = case.problem
    length = max(problem.hidden_size, problem.intermediate_size, case.num_tokens * problem.top_k)
    coarse = max(problem.dtype, torch.float32, key=lambda dtype: torch.finfo(dtype).eps)
    dtype = coarse if is_float32 else problem.dtype
    backward = BACKWARD if problem.dtype.itemsize == 2 else SINGULAR
    forward = tolerance(dtype, problem.scheme, length, FEW_ROWS).times(backward, backward, 1.0)
    # A router weight's gradient is one sum over H that may cancel, so rows are judged together and not one by one.
    return replace(forward, row=float("inf"))


def _gradients(
    subject: Subject, case: Case, poison: Poison, *, wide: bool, frozen: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """Name to gradient `[rows, columns]` on the CPU, for a fixed direction; `wide`: the reference's, in float64.

    The tensors named in `frozen` need none, and have none here.
    """
    device = torch.device("cpu") if wide else subject.device
    backend: Backend[Any] = Reference() if wide else subject.backend
    problem = replace(case.problem, dtype=torch.float64) if wide else case.problem

    def leaf(values: Tensor) -> Tensor:
        if not values.is_floating_point():
            return values.to(device)
        return values.detach().to(device, torch.float64 if wide else values.dtype, copy=True).requires_grad_()

    weights = placed(subject.oracle.weights(case), leaf)
    fed = feed(case, subject.oracle.contents(case), poison, leaf)
    live = fed.live.to(device)
    rows, *rest = batch_tensors(fed.batch)
    named = {f"{WEIGHT} {i}": t for i, t in enumerate(weights.tensors)}
    named["the live rows"] = rows
    for tensor in rest:
        if tensor.is_floating_point():
            named[ROUTER] = tensor
    for name in frozen:
        named.pop(name).requires_grad_(False)
    output = backend.run(fed.batch, backend.prepare(weights, problem), problem)[live]
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(7)).to(device, output.dtype)
    (output * direction).sum().backward()
    found: dict[str, Tensor] = {}
    for name, tensor in named.items():
        gradient = tensor.grad
        if gradient is None:
            raise Nonconformance(f"the gradient of {name}", "a tensor", "None")
        gradient = gradient[live] if tensor is rows else gradient
        found[name] = gradient.reshape(-1, gradient.shape[-1]).double().cpu()
    return found
