"""Cell: one thing that a backend declares. A claim counts for as much as the cells that were executed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.cases import MOST, produced_layouts
from moesaic.machine import Machine


@final
@dataclass(frozen=True)
class Cell:
    """`axis` names a field of the declaration, `value` what is declared there; both are text for reports."""

    axis: str
    value: str

    def __str__(self) -> str:
        return f"{self.axis}: {self.value}"


EXECUTED_BY = {"deterministic": "two_runs", "graph_capture": "capture", "differentiable": "gradients"}
"""The check that executes a cell of the axis; `equals_reference` executes all others."""


def cells_of(backend: Backend[Any]) -> tuple[Cell, ...]:
    """Every cell that `backend` declares, in the order of the fields of its declaration."""
    can = backend.capabilities
    found = [Cell("target", _target(t.device, t.min_capability, t.max_capability)) for t in can.targets]
    for dtype in can.dtypes:
        found += [_pair("dtype and layout", dtype, layout) for layout in produced_layouts(can)]
    found += [Cell("scheme", repr(scheme)) for scheme in can.schemes]
    for accepts in can.activations:
        name = accepts.activation.__name__
        found += [Cell("activation", name)]
        found += [Cell("activation", f"{name}.{constant}") for constant in (*accepts.scalar, *accepts.per_expert)]
        found += [Cell("activation", f"{name}.{constant} per expert") for constant in accepts.per_expert]
    for flag in (
        "any_scheme",
        "any_activation",
        "bias",
        "output_norm",
        "weight_on_input",
        "inactive_slots",
        "duplicate_ids",
        *EXECUTED_BY,
    ):
        found += [Cell(flag, "yes")] if getattr(can, flag) else []
    for limit, highest in (("max_experts", can.max_experts), ("max_top_k", can.max_top_k)):
        found += [Cell(limit, str(highest))] if highest <= MOST else []
    return tuple(dict.fromkeys(found))


def touched(case: Case, check: str, backend: Backend[Any], machine: Machine) -> frozenset[Cell]:
    """The cells that `check` executes by running on `case`."""
    problem, can = case.problem, backend.capabilities
    by_check = {Cell(axis, "yes") for axis, name in EXECUTED_BY.items() if name == check and getattr(problem, axis)}
    if check != "equals_reference":
        return frozenset(by_check)
    name, default = problem.activation.__class__.__name__, problem.activation.__class__().constants()
    found = {
        Cell("activation", name),
        _pair("dtype and layout", problem.dtype, case.fed),
        Cell("scheme", repr(problem.scheme)),
        Cell("max_experts", str(problem.num_experts)),
        Cell("max_top_k", str(problem.top_k)),
    }
    for target in can.targets:
        if target.device == machine.device and target.min_capability <= machine.capability <= target.max_capability:
            found.add(Cell("target", _target(target.device, target.min_capability, target.max_capability)))
    for constant, value in problem.activation.constants().items():
        if value != default[constant]:
            per_expert = " per expert" if isinstance(value, tuple) else ""
            found.add(Cell("activation", f"{name}.{constant}{per_expert}"))
    if problem.activation.__class__ not in {accepts.activation for accepts in can.activations}:
        found.add(Cell("any_activation", "yes"))
    if problem.scheme not in can.schemes:
        found.add(Cell("any_scheme", "yes"))
    for flag in ("bias", "weight_on_input", "inactive_slots", "duplicate_ids"):
        found |= {Cell(flag, "yes")} if getattr(problem, flag) else set()
    found |= {Cell("output_norm", "yes")} if problem.output_norm is not None else set()
    return frozenset(found)


def why_not(cell: Cell, backend: Backend[Any], machine: Machine, checks: Iterable[str] | None = None) -> str:
    """Why no case executed `cell` on `machine`, where `checks` were tried; None for all of them."""
    needed = EXECUTED_BY.get(cell.axis, "equals_reference")
    match cell.axis:
        case "target":
            return f"this machine is {machine.device} {machine.architecture}"
        case "graph_capture" if machine.device != "cuda":
            return "a graph is captured on a CUDA device only"
        case _ if checks is not None and needed not in checks:
            return f"not tried: {needed} executes such a cell"
        case _:
            return f"no case of {backend.name} that was run has it"


def _pair(axis: str, dtype: torch.dtype, value: object) -> Cell:
    return Cell(axis, f"{str(dtype).removeprefix('torch.')} {value!r}")


def _target(device: str, lowest: int, highest: int) -> str:
    return device if device != "cuda" else f"{device} sm_{lowest} to sm_{highest}"
