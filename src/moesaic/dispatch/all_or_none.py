"""all_or_none: work that each rank does by itself, but that counts only if every one of them got through it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from traceback import TracebackException

from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.texts import gather_texts, ranks_named
from moesaic.errors import CollectiveError, FleetError

SHOWN = 1000
"""Characters of an error that are told to the other ranks."""


@contextmanager
def all_or_none(ranks: Ranks, step: str, otherwise: str) -> Generator[None, None, None]:
    """Run the block, then compare with the other ranks, all of which are in a block of this step.

    Raises the same FleetError on all ranks if the block raised on one of them: which ranks, what they said, and
    `otherwise`, what was left as it was. An error that means to end the program (KeyboardInterrupt) stays what it is on
    its own rank. A CollectiveError ends the block at once: there is nobody left to tell.
    """
    try:
        yield
    except CollectiveError:
        raise
    except BaseException as fault:
        told = _told(ranks, _words(fault), step)
        if isinstance(fault, Exception):
            raise FleetError(f"{step}: {told}; {otherwise}") from fault
        raise
    told = _told(ranks, "", step)
    if told:
        raise FleetError(f"{step}: {told}; {otherwise}")


def _told(ranks: Ranks, fault: str, step: str) -> str:
    """What went wrong on which ranks, each text once; nothing if nothing did."""
    holders: dict[str, list[int]] = {}
    for rank, text in enumerate(gather_texts(ranks, fault, step, "outcomes")):
        if text:
            holders.setdefault(text, []).append(rank)
    return "; ".join(f"{ranks_named(held)}: {text}" for text, held in holders.items())


def _words(fault: BaseException) -> str:
    """What the other ranks are told, who wait for it even if the text of a caller's error cannot be made."""
    return f"{fault.__class__.__name__}: {TracebackException(fault.__class__, fault, None)}"[:SHOWN]
