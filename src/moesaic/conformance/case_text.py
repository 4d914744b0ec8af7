"""case_text: the shortest text that is read as the same case, for command lines; what is at its default is left out."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from moesaic.activations import Activation
from moesaic.conformance.case import Case
from moesaic.problem import Problem
from moesaic.quant import Format, Granularity, Scheme


def case_text(case: Case) -> str:
    """For instance `Case(problem=Problem(num_experts=5, ..., activation=SwiGLU(limit=1.5), bias=True))`."""
    same = ("fed",) if case.fed == case.problem.layout else ()
    return _text(case, without=same)


def _text(value: Any, without: tuple[str, ...] = ()) -> str:
    if not (isinstance(value, Case | Problem | Activation | Format | Granularity | Scheme) and is_dataclass(value)):
        return repr(value)
    shown = (
        (f.name, getattr(value, f.name)) for f in fields(value) if f.name not in without and not _is_left(f, value)
    )
    return f"{value.__class__.__name__}({', '.join(f'{name}={_text(found)}' for name, found in shown)})"


def _is_left(field: Field[Any], owner: object) -> bool:
    return field.default is not MISSING and getattr(owner, field.name) == field.default
