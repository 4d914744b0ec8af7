"""Backends that are wrong in one way each, and one that is right: what the kit is tried on.

Each is `Reference` around one defect. They stand at the top of a module so that they can be sent to another process.
"""

import os
import signal
import time
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from moesaic import (
    UNQUANTIZED,
    Accepts,
    Backend,
    BatchedExperts,
    Capabilities,
    GroupedContiguous,
    PaddedStandard,
    PaddedStandardBatch,
    Plain,
    Quantized,
    Reference,
    Standard,
    SwiGLU,
    Target,
)
from tests.unchecked import unchecked

DECLARED = Capabilities(
    targets=(Target("cpu"),),
    features=(),
    requires=(),
    dtypes=(torch.float32,),
    schemes=(UNQUANTIZED,),
    any_scheme=False,
    layouts=(Standard(), PaddedStandard(), GroupedContiguous(), BatchedExperts()),
    activations=(Accepts(SwiGLU, per_expert=("limit",)),),
    any_activation=False,
    bias=True,
    output_norm=False,
    weight_on_input=False,
    inactive_slots=True,
    duplicate_ids=True,
    deterministic=True,
    graph_capture=False,
    differentiable=False,
    row_bytes=1,
    max_experts=2**31 - 1,
    max_top_k=2**31 - 1,
)


@dataclass(frozen=True)
class Around(Backend):
    """Reference, to be bent."""

    def prepare(self, weights, problem):
        return weights

    def canonical(self, prepared, problem):
        return prepared

    def tensors(self, prepared):
        return prepared.tensors

    def workspace(self, problem, num_rows):
        return Reference().workspace(problem, num_rows)

    def run(self, batch, prepared, problem):
        return Reference().run(batch, prepared, problem)


@dataclass(frozen=True)
class Right(Around):
    name: ClassVar[str] = "right"
    capabilities: ClassVar[Capabilities] = DECLARED


@dataclass(frozen=True)
class DropsBias(Around):
    name: ClassVar[str] = "drops_bias"
    capabilities: ClassVar[Capabilities] = DECLARED

    def run(self, batch, prepared, problem):
        bare = replace(prepared, gate_up_bias=None, down_bias=None)
        return Reference().run(batch, bare, replace(problem, bias=False))


@dataclass(frozen=True)
class DropsBiasOfLongRows(Around):
    """Two things have to meet: a bias, and rows of 100 elements and more."""

    name: ClassVar[str] = "drops_bias_of_long_rows"
    capabilities: ClassVar[Capabilities] = DECLARED

    def run(self, batch, prepared, problem):
        kind = DropsBias if problem.hidden_size >= 100 else Right
        return kind().run(batch, prepared, problem)


@dataclass(frozen=True)
class DropsBiasAndLimit(Around):
    """Two faults at once, which show on different cases."""

    name: ClassVar[str] = "drops_bias_and_limit"
    capabilities: ClassVar[Capabilities] = DECLARED

    def run(self, batch, prepared, problem):
        activation = problem.activation if isinstance(problem.activation.limit, tuple) else SwiGLU()
        return DropsBias().run(batch, prepared, replace(problem, activation=activation))


@dataclass(frozen=True)
class Tiled(Around):
    """Right, with a constant that a command line cannot give."""

    name: ClassVar[str] = "tiled"
    capabilities: ClassVar[Capabilities] = DECLARED
    rows: int


@dataclass(frozen=True)
class SwapsGateAndUp(Around):
    name: ClassVar[str] = "swaps_gate_and_up"
    capabilities: ClassVar[Capabilities] = DECLARED

    def run(self, batch, prepared, problem):
        gate, up = prepared.gate_up.data.chunk(2, dim=1)
        swapped = replace(prepared, gate_up=Quantized(Plain(), torch.cat([up, gate], dim=1)))
        return Reference().run(batch, swapped, problem)


@dataclass(frozen=True)
class ReadsPadding(Around):
    """Every row depends on the sum of all rows, padding included, multiplied by zero."""

    name: ClassVar[str] = "reads_padding"
    capabilities: ClassVar[Capabilities] = DECLARED

    def run(self, batch, prepared, problem):
        rows = Reference().run(batch, prepared, problem)
        return rows + 0 * batch.rows.sum() if isinstance(batch, PaddedStandardBatch) else rows


