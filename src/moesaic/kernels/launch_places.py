"""Where the addresses of a launch lie, so that the launch can be made again on other tensors of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from moesaic.kernels.direct_launch import DESCRIPTORS


@final
class Address:
    """In place of a tensor in a descriptor."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def data_ptr(self) -> int:
        """As of a tensor."""
        return self.at


@final
@dataclass(frozen=True)
class Place:
    """Where an address lies: in which of the replay's tensors (inputs, the output, the memory), how far behind."""

    tensor: int
    offset: int


@final
@dataclass(frozen=True, eq=False)
class Moved:
    """An argument with addresses in it: a tuple, whose `parts` are placed, or a descriptor, whose base is."""

    template: Any
    parts: tuple[tuple[int, Place], ...] = ()
    base: Place | None = None

    def at(self, addresses: Sequence[int]) -> Any:
        """The argument itself."""
        if self.base is not None:
            found = object.__new__(self.template.__class__)
            found.__dict__.update(self.template.__dict__)
            found.base = Address(addresses[self.base.tensor] + self.base.offset)
            return found
        given = list(self.template)
        for index, place in self.parts:
            given[index] = addresses[place.tensor] + place.offset
        return tuple(given)


class UnplacedError(Exception):
    """A tensor of which it is not known where it will lie."""


@final
@dataclass(frozen=True, eq=False)
class Places:
    """Which of a replay's tensors an address lies in; `spaces`: storage -> offset in the memory that is shared."""

    inputs: tuple[Tensor, ...]
    out: Tensor
    spaces: dict[int, int]
    constants: frozenset[int]

    def moved(self, argument: Any) -> Moved | None:
        """How a tuple or a descriptor is made anew; None if it stays as it is."""
        if not isinstance(argument, tuple):
            base = self.of(argument.base)
            if base is None:
                return None
            template = object.__new__(argument.__class__)
            template.__dict__.update(argument.__dict__)
            template.base = None
            return Moved(template, base=base)
        parts = {i: self.of(part) for i, part in enumerate(argument) if isinstance(part, Tensor)}
        if any(isinstance(part, tuple) or part.__class__ in DESCRIPTORS for part in argument):
            raise UnplacedError
        placed = tuple((i, place) for i, place in parts.items() if place is not None)
        if not placed:
            return None
        changed = {i for i, _ in placed}
        return Moved(tuple(None if i in changed else part for i, part in enumerate(argument)), placed)

    def of(self, tensor: Tensor) -> Place | None:
        """The place of a tensor's first element; None if it is one of the constants."""
        at, storage = tensor.data_ptr(), storage_of(tensor)
        if storage == storage_of(self.out):
            return Place(len(self.inputs), at - self.out.data_ptr())
        if storage in self.spaces:
            return Place(len(self.inputs) + 1, self.spaces[storage] + at - storage)
        around = [
            n for n, given in enumerate(self.inputs) if 0 <= at - given.data_ptr() < given.numel() * given.itemsize
        ]
        constant = storage in self.constants  # hidden states may lie among the weights
        if len(around) == 1 and not constant:
            return Place(around[0], at - self.inputs[around[0]].data_ptr())
        if constant and not around:
            return None
        raise UnplacedError


def storage_of(tensor: Tensor) -> int:
    """Where its memory begins, which tells two pieces of memory apart."""
    return tensor.untyped_storage().data_ptr()
