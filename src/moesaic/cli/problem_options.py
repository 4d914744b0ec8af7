"""One option per field of a Problem, so that a command can take a whole problem as one argument."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Annotated, Any, final

import typer

from moesaic.cli.checkpoint import names_directory
from moesaic.cli.checkpoint_problem import checkpoint_problem
from moesaic.cli.reading import read_as, read_dtype, read_value
from moesaic.errors import ParseError
from moesaic.models import known_model
from moesaic.problem import Problem

_PANEL = "Fields of the problem"


@final
@dataclass(frozen=True)
class FieldOption:
    """An option that sets one field of a Problem."""

    field: str
    option: str
    metavar: str
    help: str


FIELD_OPTIONS: tuple[FieldOption, ...] = (
    FieldOption("num_experts", "--experts", "L", "Experts held by this rank."),
    FieldOption("top_k", "--top-k", "K", "Slots for each token."),
    FieldOption("hidden_size", "--hidden", "H", "Columns of the rows that the experts see."),
    FieldOption("intermediate_size", "--intermediate", "I", "Columns between the two projections."),
    FieldOption("activation", "--activation", "VALUE", "For instance 'SwiGLU(limit=7.0)'."),
    FieldOption("dtype", "--dtype", "DTYPE", "Of rows and plain weights, for instance bfloat16."),
    FieldOption("scheme", "--scheme", "VALUE", "How weights and inputs are stored: 'Scheme(MXFP4(), Plain())'."),
    FieldOption("layout", "--layout", "VALUE", "How rows lie, for instance 'GroupedContiguous(alignment=128)'."),
    FieldOption("bias", "--bias/--no-bias", "", "Both projections have a bias."),
    FieldOption("output_norm", "--output-norm", "VALUE", "For instance 'OutputNorm(eps=1e-06)'."),
    FieldOption("weight_on_input", "--weight-on-input/--weight-on-output", "", "Where the router weight multiplies."),
    FieldOption("inactive_slots", "--inactive-slots/--no-inactive-slots", "", "Ids outside the range may occur."),
    FieldOption("duplicate_ids", "--duplicate-ids/--no-duplicate-ids", "", "One expert may occur twice for a token."),
    FieldOption("deterministic", "--deterministic/--no-deterministic", "", "Two runs must agree bit for bit."),
    FieldOption("graph_capture", "--graph-capture/--no-graph-capture", "", "Calls are captured in a CUDA graph."),
    FieldOption("differentiable", "--differentiable/--no-differentiable", "", "Gradients are needed."),
)


@final
@dataclass(frozen=True)
class AskedProblem:
    """A problem as asked: a model or a whole repr to start from, and the fields set by options over it."""

    model: str | None
    problem: str | None
    fields: tuple[tuple[str, str | bool], ...]

    def read(self, *, trust_remote_code: bool = False, more: Sequence[type] = ()) -> Problem:
        """The problem; `more` are classes that its values may be of beside those of the package.

        Raises a MoesaicError naming what is wrong or missing.
        """
        if self.model is not None and self.problem is not None:
            raise ParseError(
                "--model and --problem are both given; give one, and change single fields by their options"
            )
        given = {name: _field_value(name, value, more) for name, value in self.fields}
        if self.problem is not None:
            return replace(read_as(Problem, self.problem, "--problem", more), **given)
        if self.model is None:
            return _from_fields(given)
        if names_directory(self.model):
            return replace(checkpoint_problem(self.model, trust_remote_code=trust_remote_code), **given)
        return replace(known_model(self.model).problem, **given)


def takes_problem(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of a problem; it gets them as its first argument, an AskedProblem."""

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        set_fields = tuple((f.field, v) for f in FIELD_OPTIONS if (v := given.pop(f.field)) is not None)
        command(AskedProblem(given.pop("model"), given.pop("problem"), set_fields), **given)

    own = tuple(inspect.signature(command, eval_str=True).parameters.values())[1:]
    parameters = [*_start_parameters(), *own, *map(_field_parameter, FIELD_OPTIONS)]
    vars(wrapper)["__signature__"] = inspect.Signature(parameters)
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _from_fields(given: dict[str, Any]) -> Problem:
    needed = {field.name for field in fields(Problem) if field.default is MISSING}
    missing = [f.option for f in FIELD_OPTIONS if f.field in needed - set(given)]
    if missing:
        them = "it" if len(missing) == 1 else "them"
        raise ParseError(f"the problem lacks {', '.join(missing)}: give {them}, or start from --model or --problem")
    return Problem(**given)


def _field_value(name: str, value: str | bool, more: Sequence[type]) -> Any:  # noqa: FBT001
    if isinstance(value, bool):
        return value
    return read_dtype(value) if name == "dtype" else read_value(value, more)


def _start_parameters() -> list[inspect.Parameter]:
    model = typer.Option("--model", metavar="NAME_OR_DIR", help="Start from a known model, or a local checkpoint.")
    problem = typer.Option("--problem", metavar="REPR", help="Start from the repr of a Problem.")
    return [_parameter("model", Annotated[str | None, model]), _parameter("problem", Annotated[str | None, problem])]


def _field_parameter(field: FieldOption) -> inspect.Parameter:
    is_flag = "/" in field.option
    option = typer.Option(field.option, metavar=field.metavar or None, help=field.help, rich_help_panel=_PANEL)
    return _parameter(field.field, Annotated[bool | None, option] if is_flag else Annotated[str | None, option])


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
