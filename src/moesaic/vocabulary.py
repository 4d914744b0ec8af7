"""The names that a repr of moesaic's values may use: what `parsing.parse` is given on the command line."""

from __future__ import annotations

from moesaic.activations import ACTIVATIONS
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.machine import Machine
from moesaic.output_norm import OutputNorm
from moesaic.problem import Problem
from moesaic.quant import FORMATS, GRANULARITIES, Scheme

VOCABULARY: tuple[type, ...] = (
    *ACTIVATIONS,
    Standard,
    PaddedStandard,
    GroupedContiguous,
    BatchedExperts,
    *GRANULARITIES,
    *FORMATS,
    Scheme,
    OutputNorm,
    Problem,
    Machine,
)
"""Every value class whose repr is read from text."""
