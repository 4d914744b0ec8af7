"""tune_layer: measure one layer for several numbers of tokens within a budget, and write its table as it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from moesaic.batches import Batch
from moesaic.cli.clocks import Clock
from moesaic.cli.synthetic_layer import random_batch
from moesaic.cli.tune_bench import Expected, Layer, LayerBench
from moesaic.tuning import Budget, Choice, Entry, Fastest, Origin, Table, TableFiles, candidates, fastest, write_table
from moesaic.tuning.table_files import kept


@final
@dataclass(frozen=True)
class Means:
    """A device, its clock, the directory that tables are written to, and whether what is known is measured `again`."""

    device: torch.device
    clock: Clock
    directory: Path
    again: bool = False


@final
@dataclass(frozen=True)
class Size:
    """What is known of one number of tokens: `entry` is None if the budget did not suffice for it.

    `rows`: what the layer sees of so many tokens. `file`: the table that was written now, None if `entry` was known.
    `refused`: choices that were not to be used, each with the reason.
    """

    tokens: int
    rows: int
    entry: Entry | None
    file: Path | None = None
    refused: tuple[tuple[Choice, str], ...] = ()


def tune_layer(
    layer: Layer, counts: Sequence[int], means: Means, budget: Budget, told: Callable[[int, float], None]
) -> Iterator[Size]:
    """Measure each number of tokens of `counts` that no table in the directory has, or all of them `again`.

    What is complete is written at once, so that neither the end of the budget nor an interruption loses it. `told`
    hears of the number of tokens in progress, and by what share of it there is less to do.
    """
    table = _known(layer, means)
    for tokens in counts:
        batch = random_batch(layer.problem, tokens, means.device, seed=tokens)
        rows = batch.rows.shape[:-1].numel()
        known = next((entry for entry in table.entries if entry.rows == rows), None)
        if known is not None and not means.again:
            told(tokens, 1.0)
            yield Size(tokens, rows, known)
            continue
        best = None if budget.spent else _fastest(layer, batch, means, budget, lambda part, t=tokens: told(t, part))
        if best is None:
            yield Size(tokens, rows, None)
            continue
        entry = Entry(rows, best.choice, best.seconds * 1e6, best.default_seconds * 1e6)
        new = replace(table, entries=(entry,))
        table = new.over(table)
        # The new entry alone: the others may be of a device of another name, or older than what is there by now.
        yield Size(tokens, rows, entry, write_table(means.directory, new), best.refused)


def _known(layer: Layer, means: Means) -> Table:
    """What the directory's tables have for this layer here; raises if what is measured could not be written there."""
    name, problem, origin = layer.backend.name, layer.problem, Origin.of(layer.machine)
    own = kept(means.directory, Table(name, problem, origin))
    there = TableFiles((means.directory,)).find(name, problem, origin).table
    return own if there is None else own.over(there)


def _fastest(layer: Layer, batch: Batch, means: Means, budget: Budget, told: Callable[[float], None]) -> Fastest | None:
    tried = candidates(layer.backend.task(layer.problem, layer.machine), batch.rows.shape[:-1].numel())
    bench = LayerBench(layer, batch, Expected.of(layer, batch), means.clock)
    return fastest(bench, tried, budget, lambda: told(1 / len(tried)))
