"""Mutants of the capability check: a wrong answer to what is asked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, final

from typing_extensions import override

from moesaic.backends.capabilities import Capabilities, Reason, ReasonCode
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.layouts import Standard
from moesaic.machine import Machine
from moesaic.problem import Problem


@final
@dataclass(frozen=True)
class AcceptsBias(Steps):
    """Bias is not declared, and accepted."""

    name: ClassVar[str] = "F11_undeclared_bias_accepted"
    capabilities: ClassVar[Capabilities] = replace(ONE_ACTIVATION, bias=False)

    @override
    def reasons_against(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        return Steps.reasons_against(self, replace(problem, bias=False), machine)


@final
@dataclass(frozen=True)
class AcceptsLimit(Steps):
    """A limit is not declared, and accepted."""

    name: ClassVar[str] = "F01_undeclared_limit_accepted"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def reasons_against(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        found = Steps.reasons_against(self, problem, machine)
        return tuple(reason for reason in found if reason.code is not ReasonCode.ACTIVATION_CONSTANT)


@final
@dataclass(frozen=True)
class AcceptsDeterminism(Steps):
    """Equal bits are not declared, and promised."""

    name: ClassVar[str] = "F95_undeclared_determinism_accepted"
    capabilities: ClassVar[Capabilities] = replace(ONE_ACTIVATION, deterministic=False)

    @override
    def reasons_against(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        return Steps.reasons_against(self, replace(problem, deterministic=False), machine)


@final
@dataclass(frozen=True)
class AcceptsAnyDevice(Steps):
    """A device that is not declared is accepted."""

    name: ClassVar[str] = "F68_undeclared_device_accepted"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def reasons_against(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        return Steps.reasons_against(self, problem, replace(machine, device="cpu"))


@final
@dataclass(frozen=True)
class AcceptsPaddedForStandard(Steps):
    """PaddedStandard is accepted by a backend that reads every row."""

    name: ClassVar[str] = "F70_padded_rows_accepted_for_standard"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def reasons_against(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        asked = replace(problem, layout=Standard()) if problem.layout.has_routing else problem
        return Steps.reasons_against(self, asked, machine)


@final
@dataclass(frozen=True)
class WrongCode(Steps):
    """A dtype is declined as a scheme."""

    name: ClassVar[str] = "F64_reason_with_the_wrong_code"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def reasons_against(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        found = Steps.reasons_against(self, problem, machine)
        code = ReasonCode.SCHEME
        return tuple(replace(r, code=code) if r.code is ReasonCode.DTYPE else r for r in found)


@final
@dataclass(frozen=True)
class OneReasonTooMany(Steps):
    """A dtype that is declined brings a reason about the layout with it."""

    name: ClassVar[str] = "F64_reason_that_does_not_stand"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def further_reasons(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        beside = Reason(ReasonCode.LAYOUT, "Standard()", repr(problem.layout))
        return (beside,) if problem.dtype not in self.capabilities.dtypes else ()


@final
@dataclass(frozen=True)
class DeclinesDeclared(Steps):
    """The router weight on the input is declared, and declined."""

    name: ClassVar[str] = "F70_declared_flag_declined"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def reasons_against(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        beside = (Reason(ReasonCode.WEIGHT_ON_INPUT, "no", "yes"),) if problem.weight_on_input else ()
        return (*Steps.reasons_against(self, problem, machine), *beside)


@final
@dataclass(frozen=True)
class DeclinesBeyond(Steps):
    """Bias is declared, and declined by what the declaration cannot say."""

    name: ClassVar[str] = "F70_declared_bias_declined_beyond_the_declaration"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def further_reasons(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        return (Reason(ReasonCode.BIAS, "no expert biases", "asked for by the problem"),) if problem.bias else ()


@final
@dataclass(frozen=True)
class AnswerChanges(Steps):
    """The second answer to one question is another."""

    name: ClassVar[str] = "F75_second_answer_differs"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    asked: list[int] = field(default_factory=lambda: [0], compare=False)

    @override
    def reasons_against(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        self.asked[0] += 1
        probed = (Reason(ReasonCode.MEMORY, "a free device", "a busy one"),) if self.asked[0] % 7 == 0 else ()
        return (*Steps.reasons_against(self, problem, machine), *probed)


@final
@dataclass(frozen=True)
class AnswerRaises(Steps):
    """The check raises for an output norm instead of declining it."""

    name: ClassVar[str] = "F72_capability_check_raises"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def further_reasons(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        if problem.output_norm is not None:
            raise ValueError("no such norm")
        return ()


@final
@dataclass(frozen=True)
class LimitIgnored(Steps):
    """Any number of experts is accepted."""

    name: ClassVar[str] = "F42_number_of_experts_not_judged"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def reasons_against(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        found = Steps.reasons_against(self, problem, machine)
        return tuple(reason for reason in found if reason.code is not ReasonCode.NUM_EXPERTS)


@dataclass(frozen=True)
class Inherits(Steps):
    """Declares, and is derived from."""

    name: ClassVar[str] = "F69_declaration_inherited"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION


@final
@dataclass(frozen=True)
class Inheriting(Inherits):
    """The declaration is that of a parent class."""


MUTANTS: tuple[Mutant, ...] = (
    of_backend(AcceptsBias(), "declines", Honest()),
    of_backend(AcceptsLimit(), "declines", Honest()),
    of_backend(AcceptsDeterminism(), "declines", Honest()),
    of_backend(AcceptsAnyDevice(), "declines", Honest()),
    of_backend(AcceptsPaddedForStandard(), "declines", Honest()),
    of_backend(WrongCode(), "declines", Honest()),
    of_backend(OneReasonTooMany(), "declines", Honest()),
    of_backend(DeclinesDeclared(), "declines", Honest()),
    of_backend(DeclinesBeyond(), "cells", Honest()),
    of_backend(AnswerChanges(), "declines", Honest()),
    of_backend(AnswerRaises(), "declines", Honest()),
    of_backend(LimitIgnored(), "declines", Honest()),
    of_backend(Inheriting(), "declaration", Honest()),
)
