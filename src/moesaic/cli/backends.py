"""`moesaic backends`: every backend and what it declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from moesaic.backends import Backend
from moesaic.cli.backend_choice import all_backends, is_oracle
from moesaic.cli.declarations import (
    FLAGS,
    accepted,
    dtype_names,
    limit_text,
    needs,
    target_names,
)
from moesaic.cli.printing import print_json, print_table


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
    print_table(("", *(backend.name for backend in there)), rows(there))


def rows(there: Sequence[Backend[Any]]) -> Iterator[tuple[str, ...]]:
    """One row per property, one column per backend."""
    yield ("chosen", *("only when named (oracle)" if is_oracle(backend) else "by preference" for backend in there))
    declared = [backend.capabilities for backend in there]
    yield ("runs on", *("\n".join(target_names(can)) for can in declared))
    yield ("needs", *("\n".join(needs(can)) or "-" for can in declared))
    yield ("dtypes", *("\n".join(dtype_names(can)) for can in declared))
    yield ("schemes", *("\n".join(map(repr, can.schemes)) for can in declared))
    yield ("layouts", *("\n".join(map(repr, can.layouts)) for can in declared))
    yield ("activations", *("\n".join(accepts.activation.__name__ for accepts in can.activations) for can in declared))
    for flag in FLAGS:
        yield (flag.replace("_", " "), *("yes" if getattr(can, flag) else "no" for can in declared))
    yield ("row bytes", *(str(can.row_bytes) for can in declared))
    yield ("most experts", *(limit_text(can.max_experts) for can in declared))
    yield ("most slots", *(limit_text(can.max_top_k) for can in declared))


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
