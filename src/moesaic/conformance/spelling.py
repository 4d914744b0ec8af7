"""Spelling: how a backend is written down in what a reader types to repeat a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from moesaic.backends import BACKENDS, Reference
from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.case_text import case_text
from moesaic.conformance.outcome import command
from moesaic.conformance.strangers import attempt


@final
@dataclass(frozen=True)
class Spelling:
    """`text` is what `moesaic conform` takes: a name, an entry point or `module:Class`.

    Where a command line cannot build the backend, `is_typed` is False and `text` is its repr, for Python. `device`:
    the one that was asked for, None for that of `Machine.current`.
    """

    text: str
    is_typed: bool = True
    device: str | None = None

    def repetition(self, check: str, case: Case | None) -> str:
        """What tries `check` on `case` again; without a case, the declaration."""
        if self.is_typed:
            return command(self.text, check, case) + ("" if self.device is None else f" --device {self.device}")
        there = "" if self.device is None else f", Machine.current({self.device!r})"
        chosen = "" if case is None else f", checks=[{check!r}], cases=[{case_text(case)}]"
        return f"conform({self.text}{there}{chosen})"


def spelling(backend: Backend[Any], device: str | None = None) -> Spelling:
    """By its name in this package, as `module:Class` elsewhere, as its repr if it has constants of its own."""
    if any(backend == known for known in (Reference(), *BACKENDS)):
        return Spelling(backend.name, device=device)
    kind: type[Backend[Any]] = backend.__class__
    if "<locals>" in kind.__qualname__ or not _is_built_bare(backend):
        return Spelling(repr(backend), is_typed=False, device=device)
    return Spelling(f"{kind.__module__}:{kind.__qualname__}", device=device)


def _is_built_bare(backend: Backend[Any]) -> bool:
    kind: type[Backend[Any]] = backend.__class__
    return attempt(lambda: kind() == backend) is True  # the class may need arguments
