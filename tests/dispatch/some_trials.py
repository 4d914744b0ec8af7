"""A part of the dispatchers' kit in which every check is tried, however many of them there are."""

from itertools import groupby
from operator import itemgetter

from moesaic.conformance.dispatch_checks import DISPATCH_CHECKS
from moesaic.conformance.equals_one_rank import EqualsOneRank

NAMES = {check.name for check in (*DISPATCH_CHECKS, EqualsOneRank())}
"""Of every check."""


def by_traffic(trials):
    """The trials of each traffic."""
    return [list(same) for _, same in groupby(trials, itemgetter(1))]


def once(trials):
    """Every check on the first traffic."""
    return by_traffic(trials)[0]


def part(trials, step):
    """Every check on the first traffic; of each other one in `step`, and not the same of two in a row."""
    first, *others = by_traffic(trials)
    chosen = [
        trial for turn, same in enumerate(others) for place, trial in enumerate(same) if (place + turn) % step == 0
    ]
    return [*first, *chosen]
