"""Threads: ranks as threads of one process, over gloo, so that real dispatchers run in a notebook or a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, final

import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed import ProcessGroup, ProcessGroupGloo
from typing_extensions import override

from moesaic.batches import Batch
from moesaic.checks import instance, whole_number
from moesaic.dispatch.base import Dispatcher
from moesaic.dispatch.collectives import Ranks, checked_timeout
from moesaic.dispatch.fleet import Call, Fleet, check_share
from moesaic.errors import CollectiveError, DispatchError
from moesaic.layouts import Layout
from moesaic.quant import Format

Result = TypeVar("Result")


def ranks_in_threads(num_ranks: int, timeout: float = 60.0) -> tuple[Ranks, ...]:
    """`num_ranks` ranks of this process that are connected with each other; each is for a thread of its own."""
    number = whole_number("ranks_in_threads", "num_ranks", num_ranks, DispatchError)
    timeout = checked_timeout("ranks_in_threads", timeout)
    store = HashStore()
    gloo: Any = ProcessGroupGloo  # whose options, the only way to name an interface, have no types

    def connect(rank: int) -> Ranks:
        options = gloo._Options()  # noqa: SLF001
        options._devices = [gloo.create_device(hostname="127.0.0.1")]  # noqa: SLF001
        options._timeout = timedelta(seconds=timeout)  # noqa: SLF001
        group = ProcessGroup(store, rank, number)
        backend = gloo(store, rank, number, options)
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)  # noqa: SLF001
        return Ranks(group, timeout=timeout)

    return tuple(in_threads(connect, range(number)))


def in_threads(work: Callable[..., Result], *arguments: Sequence[Any]) -> list[Result]:
    """`work` once for each rank, at the same time, with the rank's own element of each of `arguments`.

    Raises the first error that is not about another rank's silence, else the first; DispatchError for no ranks, or
    arguments for different numbers of them.
    """
    numbers = [len(own) for own in arguments]
    if len(set(numbers)) != 1 or not numbers[0]:
        raise DispatchError(f"in_threads got arguments for {numbers} ranks, but it needs each for the same, at least 1")
    with ThreadPoolExecutor(len(arguments[0])) as pool:
        futures = [pool.submit(work, *own) for own in zip(*arguments, strict=True)]
        wait(futures)
    faults = [fault for future in futures if (fault := future.exception()) is not None]
    if faults:
        raise min(faults, key=lambda fault: isinstance(fault, CollectiveError))
    return [future.result() for future in futures]


@final
@dataclass(frozen=True, kw_only=True)
class Threads(Fleet[Any]):
    """All ranks of `dispatchers`, one for each rank; every call runs in one thread a rank."""

    dispatchers: tuple[Dispatcher[Any], ...]

    def __post_init__(self) -> None:
        for dispatcher in self.dispatchers:
            instance("Threads", "dispatchers", dispatcher, Dispatcher, DispatchError, example="AllToAll(...)")
        super().__post_init__()
        if len(self.dispatchers) != self.num_ranks:
            raise DispatchError(f"{len(self.dispatchers)} dispatchers for {self.num_ranks} ranks: give one for each")
        for rank, dispatcher in enumerate(self.dispatchers):
            reached = dispatcher.num_experts(len(self.experts(rank)))
            if reached != self.num_experts:
                name = dispatcher.__class__.__name__
                raise DispatchError(f"{name} reaches {reached} experts, but the fleet has {self.num_experts}")
            check_share(dispatcher, rank, self.experts(rank))

    @property
    @override
    def layout(self) -> Layout:
        return self.dispatchers[0].layout

    @property
    @override
    def played(self) -> tuple[int, ...]:
        return tuple(range(self.num_ranks))

    @property
    @override
    def rounding(self) -> Format:
        return self.dispatchers[0].rounding

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, Any]]:
        self.checked(calls)
        return in_threads(_dispatch, self.dispatchers, calls)

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[Any]) -> list[Tensor]:
        return in_threads(_combine, self.dispatchers, rows, receipts)


def _dispatch(dispatcher: Dispatcher[Any], call: Call) -> tuple[Batch, Any]:
    return dispatcher.dispatch(*call)


def _combine(dispatcher: Dispatcher[Any], rows: Tensor, receipt: Any) -> Tensor:
    return dispatcher.combine(rows, receipt)
