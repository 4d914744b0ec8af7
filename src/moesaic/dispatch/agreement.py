"""agree: ranks compare what they were told when a layer is built, so that a difference is an error and no hang."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import metadata

import torch

from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.texts import gather_texts, ranks_named
from moesaic.errors import DispatchError

SHOWN = 60
"""Characters of a value in an error."""


def versions() -> dict[str, str]:
    """Those of moesaic and torch: other versions may prepare, route or choose otherwise."""
    try:
        own = metadata.version("moesaic")
    except metadata.PackageNotFoundError:
        own = "not installed"
    return {"version of moesaic": own, "version of torch": str(torch.__version__)}


def agree(ranks: Ranks, facts: Mapping[str, str], *, owner: str) -> None:
    """Compare `facts` with those of every other rank; all ranks call this at the same point of the program.

    A fact that some rank does not state is not compared. Raises DispatchError with every fact that differs, its values
    and their ranks, the same on all ranks; CollectiveError if a rank is not heard from.
    """
    gathered = gather_texts(ranks, json.dumps(dict(facts)), f"{owner}.agree", "facts")
    every: list[dict[str, str]] = [json.loads(text) for text in gathered]
    found = {name: [stated[name] for stated in every] for name in facts if all(name in stated for stated in every)}
    differing = [f"{name}: {apart(values)}" for name, values in found.items() if len(set(values)) > 1]
    if differing:
        raise DispatchError(f"{owner}: the ranks of a layer differ in " + "; and in ".join(differing))


def apart(values: Sequence[str]) -> str:
    """Which ranks hold which value, for people; `values[r]` is that of rank r.

    >>> apart(["64", "64", "128"])
    '64 on ranks 0, 1, but 128 on rank 2'
    """
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(value, []).append(rank)
    common = _common_start(list(holders))
    return ", but ".join(f"{_short(value, common)} on {ranks_named(held)}" for value, held in holders.items())


def _common_start(values: Sequence[str]) -> int:
    """How many characters all values begin with."""
    first, last = min(values), max(values)
    return next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def _short(value: str, common: int) -> str:
    """A long value around the place where it differs from the others."""
    if len(value) <= SHOWN:
        return value
    start = max(0, common - SHOWN // 2)
    cut = value[start : start + SHOWN]
    return f"{'...' * (start > 0)}{cut}{'...' * (start + SHOWN < len(value))}"
