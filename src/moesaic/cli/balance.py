"""`moesaic balance`: which rank should hold which experts, and what that gains."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor

from moesaic.cli.balance_load import read_load
from moesaic.cli.balance_plot import bars
from moesaic.cli.printing import print_json, print_line, print_note, print_table
from moesaic.dispatch.balance import balance as plan
from moesaic.dispatch.balancedness import planned_balancedness, rank_loads, realised_balancedness, relative
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.stability import arrivals
from moesaic.errors import DispatchError

TOKENS = 1024
"""Tokens of a batch whose realised balancedness is shown."""

OPTIONS = {"slots": "num_slots", "ranks": "num_ranks", "nodes": "num_nodes", "groups": "groups", "top-k": "top_k"}
"""What each option is called in Python."""


def balance(
    load: Annotated[Path, typer.Argument(metavar="LOAD", help="A JSON file: tokens of each expert, a list a layer.")],
    *,
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks that share the experts.")],
    slots: Annotated[
        int | None,
        typer.Option("--slots", help="Slots of all ranks; without: those of LOAD's plan, or one an expert."),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes of equal size; needs --groups.")] = 1,
    groups: Annotated[
        int | None, typer.Option("--groups", help="Keep so many equal runs of experts on a node.")
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Experts of a token; without: at most 8.")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw what ranks carry, before and after.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Plan a placement for each layer, and print it with its balancedness: mean over maximum of what ranks carry."""
    layers, current = read_load(load)
    num_layers, num_experts = layers.shape
    if slots is None:
        slots = current[0].num_slots if current else num_experts
    try:
        plans = plan(layers, slots, ranks, nodes, groups=groups)
        if current and not _of_other_size(current, plans[0]):
            plans = plan(layers, slots, ranks, nodes, groups=groups, current=current)
        layers = relative(layers)  # so that no sum of huge loads overflows
        chosen = _top_k(layers) if top_k is None else top_k
        realised = realised_balancedness(layers, plans, num_tokens=TOKENS, top_k=chosen)
    except DispatchError as fault:
        raise DispatchError(_by_options(str(fault))) from None
    before = current or _in_order(layers, ranks)
    columns = {"planned": planned_balancedness(layers, plans), "realised": realised}
    if before:
        columns = {"before": planned_balancedness(layers, before), **columns}
    moves = [len(arrivals(old, new)) for old, new in zip(current, plans, strict=True)] if current else None
    if as_json:
        rows = [{name: float(of[layer]) for name, of in columns.items()} for layer in range(num_layers)]
        print_json(
            {
                "num_experts": num_experts,
                "num_slots": plans[0].num_slots,
                "num_ranks": ranks,
                "num_nodes": nodes,
                "groups": groups,
                "tokens": TOKENS,
                "top_k": chosen,
                "mean": {name: float(of.mean()) for name, of in columns.items()},
                "layers": rows,
                "arrivals": moves,
                "placements": [placement.experts for placement in plans],
            }
        )
        return
    print_table(("layer", "rank", "load", "experts"), _plan_rows(layers, plans), numbers=("layer", "rank", "load"))
    print_line()
    names = ("layer", *columns, *(["arrivals"] if moves else []))
    print_table(names, _balance_rows(columns, moves), numbers=names)
    print_line()
    print_line(_meaning(columns, chosen, has_current=current is not None))
    if plot:
        worst = int(next(iter(columns.values())).argmin())
        shown = {"before": before, "planned": plans}
        every = {name: _over_mean(layers[worst], of[worst]) for name, of in shown.items() if of}
        longest = max(map(max, every.values()))
        for name, loads in every.items():
            print_line()
            for line in bars(f"layer {worst}, {name}", loads, longest):
                print_line(line)


def _by_options(said: str) -> str:
    """What Python says is wrong, with the options' names."""
    for option, name in OPTIONS.items():
        said = re.sub(rf"\b(\w+\.)?{name} is\b", f"--{option} is", said)
    return said


def _of_other_size(current: Sequence[Placement], new: Placement) -> bool:
    """Whether the file's plan has ranks of other sizes than the new one; a note then says so, since most will move."""
    wanted, sizes = _sizes(new), map(_sizes, current)
    other = next((size for size in sizes if size != wanted), None)
    if other is not None:
        print_note(
            f"moesaic: the plan under 'placements' in LOAD has {sum(other)} slots, {other} a rank, but --slots and "
            f"--ranks give {sum(wanted)}, {wanted} a rank: every layer is planned anew, so most experts change ranks"
        )
    return other is not None


def _sizes(placement: Placement) -> tuple[int, ...]:
    return tuple(map(len, placement.experts))


def _in_order(layers: Tensor, ranks: int) -> tuple[Placement, ...]:
    """Every expert once, in order; nothing if there are more ranks than experts."""
    num_layers, num_experts = layers.shape
    return (Placement.contiguous(num_experts, ranks),) * num_layers if ranks <= num_experts else ()


def _top_k(layers: Tensor) -> int:
    """8, or as many experts a token as the load of one expert allows, which is at most one a token."""
    loaded = layers[layers.sum(1) > 0]
    return max(1, min([8, layers.shape[1], *(loaded.sum(1) / loaded.amax(1)).int().tolist()]))


def _over_mean(row: Tensor, placement: Placement) -> list[float]:
    """The load of each rank over the mean; zeros without load."""
    carried = rank_loads(row, placement)
    return (carried / carried.mean().where(carried.any(), 1.0)).tolist()


def _plan_rows(layers: Tensor, plans: Sequence[Placement]) -> Iterator[tuple[str, ...]]:
    """Layer, rank, its load over the mean, its experts; `*` follows an expert with replicas elsewhere."""
    for layer, placement in enumerate(plans):
        loads, replicas = _over_mean(layers[layer], placement), placement.replicas
        for rank, experts in enumerate(placement.experts):
            names = " ".join(f"{expert}{'*' if replicas[expert] > 1 else ''}" for expert in experts)
            yield str(layer), str(rank), f"{loads[rank]:.3f}", names


def _balance_rows(columns: dict[str, Tensor], moves: Sequence[int] | None) -> Iterator[tuple[str, ...]]:
    """A row a layer, and their mean if there are several."""
    num_layers = len(columns["planned"])
    for layer in range(num_layers):
        yield str(layer), *(f"{of[layer]:.3f}" for of in columns.values()), *([str(moves[layer])] if moves else [])
    if num_layers > 1:
        mean_moves = [f"{sum(moves) / num_layers:.1f}"] if moves else []
        yield "mean", *(f"{of.mean():.3f}" for of in columns.values()), *mean_moves


def _meaning(columns: dict[str, Tensor], top_k: int, *, has_current: bool) -> str:
    """What the columns say."""
    old = "the current placement" if has_current else "experts in order, one slot each"
    said = [f"before: {old}"] if "before" in columns else []
    said += [
        "planned: this load, replicas sharing it equally",
        f"realised: batches of {TOKENS} tokens that draw {top_k} different experts each from it",
    ]
    said += ["arrivals: experts whose weights change ranks"] if has_current else []
    return "; ".join([*said, "*: has replicas"])
