"""Every mutant of the kit, in one tuple."""

from __future__ import annotations

from moesaic.conformance.mutants import (
    alignments,
    ambient,
    answers,
    broken_batches,
    claims,
    coded,
    deliveries,
    formulas,
    histories,
    ids,
    isolated,
    magnitudes,
    numbers,
    owners,
    places,
    returns,
    shares,
    sizes,
    tails,
    terms,
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
)
DISPATCHERS: tuple[Mutant, ...] = (*deliveries.MUTANTS, *broken_batches.MUTANTS, *returns.MUTANTS)

MUTANTS: tuple[Mutant, ...] = (*BACKENDS, *DISPATCHERS, *PIECES)
"""In the order in which the page of the documentation lists them."""
