"""LiveAllocations: what a call had alive when it held most, with the lines that made it, for a fault of its memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, final
from weakref import ref

import jaxtyping
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

NOT_THE_CALLERS = (*(str(Path(own).parent) for own in (torch.__file__, jaxtyping.__file__, __file__)), "<")
"""How the files begin whose lines are not those of a backend: torch's, the kit's, what checks types at run time."""


@final
@dataclass(eq=False)
class Allocation:
    """Bytes that one line allocated; alive as long as one of the tensors that lie in them is."""

    num_bytes: int
    text: str
    tensors: list[ref[Tensor]] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        """Whether any tensor still lies in it."""
        return any(each() is not None for each in self.tensors)


@final
class LiveAllocations(TorchDispatchMode):
    """Notes the memory of every tensor that Python code makes in its context, in the order of its making.

    What one operation allocates and frees inside itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, Allocation] = {}
        self._given: set[int] = set()
        self._most = 0
        self._largest: tuple[Allocation, ...] = ()

    def largest(self, count: int) -> str:
        """The `count` largest that were alive at once when most bytes were, for instance `8064 in float32 (9, 224)`."""
        return "; ".join(allocation.text for allocation in self._largest[:count]) or "none that Python code made"

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {} if kwargs is None else dict(kwargs)
        self._given |= {where for where, _ in _storages((args, given)) if where not in self._known}
        result = func(*args, **given)
        self._known = {where: known for where, known in self._known.items() if known.is_alive}
        for where, tensor in _storages(result):
            if where in self._known:
                self._known[where].tensors.append(ref(tensor))
            elif where not in self._given:
                self._known[where] = _made(tensor)
        held = sum(known.num_bytes for known in self._known.values())
        if held > self._most:
            self._most = held
            self._largest = tuple(sorted(self._known.values(), key=lambda known: -known.num_bytes))
        return result


def largest_allocations(call: Callable[[], object], count: int = 3) -> str:
    """The `count` largest allocations that were alive at once during `call`, each with its shape and its line."""
    with LiveAllocations() as noted:
        call()
    return noted.largest(count)


def _made(tensor: Tensor) -> Allocation:
    size = tensor.untyped_storage().nbytes()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Allocation(size, f"{size} in {dtype} {tuple(tensor.shape)} at {_line()}", [ref(tensor)])


def _line() -> str:
    """The innermost line outside of torch and the kit."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(NOT_THE_CALLERS):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _storages(values: Any) -> Iterator[tuple[int, Tensor]]:
    """Where the memory of each dense tensor among `values` begins."""
    for value in tree_leaves(values):
        if isinstance(value, Tensor) and value.layout == torch.strided and value.untyped_storage().nbytes():
            yield value.untyped_storage().data_ptr(), value
