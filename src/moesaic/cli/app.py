"""`moesaic`: the application and its commands."""

from __future__ import annotations

import io
import sys
from importlib import metadata
from typing import Annotated

import typer

from moesaic.cli.accuracy import accuracy
from moesaic.cli.backends import backends
from moesaic.cli.balance import balance
from moesaic.cli.bench import bench
from moesaic.cli.checkpoint_contents import checkpoint
from moesaic.cli.commands import Commands
from moesaic.cli.conform import conform
from moesaic.cli.demo import demo
from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.explain import explain
from moesaic.cli.machine import machine
from moesaic.cli.matrix import matrix
from moesaic.cli.models import models
from moesaic.cli.printing import print_line, print_note
from moesaic.cli.quantize import quantize
from moesaic.cli.tune import tune

app = typer.Typer(
    cls=Commands,
    help="One Mixture-of-Experts layer for PyTorch whose kernels are interchangeable pieces.",
    epilog="Exit codes: 0 done, 1 the answer is no, 2 bad input, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    machine,
    backends,
    models,
    explain,
    checkpoint,
    quantize,
    accuracy,
    matrix,
    conform,
    balance,
    bench,
    tune,
    demo,
):
    app.command()(command)


def main() -> None:
    """The entry point of the command line."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  (what Python makes of `>&-`)
        print_note("moesaic: stdout is closed, but the answer goes there: redirect it to a file or to /dev/null")
        sys.exit(ExitCode.BAD_INPUT)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a letter that the terminal lacks is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    app()


def _version(asked: bool) -> bool:  # noqa: FBT001
    if asked:
        try:
            found = metadata.version("moesaic")
        except metadata.PackageNotFoundError:
            found = "unknown version, not installed"
        print_line(f"moesaic {found}")
        raise typer.Exit
    return asked


@app.callback()
def moesaic(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run a command."""
    del version  # answered by the callback
