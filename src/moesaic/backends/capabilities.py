"""What a backend declares it can do, as data, and the one judge that compares a declaration with a problem.

Undeclared means declined. A reason says what the backend wanted and what it got, with a code from a closed list;
tests assert on codes, never on text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import final

import torch

from moesaic.activations import Activation
from moesaic.errors import BackendError
from moesaic.layouts import Layout
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.quant import Scheme


@final
class ReasonCode(StrEnum):
    """Why a backend declines: the field of the problem or the machine that stands against it."""

    DEVICE = "device"
    ARCHITECTURE = "architecture"
    FEATURE = "feature"
    PACKAGE = "package"
    DTYPE = "dtype"
    SCHEME = "scheme"
    LAYOUT = "layout"
    ACTIVATION = "activation"
    ACTIVATION_CONSTANT = "activation_constant"
    BIAS = "bias"
    OUTPUT_NORM = "output_norm"
    WEIGHT_ON_INPUT = "weight_on_input"
    INACTIVE_SLOTS = "inactive_slots"
    DUPLICATE_IDS = "duplicate_ids"
    DETERMINISM = "determinism"
    GRAPH_CAPTURE = "graph_capture"
    GRADIENT = "gradient"
    NUM_EXPERTS = "num_experts"
    TOP_K = "top_k"
    HIDDEN_SIZE = "hidden_size"
    INTERMEDIATE_SIZE = "intermediate_size"
    MEMORY = "memory"


@final
@dataclass(frozen=True)
class Reason:
    """One thing that stands against a backend: what it wanted, and what it got."""

    code: ReasonCode
    wanted: str
    got: str

    def __repr__(self) -> str:
        return f"Reason(code=ReasonCode.{self.code.name}, wanted={self.wanted!r}, got={self.got!r})"

    def __str__(self) -> str:
        return f"{self.code}: needs {self.wanted}, got {self.got}"


@final
@dataclass(frozen=True)
class Accepts:
    """An activation class and the constants that may differ from their defaults.

    `scalar`: one value for all experts; `per_expert`: also one value per expert. All others are pinned.
    """

    activation: type[Activation]
    scalar: tuple[str, ...] = ()
    per_expert: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = {f.name for f in fields(self.activation)}
        unknown = sorted({*self.scalar, *self.per_expert} - known)
        if unknown:
            raise BackendError(f"{self.activation.__name__} has no constants {unknown}; it has {sorted(known)}")

    @classmethod
    def everything(cls, activation: type[Activation]) -> Accepts:
        """Accept `activation` with every constant free: numbers per expert, choices such as GeGLU's as scalars."""
        numbers = tuple(f.name for f in fields(activation) if f.metadata.get("constant"))
        choices = tuple(f.name for f in fields(activation) if not f.metadata.get("constant"))
        return cls(activation, scalar=choices, per_expert=numbers)

    def __repr__(self) -> str:
        return f"Accepts({self.activation.__name__}, scalar={self.scalar!r}, per_expert={self.per_expert!r})"

    def reasons_against(self, activation: Activation) -> Iterator[Reason]:
        """Why `activation`, an instance of this class, is not served: one reason per constant."""
        default = self.activation().constants()
        for name, value in activation.constants().items():
            label = f"{self.activation.__name__}.{name}"
            if isinstance(value, tuple) and name not in self.per_expert:
                yield Reason(ReasonCode.ACTIVATION_CONSTANT, f"{label} to be one number", "one per expert")
            elif value != default[name] and name not in self.scalar and name not in self.per_expert:
                yield Reason(ReasonCode.ACTIVATION_CONSTANT, f"{label}={default[name]!r}", repr(value))


@final
@dataclass(frozen=True)
class Target:
    """A kind of device a backend runs on; for CUDA within a range of compute capabilities times ten, inclusive."""

    device: str
    min_capability: int = 0
    max_capability: int = 999


