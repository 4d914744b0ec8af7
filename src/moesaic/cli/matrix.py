"""`moesaic matrix`: the capability matrix of the documentation, written from the declarations or checked."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer

from moesaic.cli.backend_choice import all_backends
from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.matrix_page import matrix_page
from moesaic.cli.printing import print_json, print_text
from moesaic.errors import ParseError


def matrix(
    *,
    write: Annotated[Path | None, typer.Option("--write", metavar="FILE", help="Write the page to FILE.")] = None,
    check: Annotated[Path | None, typer.Option("--check", metavar="FILE", help="Exit with 1 if FILE differs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Print what every backend declares as a Markdown page. Exit code 1: the file checked is out of date."""
    if write is not None and check is not None:
        raise ParseError("--write and --check are both given; give one")
    page = matrix_page(all_backends())
    differences = [] if check is None else _differences(check, page)
    if write is not None:
        _write(write, page)
    if as_json:
        print_json({"matrix": page, "up_to_date": not differences, "differences": differences})
    elif check is not None:
        print_text("".join(f"{line}\n" for line in differences))
    elif write is None:
        print_text(page)
    if differences:
        raise typer.Exit(ExitCode.NO)


def _write(file: Path, page: str) -> None:
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as fault:
        raise ParseError(f"--write got {str(file)!r}, which cannot be written: {fault.strerror}") from None


def _differences(file: Path, page: str) -> list[str]:
    try:
        found = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise ParseError(
            f"--check got {str(file)!r}, which cannot be read ({fault}): write it with `moesaic matrix --write {file}`"
        ) from None
    if found == page:
        return []
    new = f"declarations (bring it up to date with `moesaic matrix --write {file}`)"
    lines = difflib.unified_diff(found.splitlines(), page.splitlines(), str(file), new, lineterm="")
    return list(lines) or ["the files differ in their line ends"]
