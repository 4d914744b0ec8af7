"""`moesaic models`: the table of published models."""

from __future__ import annotations

from typing import Annotated

import typer

from moesaic.activations import Activation
from moesaic.cli.printing import print_json, print_line, print_table
from moesaic.models import MODELS, UNSIZED, KnownModel, known_model


def models(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show all that is known of this one.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the published models whose expert layers are known by name, or show one."""
    if name is not None:
        _print_one(known_model(name), as_json=as_json)
        return
    if as_json:
        without_problem = [{"name": unsized, "known": known} for unsized, known in UNSIZED]
        print_json({"models": [as_document(model) for model in MODELS], "unsized": without_problem})
        return
    columns = ("model", "H", "I", "E", "K", "activation", "a layer in bf16")
    print_table(columns, map(_row, MODELS), numbers=("H", "I", "E", "K", "a layer in bf16"))
    print_line()
    for unsized, known in UNSIZED:
        print_line(f"{unsized}: {known}")


def as_document(model: KnownModel) -> dict[str, object]:
    """A model for JSON; `problem` is its repr, which `--problem` takes."""
    return {
        "name": model.name,
        "same_layer": list(model.same_layer),
        "problem": repr(model.problem),
        "model_hidden_size": model.model_hidden_size,
        "weight_bytes": model.weight_bytes,
        "router": model.router,
        "shared": model.shared,
        "stored": model.stored,
        "source": model.source,
        "note": model.note,
    }


def _print_one(model: KnownModel, *, as_json: bool) -> None:
    document = as_document(model)
    if as_json:
        print_json(document)
        return
    for key, value in document.items():
        if value not in ("", []):
            print_line(f"{key:<18} {', '.join(value) if isinstance(value, list) else value}")


def _row(model: KnownModel) -> tuple[str, ...]:
    problem = model.problem
    hidden = str(problem.hidden_size)
    if model.model_hidden_size != problem.hidden_size:
        hidden = f"{hidden} of {model.model_hidden_size}"
    return (
        ", ".join((model.name, *model.same_layer)),
        hidden,
        str(problem.intermediate_size),
        str(problem.num_experts),
        str(problem.top_k),
        _short(problem.activation) + (", bias" if problem.bias else ""),
        f"{model.weight_bytes / 2**30:.2f} GiB",
    )


def _short(activation: Activation) -> str:
    """The repr without the constants that have their defaults."""
    default = activation.__class__().constants()
    free = (f"{name}={value!r}" for name, value in activation.constants().items() if value != default[name])
    return f"{activation.__class__.__name__}({', '.join(free)})"
