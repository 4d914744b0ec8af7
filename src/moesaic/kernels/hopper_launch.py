"""How a grouped product on Hopper is launched: persistent programs, one or two on each multiprocessor."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from moesaic.kernels.activation_expressions import Expression
from moesaic.kernels.hopper_form import ProductForm
from moesaic.kernels.row_order import RowOrder

_KINDS = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.uint8: gl.uint8,
}


def descriptor(values: Tensor, box: list[int]) -> Any:
    """Of `values`, for TMA to copy boxes of."""
    return TensorDescriptor.from_tensor(values, box, _layout((*box,), values.dtype))


@functools.cache
def _layout(box: tuple[int, ...], dtype: torch.dtype) -> Any:
    """Of a box in shared memory; it takes 6 us to derive."""
    return gl.NVMMASharedLayout.get_default_for([*box], _KINDS[dtype])


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def launch(
    kernel: Any,
    operands: tuple[Any, ...],
    order: RowOrder,
    shape: tuple[int, int],
    *,
    counter: int,
    activation: Expression | None,
    form: ProductForm,
) -> None:
    """Launch `kernel` on its own `operands` and what all of them take; `shape`: rows and columns of a matrix."""
    registers = {"maxnreg": form.launched_registers} if form.launched_registers else {}
    kernel[(_processors(order.tiles.device) * form.programs,)](
        *operands,
        (order.tiles, order.max_tiles, order.control, *shape),
        activation.constants if activation is not None else (),
        COUNTER=counter,
        EXPRESSION=activation.function if activation is not None else None,
        PER_EXPERT=activation.per_expert if activation is not None else (),
        FORM=form,
        num_warps=4,
        launch_pdl=True,
        **registers,
    )
