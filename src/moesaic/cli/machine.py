"""`moesaic machine`: what a choice of backend may know of a machine, this one or a known one."""

from __future__ import annotations

from typing import Annotated

import typer

from moesaic.cli.printing import print_json, print_line, print_table
from moesaic.cli.reading import read_machine
from moesaic.known_machines import KNOWN_MACHINES
from moesaic.machine import Machine


def machine(
    *,
    name: Annotated[
        str | None, typer.Option("--machine", metavar="NAME", help="A known machine, a device here, or a repr.")
    ] = None,
    everything: Annotated[bool, typer.Option("--list", help="List the known machines.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Describe this machine, or one that you may not own."""
    if everything:
        _print_known(as_json=as_json)
        return
    found = read_machine(name)
    if as_json:
        print_json(as_document(found))
        return
    print_line(describe(found))
    for label, value in (
        ("features", ", ".join(found.features) or "none known"),
        ("packages", ", ".join(f"{package} {version}" for package, version in found.packages) or "none"),
        ("value", repr(found)),
    ):
        print_line(f"{label:<9} {value}")


def describe(found: Machine) -> str:
    """One line for people."""
    kind = "multiprocessors" if found.device == "cuda" else "processors"
    size = f"{found.memory_bytes / 2**30:.1f} GiB"
    return f"{found.name} ({found.device}, {found.architecture}, {found.processors} {kind}, {size})"


def as_document(found: Machine) -> dict[str, object]:
    """The machine for JSON; `machine` is its repr, which `--machine` takes."""
    return {
        "machine": repr(found),
        "device": found.device,
        "name": found.name,
        "architecture": found.architecture,
        "processors": found.processors,
        "memory_bytes": found.memory_bytes,
        "features": list(found.features),
        "packages": dict(found.packages),
    }


def _print_known(*, as_json: bool) -> None:
    if as_json:
        print_json({"machines": [{"known_as": name, **as_document(known)} for name, known in KNOWN_MACHINES]})
        return
    print_table(("name", "machine"), ((name, describe(known)) for name, known in KNOWN_MACHINES))
