"""Every promise that the kit tries, one class each, in the order in which they are told."""

from collections.abc import Iterable

from moesaic.conformance.checks.base import Check as Check
from moesaic.conformance.checks.cuda import Capture, HostReads, StreamAndDevice
from moesaic.conformance.checks.declines import Declines
from moesaic.conformance.checks.earlier import ContentsInPlace, OtherLayers, SmallerCall
from moesaic.conformance.checks.edges import DuplicateIds, FewerSlots, HotExpert, OneToken, ZeroTokens
from moesaic.conformance.checks.fresh import FreshMemory
from moesaic.conformance.checks.gradients import Gradients
from moesaic.conformance.checks.large import LargeAddresses, LargeInnerRows, LargeWeights
from moesaic.conformance.checks.marker import ExactlyOnce, Float32Sum
from moesaic.conformance.checks.memory import Canary, Workspace
from moesaic.conformance.checks.nan_rows import NanRows
from moesaic.conformance.checks.ownership import CanonicalWeights, InputsUnchanged, OwnOutput, PrepareTwice
from moesaic.conformance.checks.permutation import ExpertOrder, TokenOrder
from moesaic.conformance.checks.repeat import OtherCalls, TwoRuns
from moesaic.conformance.checks.strides import Strides
from moesaic.conformance.checks.systematic import Systematic
from moesaic.conformance.checks.torch_settings import TorchSettings
from moesaic.conformance.checks.undefined import GarbageIds, IdleExpert, UndefinedRows
from moesaic.conformance.checks.values import EqualsReference
from moesaic.conformance.checks.wide import WideValues
from moesaic.conformance.checks.zeros import Zeros

CHECKS: tuple[Check, ...] = (
    EqualsReference(),  # first: an author mends values before anything else, and most other faults go with them
    Declines(),
    TorchSettings(),
    Systematic(),
    WideValues(),
    Zeros(),
    UndefinedRows(),
    GarbageIds(),
    IdleExpert(),
    FreshMemory(),
    ExactlyOnce(),
    Float32Sum(),
    NanRows(),
    ZeroTokens(),
    OneToken(),
    HotExpert(),
    DuplicateIds(),
    FewerSlots(),
    TokenOrder(),
    ExpertOrder(),
    TwoRuns(),
    OtherCalls(),
    OtherLayers(),
    SmallerCall(),
    ContentsInPlace(),
    InputsUnchanged(),
    CanonicalWeights(),
    PrepareTwice(),
    OwnOutput(),
    Strides(),
    Workspace(),
    Canary(),
    Gradients(),
    Capture(),
    HostReads(),
    StreamAndDevice(),
    LargeAddresses(),
    LargeInnerRows(),
    LargeWeights(),
)
"""All of them; the declaration itself is tried first, by `declaration.py`."""


def in_turn(checks: Iterable[Check]) -> tuple[Check, ...]:
    """`checks` in the order in which they are run: those first that need a process without earlier calls."""
    return tuple(sorted(checks, key=lambda check: not check.before_all))
