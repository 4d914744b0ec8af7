"""Every mutant of the kit, in one tuple."""

from __future__ import annotations

from moesaic.conformance.mutants import (
    alignments,
    ambient,
    answers,
    backward,
    broken_batches,
    claims,
    coded,
    crossings,
    deliveries,
    figures,
    formulas,
    histories,
    ids,
    isolated,
    magnitudes,
    not_finite,
    numbers,
    owners,
    places,
    returns,
    rounded_wires,
    shares,
    sizes,
    tails,
    terms,
    wires,
)
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.pieces import PIECES

BACKENDS: tuple[Mutant, ...] = (
    *formulas.MUTANTS,
    *terms.MUTANTS,
    *ids.MUTANTS,
    *tails.MUTANTS,
    *alignments.MUTANTS,
    *numbers.MUTANTS,
    *magnitudes.MUTANTS,
    *shares.MUTANTS,
    *places.MUTANTS,
    *coded.MUTANTS,
    *owners.MUTANTS,
    *histories.MUTANTS,
    *ambient.MUTANTS,
    *sizes.MUTANTS,
    *claims.MUTANTS,
    *answers.MUTANTS,
    *isolated.MUTANTS,
    *crossings.MUTANTS,
    *figures.MUTANTS,
    *not_finite.MUTANTS,
    *backward.MUTANTS,
)
DISPATCHERS: tuple[Mutant, ...] = (
    *deliveries.MUTANTS,
    *broken_batches.MUTANTS,
    *returns.MUTANTS,
    *wires.MUTANTS,
    *rounded_wires.MUTANTS,
)

MUTANTS: tuple[Mutant, ...] = (*BACKENDS, *DISPATCHERS, *PIECES)
"""In the order in which the page of the documentation lists them."""
