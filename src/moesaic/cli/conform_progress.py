"""How far `moesaic conform` is, on stderr: a bar on a terminal, one line for each finished check elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from time import perf_counter
from typing import final

from rich.progress import Progress, TaskID
from typing_extensions import override

from moesaic.cli.printing import error_console, print_note
from moesaic.conformance import Report


class Telling(ABC):
    """Is told of everything, and tells what its reader can use."""

    @abstractmethod
    def begin(self, backend: str) -> None:
        """A backend's turn."""

    @abstractmethod
    def advance(self, done: int, total: int) -> None:
        """So many jobs are done."""

    @abstractmethod
    def finished(self, part: Report) -> None:
        """One check was tried on all cases."""


@contextmanager
def telling() -> Generator[Telling, None, None]:
    """A bar if stderr is a terminal, else lines."""
    console = error_console()
    if not console.is_terminal:
        yield Lines()
        return
    with Progress(console=console, transient=True) as bar:
        yield Bar(bar)


@final
class Bar(Telling):
    """A bar for each backend."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: TaskID | None = None

    @override
    def begin(self, backend: str) -> None:
        self._task = self._bar.add_task(backend, total=None)

    @override
    def advance(self, done: int, total: int) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total)

    @override
    def finished(self, part: Report) -> None:
        pass


@final
class Lines(Telling):
    """For instance `cpu equals_reference: 160 passed, 3 failed, 4.1 s`."""

    def __init__(self) -> None:
        self._began = perf_counter()

    @override
    def begin(self, backend: str) -> None:
        self._began = perf_counter()

    @override
    def advance(self, done: int, total: int) -> None:
        pass

    @override
    def finished(self, part: Report) -> None:
        now = perf_counter()
        counts = ", ".join(f"{count} {status}" for status, count in part.counts.items())
        for check in part.by_check():
            print_note(f"{part.backend} {check}: {counts}, {now - self._began:.1f} s")
        self._began = now
