"""StoredWeights: quantized weights as the Triton kernels read them, and the way back to the canonical form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from moesaic.backends.boxed_scales import boxed, planes_of, unboxed
from moesaic.backends.device_weights import dense
from moesaic.backends.shuffled_nibbles import restored, shuffled
from moesaic.errors import WeightsError
from moesaic.problem import Problem
from moesaic.quant import Plain, Quantized
from moesaic.weights import ExpertWeights

if TYPE_CHECKING:
    from moesaic.kernels.activation_expressions import Expression
    from moesaic.kernels.rounded_form import RoundedForm
    from moesaic.kernels.stored_experts import Stored

TWO = 128
"""Its code in E8M0: scales up to it can be multiplied by 2^126."""


@final
@dataclass(frozen=True, eq=False)
class StoredWeights:
    """Both projections, the activation, and what rows are rounded to; codes of 4 bits are shuffled."""

    gate_up: StoredProjection
    down: StoredProjection
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    expression: Expression
    inputs: RoundedForm | None
    """None for rows in the dtype of the layer."""

    @classmethod
    def of(cls, weights: ExpertWeights, problem: Problem) -> StoredWeights:
        """Copies codes of 4 bits, and tensors that are not dense."""
        from moesaic.backends.format_forms import rounded_form  # noqa: PLC0415
        from moesaic.kernels.activation_expressions import expression  # noqa: PLC0415

        gate_up, down = (StoredProjection.of(w, problem.dtype) for w in (weights.gate_up, weights.down))
        biases = (weights.gate_up_bias, weights.down_bias)
        b1, b2 = (None if bias is None else bias.detach().contiguous() for bias in biases)
        inputs = problem.scheme.inputs
        rounded = None if isinstance(inputs, Plain) else rounded_form(inputs)
        return cls(gate_up, down, b1, b2, expression(problem.activation, gate_up.stored.codes.device), rounded)

    def canonical(self) -> ExpertWeights:
        """The weights that came, bit for bit."""
        return ExpertWeights(self.gate_up.canonical(), self.down.canonical(), self.gate_up_bias, self.down_bias)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that is kept alive."""
        constants = (c for c in self.expression.constants if isinstance(c, Tensor))
        biases = (bias for bias in (self.gate_up_bias, self.down_bias) if bias is not None)
        return (*self.gate_up.tensors, *self.down.tensors, *biases, *constants)


@final
@dataclass(frozen=True, eq=False)
class StoredProjection:
    """One projection as a kernel takes it, and what it was before."""

    stored: Stored
    origin: Quantized
    """Format and scales; what `stored` has in another order is left out."""

    @classmethod
    def of(cls, weight: Quantized, dtype: torch.dtype) -> StoredProjection:
        """`weight`, all experts, to meet rows in `dtype`."""
        from moesaic.backends.format_forms import stored_form  # noqa: PLC0415
        from moesaic.kernels.stored_experts import Stored  # noqa: PLC0415

        form = stored_form(weight.format)
        if form is None:
            raise WeightsError(f"no Triton kernel reads {weight.format!r}: choose a scheme that the backend declares")
        scales = {name: dense(scale.detach()) for name, scale in weight.scales.items()}
        data = weight.data.detach()
        if form.packed and form.scale == "e8m0":
            form = replace(form, small=int(scales["scale"].view(torch.uint8).max()) <= TWO)
        codes = shuffled(data) if form.packed else dense(data)
        # Columns of an empty tensor count as its width, so the rest keeps shape and checks without the memory.
        left = data.new_empty(()).expand(data.shape) if form.packed else codes
        found = _scales(scales["scale"])
        form = replace(form, planes=planes_of(form, found))
        if form.planes:
            boxes = boxed(found, weight.parts, form)
            scales["scale"], found = scales["scale"].new_empty(()).expand(scales["scale"].shape), boxes
        zero = scales.get("zero_point")
        offset = None if zero is None else (zero.to(torch.int16) - 8).to(dtype)  # exact: -8 to 7
        return cls(
            Stored(form, _readable(codes), found, offset, scales.get("global_scale")),
            Quantized(weight.format, left, scales, weight.parts),
        )

    def canonical(self) -> Quantized:
        """What came, bit for bit."""
        origin = self.origin
        if not self.stored.form.packed:
            return origin
        scales = dict(origin.scales)
        if self.stored.form.planes:
            whole = unboxed(self.stored.scales, origin.parts, scales["scale"].shape)
            scales["scale"] = whole.view(scales["scale"].dtype)
        return Quantized(origin.format, restored(self.stored.codes, origin.shape[-1]), scales, origin.parts)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Codes and scales."""
        offset = () if self.stored.zero_points is None else (self.stored.zero_points,)
        scales = dict(self.origin.scales)
        if self.stored.form.planes:
            scales["scale"] = self.stored.scales
        return (self.stored.codes, *scales.values(), *offset)


def _readable(values: Tensor) -> Tensor:
    """E4M3 as such where the hardware knows it, else as bytes."""
    from moesaic.kernels.stored_experts import fast_codes  # noqa: PLC0415

    unknown = values.dtype == torch.float8_e4m3fn and not fast_codes(values.device)
    return values.view(torch.uint8) if unknown else values


def _scales(values: Tensor) -> Tensor:
    """Scales of 8 bits are decoded by the kernel."""
    return values.view(torch.uint8) if values.dtype.itemsize == 1 else values
