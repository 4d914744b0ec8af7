"""`moesaic backends`: every backend and what it declares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from moesaic.backends import Backend, Capabilities
from moesaic.cli.backend_choice import all_backends, is_oracle
from moesaic.cli.declarations import (
    FLAGS,
    accepted,
    dtype_names,
    limit_text,
    needs,
    target_names,
)
from moesaic.cli.printing import print_json, print_line, print_table
from moesaic.cli.short_form import short_form


def backends(
    *,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", metavar="NAME", help="Load this backend of an installed package.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the backends, best first, and what each declares."""
    there = all_backends(plugin or ())
    if as_json:
        print_json({"backends": [as_document(backend) for backend in there]})
        return
    for index, backend in enumerate(there):
        if index:
            print_line()
        print_table((backend.name, ""), rows(backend))


def rows(backend: Backend[Any]) -> Iterator[tuple[str, str]]:
    """One row per property: a block for each backend stays readable in a narrow terminal, a table of all does not."""
    can = backend.capabilities
    flags = {flag: flag.replace("_", " ") for flag in FLAGS}
    yield "chosen", "only when named (oracle)" if is_oracle(backend) else "by preference"
    yield "runs on", ", ".join(target_names(can))
    yield "needs", ", ".join(needs(can)) or "-"
    yield "dtypes", ", ".join(dtype_names(can))
    yield "schemes", "\n".join(_scheme_rows(can))
    yield "layouts", ", ".join(map(repr, can.layouts))
    yield "activations", ", ".join(accepts.activation.__name__ for accepts in can.activations)
    yield "yes", ", ".join(name for flag, name in flags.items() if getattr(can, flag)) or "-"
    yield "no", ", ".join(name for flag, name in flags.items() if not getattr(can, flag)) or "-"
    yield "row bytes", str(can.row_bytes)
    yield "most experts", limit_text(can.max_experts)
    yield "most slots", limit_text(can.max_top_k)


def _scheme_rows(can: Capabilities) -> Iterator[str]:
    """The formats of weights, a line for each format of inputs that they are declared with."""
    for inputs in dict.fromkeys(scheme.inputs for scheme in can.schemes):
        weights = dict.fromkeys(short_form(scheme.weights) for scheme in can.schemes if scheme.inputs == inputs)
        yield f"inputs {short_form(inputs)}: weights {', '.join(weights)}"


def as_document(backend: Backend[Any]) -> dict[str, object]:
    """A declaration for JSON; values are reprs."""
    can = backend.capabilities
    return {
        "backend": backend.name,
        "oracle": is_oracle(backend),
        "targets": list(target_names(can)),
        "features": list(can.features),
        "requires": {needed.package: ".".join(map(str, needed.version)) for needed in can.requires},
        "dtypes": list(dtype_names(can)),
        "schemes": [repr(scheme) for scheme in can.schemes],
        "layouts": [repr(layout) for layout in can.layouts],
        "activations": {a.activation.__name__: accepted(a) for a in can.activations},
        **{flag: bool(getattr(can, flag)) for flag in FLAGS},
        "row_bytes": can.row_bytes,
        "max_experts": can.max_experts,
        "max_top_k": can.max_top_k,
    }
