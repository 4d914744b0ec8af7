"""What is not declared is declined, with the reason that is meant for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from typing_extensions import override

from moesaic.activations import ACTIVATIONS, Activation
from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Accepts, Capabilities, ReasonCode, judge
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.moved import moved, moved_per_expert
from moesaic.conformance.subject import Subject
from moesaic.conformance.unlisted import UnlistedActivation, UnlistedFormat
from moesaic.errors import FormatError, Nonconformance
from moesaic.layouts import BatchedExperts, GroupedContiguous, Layout, PaddedStandard, Standard
from moesaic.machine import Machine
from moesaic.output_norm import OutputNorm
from moesaic.problem import DTYPES, Problem
from moesaic.quant import SCHEMES, UNQUANTIZED, Plain, Scheme

EVERY_LAYOUT: tuple[Layout, ...] = (
    Standard(),
    PaddedStandard(),
    GroupedContiguous(1),
    GroupedContiguous(12),
    GroupedContiguous(128),
    BatchedExperts(),
)

ENDLESS = 2**62
"""Bytes of memory, so that no answer is about memory unless it is meant to be."""

MOST_OF_A_NUMBER = 2**63 - 1
"""The largest number of experts or slots that a `Problem` takes."""

Asked = tuple[ReasonCode, Problem, Machine]


@final
@dataclass(frozen=True)
class Declines(Check):
    """Each field of the served problem and of the machine changed to what is not declared: exactly one reason code.

    Meant for F01, F09, F11, F41, F64, F66, F68 to F71 and F75: a clamp, a bias or a dtype that is accepted and lost.
    Also that the answer is pure: the same twice, and empty for what the case asks.
    """

    name: ClassVar[str] = "declines"
    meaning: ClassVar[str] = "what is declared is served, all else is declined with its own reason"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        return None

    @override
    def run(self, subject: Subject, case: Case) -> None:
        backend, can = subject.backend, subject.backend.capabilities
        machine = replace(subject.machine, memory_bytes=ENDLESS)
        expected = (*judge(can, case.problem, machine), *backend.further_reasons(case.problem, machine))
        for _ in range(2):
            found = backend.reasons_against(case.problem, machine)
            if found != expected:
                wanted = "those of the declaration, each time" if expected else "none, each time"
                raise Nonconformance(f"reasons against {case.problem!r}", wanted, "; ".join(map(str, found)) or "none")
        if expected:
            return
        for code, problem, there in (*_problems(can, case.problem, machine), *_machines(can, case.problem, machine)):
            codes = [reason.code for reason in backend.reasons_against(problem, there)]
            if set(codes) != {code}:
                changed = repr(problem) if there == machine else repr(there)
                raise Nonconformance(f"reasons against {changed}", f"{code} alone", ", ".join(codes) or "none")


def _problems(can: Capabilities, served: Problem, machine: Machine) -> Iterator[Asked]:
    for code, changes in (
        *_kinds(can, served),
        *_constants(can, served),
        *_flags(can, served),
        *_sizes(can, served),
    ):
        yield code, replace(served, **changes), machine


def _kinds(can: Capabilities, served: Problem) -> Iterator[tuple[ReasonCode, dict[str, Any]]]:
    for dtype in DTYPES:
        # A wider element keeps rows of a multiple of row_bytes; a narrower one may not, which is another reason.
        whole = not any(n * dtype.itemsize % can.row_bytes for n in (served.hidden_size, served.intermediate_size))
        if dtype not in can.dtypes and whole:
            yield ReasonCode.DTYPE, {"dtype": dtype}
    unlisted = UnlistedFormat()
    if not can.any_scheme:
        for known in (UNQUANTIZED, *SCHEMES, Scheme(unlisted, Plain()), Scheme(served.scheme.weights, unlisted)):
            if known not in can.schemes and _is_stored(served, {"scheme": known}):
                yield ReasonCode.SCHEME, {"scheme": known}
    for layout in EVERY_LAYOUT:
        if not any(consumed.accepts(layout) for consumed in can.layouts):
            on_input = served.weight_on_input and layout.has_routing
            yield ReasonCode.LAYOUT, {"layout": layout, "weight_on_input": on_input}
    listed = {accepts.activation for accepts in can.activations}
    for kind in () if can.any_activation else (*ACTIVATIONS, UnlistedActivation):
        if kind not in listed:
            yield ReasonCode.ACTIVATION, {"activation": kind()}


def _constants(can: Capabilities, served: Problem) -> Iterator[tuple[ReasonCode, dict[str, Any]]]:
    for accepts in can.activations:
        for activation in _undeclared(accepts, served.num_experts):
            yield ReasonCode.ACTIVATION_CONSTANT, {"activation": activation}


def _undeclared(accepts: Accepts, num_experts: int) -> Iterator[Activation]:
    kind = accepts.activation
    for name, default in kind().constants().items():
        if name not in accepts.scalar and name not in accepts.per_expert:
            yield kind(**{name: moved(kind, name)})
        if name not in accepts.per_expert and not isinstance(default, str) and num_experts > 1:
            yield kind(**{name: moved_per_expert(kind, name, num_experts)})


def _flags(can: Capabilities, served: Problem) -> Iterator[tuple[ReasonCode, dict[str, Any]]]:
    asked: tuple[tuple[ReasonCode, str, bool], ...] = (
        (ReasonCode.BIAS, "bias", can.bias),
        (ReasonCode.WEIGHT_ON_INPUT, "weight_on_input", can.weight_on_input or not served.layout.has_routing),
        (ReasonCode.INACTIVE_SLOTS, "inactive_slots", can.inactive_slots),
        (ReasonCode.DUPLICATE_IDS, "duplicate_ids", can.duplicate_ids),
        (ReasonCode.DETERMINISM, "deterministic", can.deterministic),
        (ReasonCode.GRAPH_CAPTURE, "graph_capture", can.graph_capture),
        (ReasonCode.GRADIENT, "differentiable", can.differentiable),
    )
    yield from ((code, {name: True}) for code, name, declared in asked if not declared)
    if not can.output_norm:
        yield ReasonCode.OUTPUT_NORM, {"output_norm": OutputNorm()}


def _sizes(can: Capabilities, served: Problem) -> Iterator[tuple[ReasonCode, dict[str, Any]]]:
    limits = ((ReasonCode.NUM_EXPERTS, "num_experts", can.max_experts), (ReasonCode.TOP_K, "top_k", can.max_top_k))
    for code, name, highest in limits:
        if highest >= MOST_OF_A_NUMBER:  # no problem has more
            continue
        if name == "top_k" or not served.activation.per_expert():
            yield code, {name: highest + 1}
    for code, name in (
        (ReasonCode.HIDDEN_SIZE, "hidden_size"),
        (ReasonCode.INTERMEDIATE_SIZE, "intermediate_size"),
    ):
        for more in (1, 2):  # an odd number is one that formats of 4 bits do not store
            changed = {name: getattr(served, name) + more}
            if more * served.dtype.itemsize % can.row_bytes and _is_stored(served, changed):
                yield code, changed
                break


def _is_stored(served: Problem, changes: dict[str, Any]) -> bool:
    try:
        replace(served, **changes)
    except FormatError:
        return False
    return True


def _machines(can: Capabilities, served: Problem, machine: Machine) -> Iterator[Asked]:
    elsewhere = replace(machine, device="abacus", architecture="beads")
    yield ReasonCode.DEVICE, served, elsewhere
    if machine.device == "cuda":
        for target in (t for t in can.targets if t.device == "cuda"):
            for capability in (target.min_capability - 1, target.max_capability + 1):
                if capability > 0 and not any(t.min_capability <= capability <= t.max_capability for t in can.targets):
                    yield ReasonCode.ARCHITECTURE, served, replace(machine, architecture=f"sm_{capability}")
    if can.features:
        yield ReasonCode.FEATURE, served, replace(machine, features=())
    if can.requires:
        yield ReasonCode.PACKAGE, served, replace(machine, packages=())