@dataclass(frozen=True)
class AliasesMinusOne(Around):
    """The id -1 is the last expert, as Python's index is."""

    name: ClassVar[str] = "aliases_minus_one"
    capabilities: ClassVar[Capabilities] = DECLARED

    def run(self, batch, prepared, problem):
        if not problem.layout.has_routing:
            return Reference().run(batch, prepared, problem)
        ids = batch.routing.topk_ids
        aliased = torch.where(ids == -1, problem.num_experts - 1, ids)
        return Reference().run(replace(batch, routing=replace(batch.routing, topk_ids=aliased)), prepared, problem)


@dataclass(frozen=True)
class OverDeclaresFloat16(Around):
    """Computes in bfloat16 whatever the dtype."""

    name: ClassVar[str] = "over_declares_float16"
    capabilities: ClassVar[Capabilities] = replace(DECLARED, dtypes=(torch.bfloat16, torch.float16))

    def run(self, batch, prepared, problem):
        return Reference().run(batch, prepared, problem).to(torch.bfloat16).to(problem.dtype)


@dataclass(frozen=True)
class ReturnsEmptyRows(Around):
    """A row without an active slot is whatever the allocator left."""

    name: ClassVar[str] = "returns_empty_rows"
    capabilities: ClassVar[Capabilities] = replace(DECLARED, layouts=(Standard(),))

    def run(self, batch, prepared, problem):
        output = torch.empty_like(batch.rows)
        ids = batch.routing.topk_ids
        live = ((ids >= 0) & (ids < problem.num_experts)).any(1)
        output[live] = Reference().run(batch, prepared, problem)[live]
        return output


@dataclass(frozen=True)
class WritesPastTheRows(Around):
    """Zeroes the element behind the rows, which belongs to somebody else."""

    name: ClassVar[str] = "writes_past_the_rows"
    capabilities: ClassVar[Capabilities] = DECLARED

    def run(self, batch, prepared, problem):
        rows = batch.rows
        room = rows.untyped_storage().nbytes() // rows.element_size()
        behind = rows.storage_offset() + rows.numel()
        if rows.is_contiguous() and behind < room:
            torch.as_strided(rows, (1,), (1,), behind).zero_()
        return Reference().run(batch, prepared, problem)


@dataclass(frozen=True)
class AcceptsBias(Around):
    """Declares no bias, and says yes to one."""

    name: ClassVar[str] = "accepts_bias"
    capabilities: ClassVar[Capabilities] = replace(DECLARED, bias=False)

    def reasons_against(self, problem, machine):
        return super().reasons_against(replace(problem, bias=False), machine)


@dataclass(frozen=True)
class Raises(Around):
    name: ClassVar[str] = "raises"
    capabilities: ClassVar[Capabilities] = DECLARED

    def run(self, batch, prepared, problem):
        if batch.rows.shape[0] == 1:
            raise ZeroDivisionError("no tile is that small")
        return Reference().run(batch, prepared, problem)


@dataclass(frozen=True)
class Hangs(Around):
    name: ClassVar[str] = "hangs"
    capabilities: ClassVar[Capabilities] = DECLARED

    def run(self, batch, prepared, problem):
        if batch.rows.shape[0] == 1:
            time.sleep(3600)
        return Reference().run(batch, prepared, problem)


@dataclass(frozen=True)
class Dies(Around):
    name: ClassVar[str] = "dies"
    capabilities: ClassVar[Capabilities] = DECLARED

    def run(self, batch, prepared, problem):
        if batch.rows.shape[0] == 1:
            os.write(2, b"kernel: illegal address\n")
            os.kill(os.getpid(), signal.SIGSEGV)
        return Reference().run(batch, prepared, problem)


with unchecked():
    MALFORMED = replace(DECLARED, dtypes=("bfloat16",), layouts=(), row_bytes=0)


@dataclass(frozen=True)
class Malformed(Around):
    name: ClassVar[str] = "malformed"
    capabilities: ClassVar[Capabilities] = MALFORMED


@dataclass(frozen=True)
class Inherits(Right):
    """Neither name nor declaration of its own."""


MEANT: tuple[tuple[Around, str], ...] = (
    (DropsBias(), "equals_reference"),
    (SwapsGateAndUp(), "equals_reference"),
    (ReadsPadding(), "undefined_rows"),
    (AliasesMinusOne(), "exactly_once"),
    (OverDeclaresFloat16(), "equals_reference"),
    (ReturnsEmptyRows(), "fresh_memory"),
    (WritesPastTheRows(), "canary"),
    (AcceptsBias(), "declines"),
)
"""Every backend that is wrong in what it computes or accepts, and the check that is meant for it."""
