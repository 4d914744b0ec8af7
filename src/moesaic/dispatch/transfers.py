"""transfers: which rank sends which expert to which, when a placement changes; the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from moesaic.dispatch.placement import Placement
from moesaic.errors import DispatchError


@final
@dataclass(frozen=True)
class Transfer:
    """The weights of the logical expert `expert` go from rank `source`, which holds it, to rank `target`."""

    expert: int
    source: int
    target: int


def transfers(before: Placement, after: Placement) -> tuple[Transfer, ...]:
    """One for each expert that a rank has in `after` and not in `before`, in the order of slots.

    Of the ranks that hold an expert the one that has least to send up to there sends it. Raises DispatchError for
    placements of other numbers of experts or ranks.
    """
    if (before.num_experts, before.num_ranks) != (after.num_experts, after.num_ranks):
        raise DispatchError(
            f"the new placement is for {after.num_experts} experts on {after.num_ranks} ranks, but the layer has "
            f"{before.num_experts} on {before.num_ranks}: place as many on as many"
        )
    sends = [0] * before.num_ranks
    found: list[Transfer] = []
    for target, experts in enumerate(after.experts):
        for expert in experts:
            if expert in before.experts[target]:
                continue
            holders = [rank for rank, held in enumerate(before.experts) if expert in held]
            source = min(holders, key=sends.__getitem__)
            sends[source] += 1
            found.append(Transfer(expert, source, target))
    return tuple(found)


def rounds(moves: Sequence[Transfer]) -> tuple[tuple[Transfer, ...], ...]:
    """`moves` in rounds in which a rank sends at most one expert and gets at most one, each in the first it fits in.

    At most twice as many rounds as the busiest rank has experts to send or to get.
    """
    made: list[list[Transfer]] = []
    for move in moves:
        for own in made:
            if all(move.source != other.source and move.target != other.target for other in own):
                own.append(move)
                break
        else:
            made.append([move])
    return tuple(map(tuple, made))
