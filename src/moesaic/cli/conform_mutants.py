"""`moesaic conform --mutants`: the kit itself on trial."""

from __future__ import annotations

import os
import sys

import typer
from rich.progress import Progress

from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.mutants_page import mutants_page
from moesaic.cli.printing import error_console, print_json, print_text
from moesaic.conformance.mutants.every import MUTANTS
from moesaic.conformance.mutants.kill_matrix import kill_matrix


def conform_mutants(*, quick: bool, as_json: bool) -> None:
    """Try the kit on every mutant and control. Prints the page of the documentation, or one JSON document.

    Exit code 1: a mutant survived, or died by another check than the one meant for it, or a control was accused.
    """
    with Progress(console=error_console(), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("mutants", total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        matrix = kill_matrix(quick=quick, processes=min(8, os.cpu_count() or 1), progress=advance)
    if as_json:
        print_json(matrix.as_document())
    else:
        print_text(mutants_page(matrix, MUTANTS))
    if not matrix.is_clean:
        raise typer.Exit(ExitCode.NO)
