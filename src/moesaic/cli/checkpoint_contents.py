"""`moesaic checkpoint`: what the files of a model hold, and what would run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, final

import typer
from rich.progress import Progress

from moesaic.cli.backend_choice import all_backends
from moesaic.cli.checkpoint import read_config
from moesaic.cli.checkpoint_problem import unquantized_problem
from moesaic.cli.explain import chosen_name
from moesaic.cli.machine import describe
from moesaic.cli.printing import error_console, print_json, print_line
from moesaic.cli.reading import read_machine
from moesaic.errors import CheckpointError, MoesaicError
from moesaic.problem import Problem
from moesaic.quant import Scheme
from moesaic.resolve import resolve


def checkpoint(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="With config.json and *.safetensors.")],
    *,
    layer: Annotated[str | None, typer.Option("--layer", metavar="N", help="A number, or a name as listed.")] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="NAME", help="A known machine, a device here, or a repr.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Read every layer's experts: all scales and shapes.")] = False,
    trust_remote_code: Annotated[bool, typer.Option(help="Let a checkpoint's own code run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what a checkpoint holds: its layers with experts, how they are stored, and which backend would run them."""
    found = opened(directory)
    names = [block.name for block in found.layers]
    asked = found.layer(int(layer) if layer is not None and layer.isdecimal() else layer or names[0]).name
    first, num_experts, scheme = found.read(asked, experts=range(1)), found.num_experts(asked), found.scheme(asked)
    document: dict[str, object] = {
        "method": repr(found.method),
        "layers": names,
        "layer": asked,
        "num_experts": num_experts,
        "hidden_size": first.gate_up.shape[-1],
        "intermediate_size": first.down.shape[-1],
        "scheme": repr(scheme),
        "layer_bytes": first.num_bytes * num_experts,
    }
    described = _described(directory, scheme, document, trust_remote_code=trust_remote_code)
    document |= described.as_document(machine)
    if check:
        document["checked_bytes"] = _check(found, names)
    if as_json:
        print_json(document)
        return
    shown = {**document, "method": found.method.__class__.__name__}  # what it says of scales the tensors know better
    for name, value in shown.items():
        print_line(f"{name.replace('_', ' '):<18} {', '.join(value) if isinstance(value, list) else value}")


def opened(directory: str) -> Any:
    """The Checkpoint in `directory`; safetensors, an extra, is imported here."""
    try:
        from moesaic.checkpoints import Checkpoint  # noqa: PLC0415 - safetensors is an extra
    except ImportError:
        raise CheckpointError("reading a checkpoint needs safetensors: pip install 'moesaic[checkpoints]'") from None
    return Checkpoint(directory)


@final
@dataclass(frozen=True)
class Described:
    """The problem of a layer, or why it is not known."""

    problem: Problem | None
    why_not: str

    def as_document(self, machine: str | None) -> dict[str, object]:
        """The problem and the backend that runs it, for JSON and for lines."""
        if self.problem is None:
            return {"problem": None, "why_no_problem": self.why_not}
        resolution = resolve(self.problem, read_machine(machine), all_backends())
        return {
            "problem": repr(self.problem),
            "machine": describe(resolution.machine),
            "backend": chosen_name(resolution, named=False),
        }


def _described(directory: str, scheme: Scheme, document: Mapping[str, object], *, trust_remote_code: bool) -> Described:
    """Activation and router are not in the tensors: transformers' own code of the model is asked for them."""
    try:
        config = read_config(directory, trust_remote_code=trust_remote_code)
        problem = unquantized_problem(directory, config, trust_remote_code=trust_remote_code)
        problem = replace(problem, scheme=scheme)
        for name in ("num_experts", "hidden_size", "intermediate_size"):
            if getattr(problem, name) != document[name]:
                raise CheckpointError(f"the model's code has {name} {getattr(problem, name)}, the tensors another")
    except MoesaicError as fault:
        return Described(None, str(fault))
    return Described(problem, "")


def _check(found: Any, names: list[str]) -> int:
    """Bytes of the experts of all layers, every one of which was read; a bar is drawn on a terminal."""
    console = error_console()
    total = 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading", total=len(names))

        def advance(_: int, experts: int) -> None:
            bar.advance(task, 1 / experts)

        for name in names:
            total += found.read(name, progress=advance).num_bytes
    return total
