"""Expert parallelism over any number of ranks: every dispatcher against one rank, then how long it takes.

    torchrun --nproc-per-node N benchmarks/expert_parallel.py --out FILE.json [--budget SECONDS] [--dispatchers ...]

On GPUs over NCCL, without CUDA over gloo with small shapes. For each dispatcher, shape, number of tokens a rank,
routing and placement the answer is compared with one rank that holds all experts; a wrong one ends the run on all
ranks. Then dispatch, the rank's own experts on what it received, combine and the whole layer are timed alone: all ranks
start together, a figure is that of the slowest rank, and the median of the rounds is taken; by replays of a CUDA graph
unless the dispatcher waits on the host. The document is written after each row, and names what the budget left out.
`--recorder ROUNDS` also times the layer with a recorder of expert load and without, in turn: 15 rounds or more.
docs/performance/expert_parallelism.md explains the columns, plot_scaling.py draws what several numbers of ranks gave.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from dispatching.cells import Wanted
from dispatching.course import Course
from dispatching.kit import conform
from dispatching.report import Report
from dispatching.shapes import SHAPES, Job
from dispatching.subjects import DISPATCHERS
from dispatching.traffic import PLACEMENTS, ROUTINGS

from moesaic import Machine
from moesaic.cli.source_commit import source_commit
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.texts import gather_texts
from moesaic.errors import FleetError

WITHOUT_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
"""No dispatcher needs NVLink's multicast, and no figure shall depend on it."""
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def names(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Reads some of `known`, with commas between them."""

    def read(text: str) -> tuple[str, ...]:
        unknown = [name for name in text.split(",") if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return tuple(text.split(","))

    return read


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers of at least one, with commas between them."""
    return tuple(map(at_least(1), text.split(",")))


def at_least(least: int) -> Callable[[str], int]:
    """Reads a whole number that is not below `least`."""

    def read(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
        return found

    return read


def asked(arguments: Sequence[str] | None, *, cuda: bool) -> argparse.Namespace:
    """What the command line says; defaults are smaller without CUDA."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shapes = ("qwen3_30b", "dsv3") if cuda else ("qwen3_30b_small", "dsv3_small")
    dispatchers = tuple(name for name in DISPATCHERS if cuda or not name.startswith("symmetric"))
    parser.add_argument("--dispatchers", type=names(DISPATCHERS), default=dispatchers)
    parser.add_argument("--shapes", type=names(SHAPES), default=shapes)
    parser.add_argument("--tokens", type=numbers, default=(1, 8, 64, 512, 4096) if cuda else (1, 8, 64))
    parser.add_argument("--routings", type=names(ROUTINGS), default=tuple(ROUTINGS))
    parser.add_argument("--placements", type=names(PLACEMENTS), default=PLACEMENTS)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16" if cuda else "float32")
    parser.add_argument("--rounds", type=at_least(1), default=7 if cuda else 3)
    parser.add_argument(
        "--recorder", type=at_least(0), default=0, help="rounds with and without a recorder, in turn (0)"
    )
    parser.add_argument("--threads", type=at_least(1), default=1, help="of a rank without CUDA (1)")
    parser.add_argument("--budget", type=float, default=180.0, help="seconds after which no cell is begun (180)")
    parser.add_argument("--kit", action="store_true", help="put each dispatcher through the dispatcher kit first")
    parser.add_argument("--commit", help="what to write as the commit where there is no checkout")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    if "LOCAL_RANK" not in os.environ:
        parser.error("there are no ranks: start with torchrun --nproc-per-node N, or python -m torch.distributed.run")
    writes = given.out is not None and os.environ.get("RANK", "0") == "0"  # other hosts need no such folder
    if writes and (given.out.is_dir() or not os.access(given.out.parent, os.W_OK | os.X_OK)):
        parser.error(
            f"--out {given.out} cannot be written: give a file in a folder that is there and can be written to"
        )
    return given


def head(given: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """What ran where, and what was asked for: the same for all rows."""
    machine = repr(Machine.current(torch.device(ranks.device)))
    options = {name: value for name, value in vars(given).items() if name not in {"out", "commit", "shapes", "kit"}}
    return {
        "commit": given.commit or source_commit(),
        "machines": dict(Counter(gather_texts(ranks, machine, "the report", "machines"))),
        "num_ranks": ranks.size,
        "backend": dist.get_backend(),
        "nvlink_multicast": False,
        "load_before": round(os.getloadavg()[0], 1),
        "shapes": {name: vars(SHAPES[name]) for name in given.shapes},
        **options,
    }


def run(given: argparse.Namespace, ranks: Ranks, start: float) -> None:
    """Every rank measures, rank 0 prints and writes."""
    first = ranks.rank == 0
    report = Report(head(given, ranks), given.out if first else None, shown=first)
    for name in given.dispatchers if given.kit else ():
        report.add(*conform(name, ranks), time.monotonic() - start)
    wanted = Wanted(**{axis: getattr(given, axis) for axis in Wanted.__dataclass_fields__})
    jobs = {name: Job.of(name, ranks, DTYPES[given.dtype]) for name in given.shapes}
    course = Course(ranks, jobs, given.rounds, given.budget, start, given.recorder)
    for kind, row in course.run(wanted.cells(ranks.size)):
        report.add(kind, row, time.monotonic() - start)


def main() -> None:
    """Read the arguments, start the group, run."""
    cuda, start = torch.cuda.is_available(), time.monotonic()
    given = asked(None, cuda=cuda)
    os.environ.update(WITHOUT_MULTICAST)
    local = int(os.environ["LOCAL_RANK"])
    if cuda:
        torch.cuda.set_device(local)
    else:
        torch.set_num_threads(given.threads)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=120))
    try:
        with torch.no_grad():
            run(given, Ranks.world(f"cuda:{local}" if cuda else "cpu", timeout=60.0), start)
    except FleetError as fault:
        raise SystemExit(f"nothing more is measured: {fault}") from None
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
