"""Seeded defects, on which the kit itself is tried: each is wrong in one way and killed by the check meant for it."""

from moesaic.conformance.mutants.base import Judge as Judge
from moesaic.conformance.mutants.base import Mutant as Mutant
from moesaic.conformance.mutants.base import Verdict as Verdict
from moesaic.conformance.mutants.base import verdict as verdict