@final
@dataclass(frozen=True)
class Requires:
    """A package and its lowest version, for instance `Requires("triton", (3, 6))`."""

    package: str
    version: tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """A complete declaration; there are no defaults, so nothing is claimed by being forgotten.

    Where it runs, compared with the `Machine`:

    `targets`: kinds of device, `Target("cpu")`; for CUDA with the compute capabilities, `Target("cuda", 90, 90)`.
    `features`: instructions of the processor that are all needed, such as "avx512_bf16"; () for none.
    `requires`: packages beside torch that are all needed, with their lowest version; () for none.

    What it computes, compared with the `Problem`:

    `dtypes`: of hidden states, output and plain weights, each of them in every layout.
    `schemes`: how weights are stored and inputs are rounded; `(UNQUANTIZED,)` for neither.
    `any_scheme`: also every scheme that is not listed (its formats are called, not compiled in).
    `layouts`: what the backend consumes (it is also fed any layout that one of them accepts).
    `activations`: classes, and which of their constants may differ from the defaults.
    `any_activation`: also every activation that is not listed, with all its constants (it is called, not compiled in).
    `bias`: both projections may have one, of any floating-point dtype.
    `output_norm`: an RMS norm of each expert's output, before the router weight (`OutputNorm`), may be asked for.
    `weight_on_input`: the router weight may multiply the hidden state instead of the output.
    `inactive_slots`: ids outside `[0, L)`, any of them, may mark slots that contribute nothing.
    `duplicate_ids`: a token may name one expert in several slots, each of which counts.

    What it promises of a call, each of which a problem may ask for:

    `deterministic`: equal inputs give equal bits in every run, so no atomic addition of floats.
    `graph_capture`: a call can be captured in a CUDA graph and replayed with other contents: no value is read on the
    host, and no memory is taken that is not torch's. False for what runs on a CPU only.
    `differentiable`: torch can differentiate the output by hidden states, router weights and plain weights.

    Sizes:

    `row_bytes`: rows of H and of I elements must be multiples of so many bytes: 16 for loads of 16 bytes, which are 8
    numbers in bfloat16; 1 for any size.
    `max_experts`, `max_top_k`: the highest that is served; 2**31 - 1 for any.
    """

    targets: tuple[Target, ...]
    features: tuple[str, ...]
    requires: tuple[Requires, ...]
    dtypes: tuple[torch.dtype, ...]
    schemes: tuple[Scheme, ...]
    any_scheme: bool
    layouts: tuple[Layout, ...]
    activations: tuple[Accepts, ...]
    any_activation: bool
    bias: bool
    output_norm: bool
    weight_on_input: bool
    inactive_slots: bool
    duplicate_ids: bool
    deterministic: bool
    graph_capture: bool
    differentiable: bool
    row_bytes: int
    max_experts: int
    max_top_k: int


