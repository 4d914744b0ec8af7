"""The mutants of activations, routers and formats in one tuple."""

from moesaic.conformance.mutants.activation_constants import WRONG_CONSTANTS
from moesaic.conformance.mutants.activation_numerics import WRONG_NUMERICS
from moesaic.conformance.mutants.activations import WRONG_FORMULAS
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.format_contracts import WRONG_CONTRACTS
from moesaic.conformance.mutants.formats import WRONG_FORMATS
from moesaic.conformance.mutants.formats_small import WRONG_SMALL_FORMATS
from moesaic.conformance.mutants.router_calls import WRONG_CALLS
from moesaic.conformance.mutants.routers import WRONG_ROUTERS

PIECES: tuple[Mutant, ...] = (
    *WRONG_FORMULAS,
    *WRONG_NUMERICS,
    *WRONG_CONSTANTS,
    *WRONG_ROUTERS,
    *WRONG_CALLS,
    *WRONG_FORMATS,
    *WRONG_CONTRACTS,
    *WRONG_SMALL_FORMATS,
)
"""All of them; a judge is a value, so they can be tried in any order."""
