"""Replays: the calls of one prepared layer that were seen before, by their number of tokens, to be launched again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from moesaic.kernels.replayed_launches import Replay

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Hidden states `[T, H]`, ids and weights `[T, K]` of a routing."""

Kind: TypeAlias = tuple[int, int]
"""T and K of inputs that are dense and begin at multiples of ALIGNMENT: calls of one kind differ in addresses only."""

ALIGNMENT = 16
ATTEMPTS = 3
"""The first call of a kind is not recorded: it may compile, and some numbers of tokens never come again. After so many
calls it is clear that the kind cannot be."""
MOST = 256
"""Kinds that are kept, some ten kilobytes each. A layer that sees more begins anew."""


@final
@dataclass(frozen=True, eq=False)
class Replays:
    """Of each kind its replay, or how many calls there were without one. `device`: of calls that are recorded."""

    device: str = "cuda"
    _known: dict[Kind, Replay | int] = field(default_factory=dict[Kind, "Replay | int"], init=False, repr=False)

    def run(self, inputs: Inputs, compute: Callable[[], Tensor], constants: Callable[[], Iterable[Tensor]]) -> Tensor:
        """What `compute()` returns for `inputs`, by a replay where there is one.

        `compute` fills nothing but what it returns and reads nothing but `inputs` and `constants()`.
        """
        kind = kind_of(inputs)
        if kind is None or inputs[0].device.type != self.device or is_observed():
            return compute()
        known = self._known.get(kind, 0)
        if not isinstance(known, int):
            return known(*inputs) if known.serves else compute()
        if known >= ATTEMPTS:
            return compute()
        if len(self._known) >= MOST and known == 0:
            self._known.clear()
        self._known[kind] = known + 1
        return self._recorded(kind, inputs, compute, constants()) if known else compute()

    def _recorded(
        self, kind: Kind, inputs: Inputs, compute: Callable[[], Tensor], constants: Iterable[Tensor]
    ) -> Tensor:
        from moesaic.kernels.launch_recording import recorded_calls  # noqa: PLC0415
        from moesaic.kernels.replayed_launches import Replay  # noqa: PLC0415

        with recorded_calls() as calls:
            rows = compute()
        replay = Replay.of(calls, inputs, constants, rows, inputs[0].get_device())
        if replay is not None:
            self._known[kind] = replay
        return rows


def is_observed() -> bool:
    """Whether a mode of torch is told of this thread's operations; it would miss those that a replay leaves out.

    The conformance kit, for one, fills by such a mode what a call allocates.
    """
    return torch._C._len_torch_dispatch_stack() > 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def kind_of(inputs: Inputs) -> Kind | None:
    """The kind of `inputs`, None if they are to be copied or differ otherwise from most."""
    rows, ids, weights = inputs
    if not (rows.is_contiguous() and ids.is_contiguous() and weights.is_contiguous()):
        return None
    if (rows.data_ptr() | ids.data_ptr() | weights.data_ptr()) % ALIGNMENT or weights.dtype != torch.float32:
        return None
    num_tokens, slots = ids.shape
    return num_tokens, slots
