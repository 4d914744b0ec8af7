"""The capability matrix as a Markdown page: a pure function of the backends' declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from moesaic.activations import ACTIVATIONS, Activation
from moesaic.backends import Backend
from moesaic.cli.backend_choice import is_oracle
from moesaic.cli.declarations import FLAGS, accepted, dtype_names, limit_text, needs, target_names
from moesaic.layouts import BatchedExperts, GroupedContiguous, Layout, PaddedStandard, Standard
from moesaic.problem import DTYPES
from moesaic.quant import Scheme

_LAYOUTS: tuple[Layout, ...] = (
    Standard(),
    PaddedStandard(),
    GroupedContiguous(),
    GroupedContiguous(128),
    BatchedExperts(),
)

_HEAD = """\
# What every backend declares

Written by `moesaic matrix --write`, from the declarations; do not edit. Backends stand in order of preference.
The oracle runs only when it is named. `no` and `-` mean declined: undeclared is never served.
"""


def matrix_page(backends: Sequence[Backend[Any]]) -> str:
    """The page. Equal declarations give equal text on every machine."""
    names = [f"{backend.name} (oracle)" if is_oracle(backend) else backend.name for backend in backends]
    sections = (
        ("Where they run", _places(backends)),
        ("Layouts of rows that are taken", _layouts(backends)),
        ("Dtypes", _dtypes(backends)),
        ("Schemes: how weights and inputs are stored", _schemes(backends)),
        ("Activations, and their constants that may differ from the default", _activations(backends)),
        ("What else a problem may ask for", _flags(backends)),
        ("Limits", _limits(backends)),
    )
    return _HEAD + "".join(f"\n## {title}\n\n{_table(names, rows)}" for title, rows in sections)


def _places(backends: Sequence[Backend[Any]]) -> Iterator[tuple[str, ...]]:
    yield ("devices", *("; ".join(target_names(b.capabilities)) for b in backends))
    yield ("needs", *("; ".join(needs(b.capabilities)) or "-" for b in backends))


def _layouts(backends: Sequence[Backend[Any]]) -> Iterator[tuple[str, ...]]:
    for layout in _LAYOUTS:
        taken = (any(own.accepts(layout) for own in b.capabilities.layouts) for b in backends)
        yield (f"`{layout!r}`", *map(_yes, taken))


def _dtypes(backends: Sequence[Backend[Any]]) -> Iterator[tuple[str, ...]]:
    for name in (str(dtype).removeprefix("torch.") for dtype in DTYPES):
        yield (f"`{name}`", *(_yes(name in dtype_names(b.capabilities)) for b in backends))


def _schemes(backends: Sequence[Backend[Any]]) -> Iterator[tuple[str, ...]]:
    schemes: list[Scheme] = []
    for backend in backends:
        schemes += [scheme for scheme in backend.capabilities.schemes if scheme not in schemes]
    for scheme in schemes:
        yield (f"`{scheme!r}`", *(_yes(scheme in b.capabilities.schemes) for b in backends))


def _activations(backends: Sequence[Backend[Any]]) -> Iterator[tuple[str, ...]]:
    for activation in ACTIVATIONS:
        yield (f"`{activation()!r}`", *(_constants(activation, b) for b in backends))


def _constants(activation: type[Activation], backend: Backend[Any]) -> str:
    for accepts in backend.capabilities.activations:
        if accepts.activation is activation:
            free = accepted(accepts)
            parts = (("each expert", free["per_expert"]), ("one for all", free["scalar"]))
            return "; ".join(f"{how}: {', '.join(names)}" for how, names in parts if names) or "as is"
    return "-"


def _flags(backends: Sequence[Backend[Any]]) -> Iterator[tuple[str, ...]]:
    for flag in FLAGS:
        yield (f"`{flag}`", *(_yes(getattr(b.capabilities, flag)) for b in backends))


def _limits(backends: Sequence[Backend[Any]]) -> Iterator[tuple[str, ...]]:
    yield ("rows are a multiple of", *(f"{b.capabilities.row_bytes} bytes" for b in backends))
    yield ("most experts", *(limit_text(b.capabilities.max_experts) for b in backends))
    yield ("most slots for a token", *(limit_text(b.capabilities.max_top_k) for b in backends))


def _yes(answer: bool) -> str:  # noqa: FBT001
    return "yes" if answer else "no"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [("", *names), ("---", *("---" for _ in names)), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
