"""`moesaic demo`: a trained model whose experts run through moesaic, measured beside transformers' own ways."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import Progress
from torch import Tensor

from moesaic.backends import BACKENDS, Backend
from moesaic.cli.backend_choice import all_backends, backend_named
from moesaic.cli.bits_per_byte import bits_per_byte, cut_windows
from moesaic.cli.checkpoint import check_has_experts, read_model
from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.experts_in_turns import ROUNDS, WAYS, ExpertsInTurns, generate
from moesaic.cli.explain import chosen_name, verdict_rows
from moesaic.cli.machine import describe
from moesaic.cli.printing import error_console, print_json, print_line, print_note, print_table
from moesaic.cli.reading import read_device
from moesaic.cli.text_coder import TextCoder, text_coder
from moesaic.errors import ParseError, PatchError
from moesaic.machine import Machine
from moesaic.resolve import resolve

SHIPPED = Path(__file__).parents[1] / "shipped"
"""The models and the text that come with the package."""

WINDOWS = 48
"""Windows of the validation text that are read without --full."""


def demo(
    *,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What the model goes on from.")] = "It was a truth ",
    model: Annotated[Path, typer.Option(metavar="DIR", help="A local checkpoint.")] = SHIPPED / "austen-qwen3-moe",
    tokens: Annotated[int, typer.Option(metavar="N", min=1, help="New tokens.")] = 100,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N.")] = "cpu",
    backend: Annotated[str | None, typer.Option("--backend", metavar="NAME", help="Use this one only.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Read the whole validation text.")] = False,
    trust_remote_code: Annotated[bool, typer.Option(help="Let a checkpoint's own code run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Generate text with a trained model, and compare moesaic with transformers. Exit code 1: no layer is covered."""
    if not prompt:
        raise ParseError("--prompt is empty, but the model needs something to go on from")
    machine = Machine.current(read_device(device))
    backends = BACKENDS if backend is None else (backend_named(backend, all_backends()),)
    loaded = read_model(model, dtype=torch.bfloat16, trust_remote_code=trust_remote_code).to(device)
    check_has_experts(model, loaded)
    coder = text_coder(model, loaded.config.get_text_config().vocab_size, trust_remote_code=trust_remote_code)
    ids = torch.tensor([coder.encode(prompt.encode(errors="surrogateescape"))], device=loaded.device)
    turns = ExpertsInTurns(loaded, backends)
    report, text = _patched(turns, coder, ids, tokens)
    if not as_json:
        print_line(f"machine  {describe(machine)}")
        print_line()
        _print_choice(machine, report, all_backends() if backend is None else backends, named=backend is not None)
        print_line(text)
        print_line()
    windows = cut_windows((SHIPPED / "austen_valid.txt").read_bytes(), None if full else WINDOWS)
    bits, speeds = _measure(turns, coder, windows, ids, tokens)
    if as_json:
        print_json(_document(report, bits, speeds))
        return
    print_table(
        ("experts run by", "bits per byte", "tokens per second"),
        ((way, f"{bits[way]:.4f}", f"{speeds[way]:.1f}") for way in WAYS),
        numbers=("bits per byte", "tokens per second"),
    )


def _patched(turns: ExpertsInTurns, coder: TextCoder, ids: Tensor, tokens: int) -> tuple[Any, str]:
    """The patch report, and the prompt with text sampled after it (greedy text of small models repeats itself)."""
    try:
        with turns.way("moesaic") as report:
            torch.manual_seed(0)
            new = generate(turns.model, ids, tokens, do_sample=True, temperature=0.7, top_k=40)
            return report, coder.decode(ids[0].tolist() + new)
    except PatchError as fault:
        print_note(f"moesaic: {fault}")
        raise typer.Exit(ExitCode.NO) from None


def _measure(
    turns: ExpertsInTurns, coder: TextCoder, windows: tuple[bytes, ...], ids: Tensor, tokens: int
) -> tuple[dict[str, float], dict[str, float]]:
    console = error_console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring", total=len(WAYS) * (2 + ROUNDS))

        def score() -> float:
            found = bits_per_byte(turns.model, coder, windows)
            progress.advance(task)
            return found

        bits = turns.each(score)
        return bits, turns.tokens_per_second(ids, tokens, lambda: progress.advance(task))


def _print_choice(machine: Machine, report: Any, backends: Sequence[Backend[Any]], *, named: bool) -> None:
    for problem in dict.fromkeys(layer.problem for layer in report.layers if layer.problem is not None):
        resolution = resolve(problem, machine, backends)
        print_table(("backend", "verdict", "why"), verdict_rows(resolution, chosen_name(resolution, named=named)))
        print_line()
    print_line(str(report))
    print_line()


def _document(report: Any, bits: dict[str, float], speeds: dict[str, float]) -> dict[str, object]:
    names = dict.fromkeys(layer.backend.name for layer in report.covered)
    return {
        "bits_per_byte": bits,
        "tokens_per_second": speeds,
        "backend": ", ".join(names),
        "layers": [
            {
                "name": layer.name,
                "backend": layer.backend.name if layer.covered else None,
                "reasons": [{"code": str(gap.code), "text": gap.text} for gap in layer.gaps],
            }
            for layer in report.layers
        ],
    }
