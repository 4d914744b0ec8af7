"""`moesaic conform --mutants`: the kit itself on trial."""

from __future__ import annotations

import os

import typer
from rich.progress import Progress

from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.mutants_page import mutants_page
from moesaic.cli.printing import error_console, print_json, print_text
from moesaic.conformance.mutants.every import MUTANTS
from moesaic.conformance.mutants.kill_matrix import KillMatrix, kill_matrix


def conform_mutants(*, quick: bool, as_json: bool) -> None:
    """Try the kit on every mutant and control. Prints the page of the documentation, or one JSON document.

    Exit code 1: a mutant survived, or died by another check than the one meant for it, or a control was accused.
    """
    try:
        matrix = _matrix(quick=quick)
    except KeyboardInterrupt:
        if as_json:
            print_json({"interrupted": True})
        else:
            print_text("interrupted; no verdict\n")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        print_json(matrix.as_document())
    else:
        print_text(mutants_page(matrix, MUTANTS))
    if not matrix.is_clean:
        raise typer.Exit(ExitCode.NO)


def _matrix(*, quick: bool) -> KillMatrix:
    console = error_console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("mutants", total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return kill_matrix(quick=quick, processes=min(8, os.cpu_count() or 1), progress=advance)
