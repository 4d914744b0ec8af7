"""What `moesaic tune` found, as a table and for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from moesaic.cli.tune_layer import Size
from moesaic.problem import Problem
from moesaic.tuning.choices import short

COLUMNS = ("layer", "tokens", "choice", "microseconds", "cost model", "gain", "")


@final
@dataclass(frozen=True)
class TunedLayer:
    """One layer: its sizes as they come."""

    name: str
    backend: str
    problem: Problem
    sizes: list[Size] = field(default_factory=list[Size])

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of tokens for which the budget did not suffice."""
        return tuple(size.tokens for size in self.sizes if size.entry is None)

    @property
    def files(self) -> tuple[str, ...]:
        """The table that was written now, if any was."""
        return tuple(dict.fromkeys(str(size.file) for size in self.sizes if size.file is not None))

    def rows(self) -> Iterator[tuple[str, ...]]:
        """One for each number of tokens, under COLUMNS."""
        for size in self.sizes:
            entry = size.entry
            if entry is None:
                yield self.name, str(size.tokens), "not measured", "", "", "", "the budget was spent"
                continue
            gain = entry.default_microseconds / entry.microseconds - 1
            times = (f"{entry.microseconds:.1f}", f"{entry.default_microseconds:.1f}", f"{gain:.1%}")
            note = f"{len(size.refused)} refused" if size.refused else ""
            yield (
                self.name,
                str(size.tokens),
                short(entry.choice),
                *times,
                "known before" if size.file is None else note,
            )

    def as_document(self) -> dict[str, object]:
        """For JSON; `problem` and choices are reprs."""
        return {
            "name": self.name,
            "backend": self.backend,
            "problem": repr(self.problem),
            "files": list(self.files),
            "missing": list(self.missing),
            "sizes": [_size(size) for size in self.sizes],
        }


def notes(found: Sequence[TunedLayer]) -> Iterator[str]:
    """What a reader has to know beside the table: choices refused, sizes missing, files written."""
    for layer in found:
        for size in layer.sizes:
            for choice, why in size.refused:
                yield f"not used: {layer.name}, {size.tokens} tokens: {choice!r}: {why}"
        if layer.missing:
            sizes = ", ".join(map(str, layer.missing))
            yield f"not measured: {layer.name}, {sizes} tokens: the budget was spent; run the same again for them"
        for file in layer.files:
            yield f"written: {file}"


def _size(size: Size) -> dict[str, object]:
    entry = size.entry
    return {
        "tokens": size.tokens,
        "rows": size.rows,
        "choice": None if entry is None else repr(entry.choice),
        "microseconds": None if entry is None else entry.microseconds,
        "default_microseconds": None if entry is None else entry.default_microseconds,
        "measured": size.file is not None,
        "refused": [{"choice": repr(choice), "why": why} for choice, why in size.refused],
    }
