"""`moesaic quantize`: a plain checkpoint with its experts in a format that is served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from moesaic.cli.checkpoint_contents import opened
from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.interruption import interruptible
from moesaic.cli.printing import error_console, print_json, print_line, print_note


def quantize(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A plain checkpoint.")],
    *,
    recipe: Annotated[str, typer.Option("--format", metavar="NAME", help="fp8-block, int4-g128, nvfp4, ...")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The directory that is written.")],
    force: Annotated[bool, typer.Option("--force", help="Replace --out if it is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write a checkpoint whose experts are quantized, rounded to the nearest; everything else is copied."""
    source = opened(directory)
    from moesaic.checkpoints import quantize_checkpoint, recipe_named  # noqa: PLC0415 - safetensors is an extra

    chosen = recipe_named(recipe)
    console = error_console()
    try:
        with (
            interruptible(),
            Progress(console=console, transient=True, disable=not console.is_terminal) as bar,
        ):
            task = bar.add_task("quantizing", total=None)

            def advance(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            written = quantize_checkpoint(source, out, chosen, replace=force, progress=advance)
    except KeyboardInterrupt:
        print_note(f"moesaic: interrupted, nothing was written to {out}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    before, after = _bytes(Path(directory)), _bytes(out)
    document: dict[str, object] = {
        "directory": str(out),
        "format": chosen.name,
        "weights": repr(chosen.weights),
        "method": repr(chosen.method),
        "layers": [layer.name for layer in written.layers],
        "bytes_before": before,
        "bytes": after,
    }
    if as_json:
        print_json(document)
        return
    print_line(f"{out}: {len(written.layers)} layers with experts as {chosen.weights!r}")
    print_line(f"{before / 2**20:.1f} MiB of tensors became {after / 2**20:.1f} MiB")


def _bytes(directory: Path) -> int:
    """Bytes of the files that hold tensors."""
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))
