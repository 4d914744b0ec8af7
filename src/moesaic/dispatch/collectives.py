"""Ranks: the collectives of torch.distributed in use, each with a timeout and an error that says who waited for whom.

The methods of the process group are called, not the functions of `torch.distributed`: those take no timeout for one
call, and know only groups that are registered in the process.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions
from torch.distributed import ProcessGroup

from moesaic.checks import finite_number, instance
from moesaic.dispatch.devices import reachable
from moesaic.errors import CollectiveError, DispatchError

LOOKING = 20e-6
"""Seconds between two looks at an exchange of NCCL."""

SHORTEST, LONGEST = 0.001, 1e9
"""Seconds: torch counts milliseconds, and gloo nanoseconds since 1970 in 63 bits, which end in 9.2e9 seconds."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Ranks:
    """The ranks of `group`, which exchange tensors on `device`; each exchange may take `timeout` seconds,
    which must also cover the time by which ranks are apart when they build a layer.

    Every rank makes the same calls of one group in the same order, so a group belongs to one thread. After a
    CollectiveError it is lost: gloo closes its connections, NCCL ends the process; leave, or build another group.
    """

    group: ProcessGroup
    device: torch.device | str = "cpu"
    timeout: float = 300.0

    def __post_init__(self) -> None:
        example = "torch.distributed.group.WORLD"
        instance("Ranks", "group", self.group, ProcessGroup, DispatchError, example=example)
        object.__setattr__(self, "timeout", checked_timeout("Ranks", self.timeout))
        object.__setattr__(self, "device", reachable("Ranks", self.device))

    @classmethod
    def world(cls, device: torch.device | str = "cpu", timeout: float = 300.0) -> Ranks:
        """All ranks that `torchrun` started. Raises DispatchError without `torch.distributed.init_process_group`."""
        group = dist.group.WORLD if dist.is_initialized() else None
        if group is None:
            raise DispatchError(
                "there is no process group: start with torchrun and call torch.distributed.init_process_group first"
            )
        return cls(group, device, timeout)

    def __repr__(self) -> str:
        return f"Ranks({self.rank} of {self.size} on {self.device}, timeout={self.timeout:g})"

    def __deepcopy__(self, memo: object) -> Ranks:
        return self  # a copy of a layer talks to the same ranks

    @property
    def size(self) -> int:
        """N."""
        return self.group.size()

    @property
    def rank(self) -> int:
        """This process, counted from 0 in the group."""
        return self.group.rank()

    def all_gather(self, values: Tensor, step: str) -> Tensor:
        """`[N, *shape]`: the `values` of every rank, which all have one shape and dtype."""
        mine = values.contiguous().view(-1)
        every = mine.new_empty(self.size * len(mine))
        options = AllgatherOptions()
        options.timeout = timedelta(seconds=self.timeout)
        with self._heard((mine, every), step):
            self.group._allgather_base(every, mine, options).wait()  # noqa: SLF001
        return every.view(self.size, *values.shape)

    def all_to_all(self, rows: Tensor, sent: Sequence[int], got: Sequence[int], step: str) -> Tensor:
        """`[sum(got), *row]`: what each rank sent here, in the order of ranks; `sent[r]` of `rows` go to rank r."""
        rows = rows.contiguous()
        received = rows.new_empty((sum(got), *rows.shape[1:]))
        options = AllToAllOptions()
        options.timeout = timedelta(seconds=self.timeout)
        with self._heard((rows, received), step):
            self.group.alltoall_base(received, rows, list(got), list(sent), options).wait()
        return received

    def point_to_point(self, sent: Sequence[tuple[Tensor, int]], got: Sequence[tuple[Tensor, int]], step: str) -> None:
        """Send each contiguous tensor of `sent` to its rank, and fill each of `got` with what its rank sends.

        Only the ranks named take part; between two of them tensors meet in order.
        """
        tensors = [tensor for tensor, _ in (*sent, *got)]
        # NCCL runs what is grouped at once, where one after the other could wait in a circle; gloo waits for nothing.
        grouped = bool(tensors) and self.group._get_backend(tensors[0].device).supports_coalescing  # noqa: SLF001
        with self._heard(tensors, step):
            if grouped:
                self.group._start_coalescing(tensors[0].device)  # noqa: SLF001
            works = [self.group.send([tensor], rank, 0) for tensor, rank in sent]
            works += [self.group.recv([tensor], rank, 0) for tensor, rank in got]
            if grouped:
                works = [self.group._end_coalescing(tensors[0].device)]  # noqa: SLF001
                _watch(works[0], self.timeout)
            try:
                while works:
                    works.pop(0).wait(timedelta(seconds=self.timeout))
            finally:
                works.clear()  # which hold the tensors

    def exchange(self, rows: Tensor, step: str) -> Tensor:
        """`[N, *row]`: what each rank sent here, in the order of ranks, given one for each rank; nothing is counted."""
        rows = rows.contiguous()
        received = torch.empty_like(rows)
        options = AllToAllOptions()
        options.timeout = timedelta(seconds=self.timeout)
        with self._heard((rows, received), step):
            self.group.alltoall_base(received, rows, [], [], options).wait()  # without splits: equal ones
        return received

    @contextmanager
    def _heard(self, tensors: Sequence[Tensor], step: str) -> Generator[None, None, None]:
        """Make torch's error in the block one that names `step` and the ranks."""
        start, uses = time.monotonic(), [_uses(tensor) for tensor in tensors]
        try:
            yield
        except RuntimeError as fault:
            taken = time.monotonic() - start
            others = ", ".join(str(rank) for rank in range(self.size) if rank != self.rank)
            _until_let_go(tensors, uses)
            raise CollectiveError(
                f"{step}: rank {self.rank} did not hear from all of the ranks {others} ({taken:.1f} s, of "
                f"{self.timeout:g} s allowed): one of them died, failed or is slower than Ranks.timeout; its own error "
                f"says which. torch: {fault}"
            ) from fault


def checked_timeout(owner: str, timeout: object) -> float:
    """`timeout` as a float of seconds; raises DispatchError for one that is none, or out of bounds."""
    seconds = finite_number(owner, "timeout", timeout, DispatchError)
    if not SHORTEST <= seconds <= LONGEST:
        raise DispatchError(
            f"{owner}.timeout is {seconds:g} seconds, but it needs at least {SHORTEST:g} and at most {LONGEST:g}"
        )
    return seconds


def _watch(work: Any, seconds: float) -> None:
    """Return when `work` is completed, or after `seconds`.

    NCCL's own wait with a timeout sleeps for whole milliseconds, in which 300 MB could travel.
    """
    until = time.monotonic() + seconds
    while not work.is_completed() and time.monotonic() < until:
        time.sleep(LOOKING)


def _until_let_go(tensors: Sequence[Tensor], uses: Sequence[int]) -> None:
    """Wait a moment until the thread of gloo that ran the exchange has let go of the tensors.

    If it does so while Python ends, torch aborts the process.
    """
    for _ in range(1000):
        if all(_uses(tensor) <= before for tensor, before in zip(tensors, uses, strict=True)):
            return
        time.sleep(0.001)


def _uses(tensor: Any) -> int:
    return tensor._use_count()  # noqa: SLF001
