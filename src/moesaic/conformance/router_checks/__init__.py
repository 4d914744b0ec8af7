"""Every promise of a router that the kit tries."""

from moesaic.conformance.piece import PieceCheck
from moesaic.conformance.router_checks.calling import (
    LogitsUnchanged,
    NothingOnTheHost,
    NoTokens,
    OneRouter,
    OtherExperts,
    RowsAlone,
)
from moesaic.conformance.router_checks.choice import BadLogits, Highest, NanIsSeen, Ties
from moesaic.conformance.router_checks.restriction import BestGroups, BiasOnlySelects, Groups
from moesaic.conformance.router_checks.subject import RouterSubject as RouterSubject
from moesaic.conformance.router_checks.subject import RoutingExample as RoutingExample
from moesaic.conformance.router_checks.weighing import (
    FarLogits,
    Float32Weights,
    NarrowLogits,
    RoutingExamples,
    SumsToScaling,
    ZeroScores,
)

ROUTER_CHECKS: tuple[PieceCheck[RouterSubject], ...] = (
    RoutingExamples(),
    Float32Weights(),
    NarrowLogits(),
    SumsToScaling(),
    ZeroScores(),
    FarLogits(),
    Highest(),
    Ties(),
    BadLogits(),
    NanIsSeen(),
    Groups(),
    BestGroups(),
    BiasOnlySelects(),
    RowsAlone(),
    LogitsUnchanged(),
    NoTokens(),
    NothingOnTheHost(),
    OtherExperts(),
    OneRouter(),
)
"""All of them, in the order in which they are tried."""
