"""The count-aware activation: applied to the rows that are there, in a buffer made for the most there could be.

A dispatcher that does not wait for the host makes its buffers for the worst case. vLLM's padded decode batches hold
`ranks * max_tokens` rows of which 1 to 10 % are live, so an activation over the whole buffer moves 10 to 100 times
the bytes that are needed, and turns whatever lies in the tail into input of the next step. The count stays on the
device, so the call can be captured in a CUDA graph and replayed with another count.

`apply` here is the meaning, in torch, for every device and every activation. It still touches the whole buffer (a
loop of a length that the host does not know cannot be written in torch); `kernels/masked_activation.py` has the same
signature and moves only the live rows. A backend names the one it uses; neither falls back to the other.

Dimensions: T rows of a buffer or of one expert's slab, E experts, D = width(I) columns in and I out.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from moesaic.activations.base import Activation
from moesaic.checks import instance
from moesaic.errors import ActivationError, BatchError

DTYPES: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""What rows and output may be stored in. Arithmetic is in float32, in float64 for float64 rows."""


def apply(
    activation: Activation,
    rows: Float[Tensor, "*experts T D"],
    counts: Int[Tensor, "*experts"],
    *,
    out: Float[Tensor, "*experts T I"] | None = None,
    expert_ids: Int[Tensor, " T"] | None = None,
) -> Float[Tensor, "*experts T I"]:
    """`activation` of the live rows, rounded once to the dtype of `out`; every other row of `out` keeps its bits.

    Flat: rows `[T, D]` with one count of shape `()`. Per expert: rows `[E, T, D]` with counts `[E]`, where the slab
    is the expert. Counts are int32 on the device of the rows, are clamped to `[0, T]` and never read on the host.
    Rows past the count may hold anything, reach no live row and have the gradient zero. `out` is by default a new
    tensor in the dtype of the rows, whose other rows are undefined. `expert_ids` `[T]` is for flat rows and read only
    if a constant differs between experts; the output of a row whose id is outside of those experts is undefined.

    Raises BatchError for a shape, dtype or device that is not described here or for an `out` that shares memory with
    the rows or holds several elements in one place, ActivationError if ids are missing or the constants are not for E
    experts.
    """
    target = checked(activation, rows, counts, out=out, expert_ids=expert_ids)
    ids, known = _experts(activation, rows, expert_ids)
    live = torch.arange(rows.shape[-2], device=rows.device) < counts.unsqueeze(-1)
    if known is not None:
        live = live & known
    if torch.is_grad_enabled() and rows.requires_grad:
        # Dead rows take no part, but 0 times the derivative at a NaN is NaN: it is taken at a 1 in their place.
        rows = rows.where(live.unsqueeze(-1), 1.0)
    value = activation(rows, ids).to(target.dtype)
    target.copy_(torch.where(live.unsqueeze(-1), value, target))
    return target


def checked(
    activation: Activation, rows: Tensor, counts: Tensor, *, out: Tensor | None, expert_ids: Tensor | None
) -> Tensor:
    """`out`, or a new tensor in its place, once everything that `apply` promises about its arguments holds."""
    instance("apply", "activation", activation, Activation, ActivationError, example="SwiGLU()")
    _check_tensors(rows, counts, out, expert_ids)
    if rows.ndim not in (2, 3):
        raise BatchError(f"the rows are {tuple(rows.shape)}, but they need to be (T, D), or (E, T, D) for slabs")
    if counts.shape != rows.shape[:-2] or counts.dtype != torch.int32:
        raise BatchError(
            f"the counts are {counts.dtype} of shape {tuple(counts.shape)}, but rows of shape {tuple(rows.shape)} need "
            f"torch.int32 of shape {tuple(rows.shape[:-2])}"
        )
    _check_experts(activation, rows, expert_ids)
    if activation.gated and rows.shape[-1] % 2:
        raise BatchError(f"{activation!r} reads gate and up side by side, but the rows have {rows.shape[-1]} columns")
    shape = (*rows.shape[:-1], rows.shape[-1] // 2 if activation.gated else rows.shape[-1])
    target = rows.new_empty(shape) if out is None else out
    if target.shape != shape:
        raise BatchError(f"out is {tuple(target.shape)}, but {activation!r} of these rows needs {shape}")
    for name, tensor in (("rows", rows), ("out", target)):
        if tensor.dtype not in DTYPES:
            raise BatchError(f"{name} is {tensor.dtype}, but it needs one of {', '.join(map(str, DTYPES))}")
    for name, tensor in (("counts", counts), ("out", target), ("expert_ids", expert_ids)):
        if tensor is not None and tensor.device != rows.device:
            raise BatchError(f"{name} is on {tensor.device} and the rows on {rows.device}; move one to the other")
    _check_memory(rows, target)
    return target


def _check_tensors(rows: object, counts: object, out: object, expert_ids: object) -> None:
    instance("apply", "rows", rows, Tensor, BatchError, example="torch.ones(4, 6)")
    example = "torch.tensor(3, dtype=torch.int32, device=rows.device)"
    instance("apply", "counts", counts, Tensor, BatchError, example=example)
    if out is not None:
        instance("apply", "out", out, Tensor, BatchError, example="torch.empty(4, 3)")
    if expert_ids is not None:
        instance("apply", "expert_ids", expert_ids, Tensor, BatchError, example="torch.tensor([0, 1]).int()")


def _check_memory(rows: Tensor, target: Tensor) -> None:
    if any(size > 1 and stride == 0 for size, stride in zip(target.shape, target.stride(), strict=True)):
        raise BatchError(
            f"out is an expanded view with strides {target.stride()}, several elements in one place, but each needs "
            "memory of its own: give a new tensor"
        )
    if _overlap(rows, target):
        raise BatchError("out shares memory with the rows, which are not to be changed: give it memory of its own")


def _check_experts(activation: Activation, rows: Tensor, expert_ids: Tensor | None) -> None:
    lengths = activation.per_expert()
    if rows.ndim == 3:
        if expert_ids is not None:
            raise BatchError("expert_ids is given with rows (E, T, D), where the slab is the expert: leave it out")
        for name, length in lengths.items():
            if length != rows.shape[0]:
                raise ActivationError(
                    f"{type(activation).__name__}.{name} holds {length} values, but the rows are for {rows.shape[0]} "
                    "experts: take those of the local experts with Activation.select"
                )
    elif expert_ids is None:
        if lengths:
            raise ActivationError(f"{activation!r} has one constant per expert: pass expert_ids, the expert of a row")
    elif expert_ids.shape != rows.shape[:1] or expert_ids.dtype not in (torch.int32, torch.int64):
        raise BatchError(
            f"expert_ids is {expert_ids.dtype} of shape {tuple(expert_ids.shape)}, but it needs torch.int32 of shape "
            f"({rows.shape[0]},)"
        )


def _experts(activation: Activation, rows: Tensor, expert_ids: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The expert of each row, fit to be an index, and which of them were so from the start."""
    lengths = activation.per_expert()
    if not lengths:
        return None, None
    if expert_ids is None:
        return torch.arange(rows.shape[0], device=rows.device).unsqueeze(-1).expand(rows.shape[:-1]), None
    num_experts = min(lengths.values())
    return expert_ids.clamp(0, num_experts - 1), (expert_ids >= 0) & (expert_ids < num_experts)


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the bytes from the first to the last element of both have one in common."""
    (start, stop), (other_start, other_stop) = _bytes(one), _bytes(other)
    return start < other_stop and other_start < stop


def _bytes(tensor: Tensor) -> tuple[int, int]:
    if tensor.numel() == 0:
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
