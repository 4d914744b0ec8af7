"""Replay: the launches of one call again, on the addresses of other tensors of the same kind.

Calls of a layer with one number of tokens differ in addresses only: the kernels, their constants and sizes, and how
much memory they share stay. What it takes the host to find these out is paid once, and memory is allocated as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from moesaic.kernels.direct_launch import DESCRIPTORS, DirectLaunch, Known, is_watched
from moesaic.kernels.launch_places import Moved, Places, UnplacedError, storage_of
from moesaic.kernels.launch_recording import Calls, Launched

ROUNDED = 512
"""Bytes at multiples of which torch's allocator begins, so that a replay's addresses are aligned as the first ones."""

MOST_BYTES = 2**26
"""Of a replay's memory. Larger ones the allocator would keep beside those of the calls before, and their kernels take
longer than the host does."""


@final
@dataclass(frozen=True, eq=False)
class Step:
    """One launch: `arguments` with None where an address belongs; `places` and `moved` say which."""

    kernel: DirectLaunch
    known: Known
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]
    places: tuple[tuple[int, int, int], ...]
    moved: tuple[tuple[int, Moved], ...]
    options: dict[str, Any]

    @classmethod
    def of(cls, launched: Launched, lie: Places) -> Step:
        """`launched` without the tensors that will be others. Raises UnplacedError."""
        arguments, places, moved = list(launched.arguments), [], []
        for index, argument in enumerate(launched.arguments):
            if isinstance(argument, Tensor):
                place = lie.of(argument)
                if place is not None:
                    arguments[index] = None
                    places.append((index, place.tensor, place.offset))
            elif isinstance(argument, tuple) or argument.__class__ in DESCRIPTORS:
                found = lie.moved(argument)
                if found is not None:
                    arguments[index] = None
                    moved.append((index, found))
        return cls(
            launched.kernel,
            launched.known,
            launched.grid,
            tuple(arguments),
            tuple(places),
            tuple(moved),
            launched.options,
        )

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Once more, on `addresses`."""
        given = list(self.arguments)
        for index, tensor, offset in self.places:
            given[index] = addresses[tensor] + offset
        for index, moved in self.moved:
            given[index] = moved.at(addresses)
        self.kernel.launch_again(self.known, self.grid, stream, given, self.options)


@final
@dataclass(frozen=True, eq=False)
class Replay:
    """A call on inputs of the shapes, dtypes, strides and alignments of those that were recorded."""

    steps: tuple[Step, ...]
    shape: torch.Size
    num_bytes: int
    device: int

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The output, of the dtype of the first input. The current device is that of the inputs."""
        rows = inputs[0]
        out = rows.new_empty(self.shape)
        memory = rows.new_empty(self.num_bytes, dtype=torch.uint8)
        addresses = (*[tensor.data_ptr() for tensor in inputs], out.data_ptr(), memory.data_ptr())
        stream = self.steps[0].known.stream(self.device)
        for step in self.steps:
            step.launch(addresses, stream)
        return out

    @property
    def serves(self) -> bool:
        """Whether launches may go past Triton now: not where somebody asked to be told of them."""
        return not is_watched()

    @classmethod
    def of(
        cls, calls: Calls, inputs: Sequence[Tensor], constants: Iterable[Tensor], out: Tensor, device: int
    ) -> Replay | None:
        """The replay of `calls`, which read `inputs` and `constants` and filled `out`; None if they cannot be again.

        `constants` are those whose addresses stay: their tensors are kept.
        """
        own = storage_of(out)
        storages = {storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in calls.allocated}
        whole = out.is_contiguous() and storages.get(own) == out.numel() * out.itemsize
        if calls.other or not calls.launches or not whole or out.dtype != inputs[0].dtype:
            return None
        spaces, num_bytes = dict[int, int](), 0
        for storage, size in storages.items():
            if storage != own:
                spaces[storage] = num_bytes
                num_bytes += -(-size // ROUNDED) * ROUNDED
        if num_bytes > MOST_BYTES:
            return None
        lie = Places(tuple(inputs), out, spaces, frozenset(map(storage_of, constants)))
        try:
            steps = tuple(Step.of(launched, lie) for launched in calls.launches)
        except UnplacedError:
            return None
        return cls(steps, out.shape, num_bytes, device)
