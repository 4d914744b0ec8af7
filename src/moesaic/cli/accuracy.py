"""`moesaic accuracy`: what each format costs trained models, in bits per byte and in the error of a layer's output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import Progress

from moesaic.cli.accuracy_document import accuracy_document
from moesaic.cli.accuracy_of_model import Accuracy, accuracies
from moesaic.cli.accuracy_page import accuracy_page, columns_of, rows_of
from moesaic.cli.bits_per_byte import cut_windows
from moesaic.cli.checkpoint import check_has_experts, names_directory, read_model
from moesaic.cli.demo import SHIPPED, WINDOWS
from moesaic.cli.printing import error_console, print_json, print_table
from moesaic.cli.reading import read_as
from moesaic.cli.text_coder import text_coder
from moesaic.errors import ParseError
from moesaic.quant import FORMATS, SCHEMES, Scheme


def accuracy(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL...", help="Shipped models, or directories; else all shipped.")
    ] = None,
    *,
    formats: Annotated[
        str | None, typer.Option("--formats", metavar="NAMES", help="Formats of weights, for instance FP8,INT4.")
    ] = None,
    scheme: Annotated[
        list[str] | None, typer.Option("--scheme", metavar="REPR", help="A scheme of your own; may be repeated.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Read the whole validation text.")] = False,
    write: Annotated[Path | None, typer.Option("--write", metavar="FILE", help="Write the page to FILE too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure what every scheme costs, experts run by the oracle: weights and inputs are rounded, nothing else."""
    schemes = _schemes(formats, scheme or [])
    directories = [_directory(name) for name in models or sorted(p.name for p in SHIPPED.iterdir() if p.is_dir())]
    texts = cut_windows((SHIPPED / "austen_valid.txt").read_bytes(), None if full else WINDOWS)
    console = error_console()
    found: dict[str, tuple[Accuracy, ...]] = {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("measuring", total=len(directories) * (1 + len(schemes)))
        for directory in directories:
            model = read_model(directory, dtype=torch.bfloat16, trust_remote_code=False)
            check_has_experts(directory, model)
            coder = text_coder(directory, model.config.get_text_config().vocab_size, trust_remote_code=False)
            found[directory.name] = accuracies(model, coder, texts, schemes, lambda: bar.advance(task))
    document = accuracy_document(found, len(texts))
    if write is not None:
        _write(write, accuracy_page(document))
    if as_json:
        print_json(document)
        return
    columns = columns_of(document)
    print_table(columns, rows_of(document), numbers=columns[2:])


def _directory(name: str) -> Path:
    known = SHIPPED / name
    if not names_directory(name) and not known.is_dir():
        shipped = ", ".join(sorted(path.name for path in SHIPPED.iterdir() if path.is_dir()))
        raise ParseError(f"{name!r} is no shipped model and no directory: give a directory, or one of {shipped}")
    return Path(name) if names_directory(name) else known


def _schemes(formats: str | None, own: Sequence[str]) -> tuple[Scheme, ...]:
    given = tuple(read_as(Scheme, text, "--scheme") for text in own)
    if formats is None:
        return given or SCHEMES[1:]
    kinds = {kind.__name__: kind for kind in FORMATS}
    wanted = [name.strip() for name in formats.split(",")]
    unknown = [name for name in wanted if name not in kinds]
    if unknown:
        raise ParseError(
            f"--formats got {unknown[0]!r}, but it needs names among {', '.join(kinds)}, for instance FP8,INT4"
        )
    chosen = [s for s in SCHEMES[1:] if any(isinstance(s.weights, kinds[name]) for name in wanted)]
    return tuple(dict.fromkeys((*chosen, *given)))


def _write(file: Path, page: str) -> None:
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as fault:
        raise ParseError(f"--write got {str(file)!r}, which cannot be written: {fault.strerror}") from None