def judge(capabilities: Capabilities, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
    """Every reason against, in the order of the fields; empty means eligible. Pure: nothing is probed."""
    return (
        *_machine_reasons(capabilities, machine),
        *_kind_reasons(capabilities, problem),
        *_flag_reasons(capabilities, problem),
        *_size_reasons(capabilities, problem),
        *_memory_reasons(problem, machine),
    )


def _machine_reasons(can: Capabilities, machine: Machine) -> Iterator[Reason]:
    same_device = [t for t in can.targets if t.device == machine.device]
    if not same_device:
        yield Reason(ReasonCode.DEVICE, _one_of({t.device for t in can.targets}), machine.device)
    elif not any(t.min_capability <= machine.capability <= t.max_capability for t in same_device):
        ranges = {f"sm_{t.min_capability} to sm_{t.max_capability}" for t in same_device}
        yield Reason(ReasonCode.ARCHITECTURE, _one_of(ranges), machine.architecture)
    for feature in can.features:
        if feature not in machine.features:
            yield Reason(ReasonCode.FEATURE, feature, ", ".join(machine.features) or "none known")
    for needed in can.requires:
        found = machine.version(needed.package)
        if found is None or found + (0,) * (len(needed.version) - len(found)) < needed.version:
            wanted = f"{needed.package} >= {'.'.join(map(str, needed.version))}"
            got = "not installed" if found is None else ".".join(map(str, found))
            yield Reason(ReasonCode.PACKAGE, wanted, got)


def _kind_reasons(can: Capabilities, problem: Problem) -> Iterator[Reason]:
    if problem.dtype not in can.dtypes:
        yield Reason(ReasonCode.DTYPE, _one_of(map(str, can.dtypes)), str(problem.dtype))
    if problem.scheme not in can.schemes and not can.any_scheme:
        yield Reason(ReasonCode.SCHEME, _one_of(map(repr, can.schemes)), repr(problem.scheme))
    if not any(layout.accepts(problem.layout) for layout in can.layouts):
        yield Reason(ReasonCode.LAYOUT, _one_of(map(repr, can.layouts)), repr(problem.layout))
    # Compared as classes: a class derived from a declared one computes something else and is not declared.
    accepting = [a for a in can.activations if a.activation == problem.activation.__class__]
    if not accepting and not can.any_activation:
        names = _one_of(a.activation.__name__ for a in can.activations)
        yield Reason(ReasonCode.ACTIVATION, names, repr(problem.activation))
    for accepts in accepting:
        yield from accepts.reasons_against(problem.activation)


def _flag_reasons(can: Capabilities, problem: Problem) -> Iterator[Reason]:
    asked = (
        (ReasonCode.BIAS, "no expert biases", problem.bias, can.bias),
        (ReasonCode.OUTPUT_NORM, "no norm of expert outputs", problem.output_norm is not None, can.output_norm),
        (ReasonCode.WEIGHT_ON_INPUT, "the router weight on the output", problem.weight_on_input, can.weight_on_input),
        (ReasonCode.INACTIVE_SLOTS, "every slot active", problem.inactive_slots, can.inactive_slots),
        (ReasonCode.DUPLICATE_IDS, "distinct ids in a row", problem.duplicate_ids, can.duplicate_ids),
        (ReasonCode.DETERMINISM, "no demand for equal bits in every run", problem.deterministic, can.deterministic),
        (ReasonCode.GRAPH_CAPTURE, "no capture in a CUDA graph", problem.graph_capture, can.graph_capture),
        (ReasonCode.GRADIENT, "no gradients", problem.differentiable, can.differentiable),
    )
    for code, wanted, needed, declared in asked:
        if needed and not declared:
            got = repr(problem.output_norm) if code is ReasonCode.OUTPUT_NORM else "asked for by the problem"
            yield Reason(code, wanted, got)


def _size_reasons(can: Capabilities, problem: Problem) -> Iterator[Reason]:
    if problem.num_experts > can.max_experts:
        yield Reason(ReasonCode.NUM_EXPERTS, f"at most {can.max_experts}", str(problem.num_experts))
    if problem.top_k > can.max_top_k:
        yield Reason(ReasonCode.TOP_K, f"at most {can.max_top_k}", str(problem.top_k))
    size = problem.dtype.itemsize
    for code, columns in (
        (ReasonCode.HIDDEN_SIZE, problem.hidden_size),
        (ReasonCode.INTERMEDIATE_SIZE, problem.intermediate_size),
    ):
        if columns * size % can.row_bytes:
            multiple = can.row_bytes // size
            yield Reason(code, f"a multiple of {multiple} ({can.row_bytes} bytes a row)", str(columns))


def _memory_reasons(problem: Problem, machine: Machine) -> Iterator[Reason]:
    needed = problem.weight_bytes
    if needed > machine.memory_bytes:
        wanted = f"{needed / 2**30:.1f} GiB for the weights of one layer"
        yield Reason(ReasonCode.MEMORY, wanted, f"{machine.memory_bytes / 2**30:.1f} GiB")


def _one_of(names: Iterable[str]) -> str:
    options = sorted(set(names))
    match options:
        case []:
            return "one that is declared, but none is"
        case [only]:
            return only
        case _:
            return "one of " + ", ".join(options)
