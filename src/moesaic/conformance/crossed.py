"""crossed: cases in which everything declared meets everything else that is declared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

from moesaic.backends.capabilities import Accepts, Capabilities
from moesaic.conformance.case import Case
from moesaic.conformance.covering import Row, covering
from moesaic.conformance.moved import all_moved
from moesaic.conformance.plainest import base_case, fitted, listed, produced_layouts
from moesaic.layouts import Layout, Standard
from moesaic.output_norm import OutputNorm
from moesaic.quant import Plain

FLAGS = ("bias", "output_norm", "weight_on_input")
"""The flags of a problem that add or move a term of the answer."""

TOKENS = (17, 33, 64)
"""T of these cases; no other case of the kit has it, so that they can be told from those of one axis."""


def crossed(can: Capabilities, there: Sequence[Case], *, quick: bool) -> Iterator[Case]:
    """Cases that differ from the plainest one in everything at once; all free constants are moved in each.

    Every scheme in every layout, with biases, and with the router weight on the input where there is routing; then,
    counting the cases that are `there`, every two values of layout, dtype, scheme, activation and flags. Of a `quick`
    kit as many rows as there are schemes or activations, each of them in one at least.
    """
    axes: dict[str, Sequence[Any]] = {
        "scheme": can.schemes,
        "activation": listed(can),
        "layout": produced_layouts(can),
        "dtype": can.dtypes,
        **{name: (True, False) if getattr(can, name) else (False,) for name in FLAGS},
    }
    if not any(layout.has_routing for layout in produced_layouts(can)):
        axes["weight_on_input"] = (False,)
    seeds = _once(can) if quick else _every_scheme_in_every_layout(can)
    rows = covering(axes, seeds=seeds, met=(_row(can, case) for case in there), admits=_admits)
    most = max(len(can.schemes), len(axes["activation"]))
    drawn = Random(20240607)  # noqa: S311
    for number, row in enumerate(rows):
        if quick and number >= most:
            return
        yield _case(can, row, number, drawn)


def _every_scheme_in_every_layout(can: Capabilities) -> Iterator[Row]:
    for scheme, layout in product(can.schemes, produced_layouts(can)):
        on_input = can.weight_on_input and layout.has_routing
        # The norm divides by what a wrong scale multiplied.
        yield {
            "scheme": scheme,
            "layout": layout,
            "bias": can.bias,
            "output_norm": False,
            "weight_on_input": on_input,
        }


def _once(can: Capabilities) -> Iterator[Row]:
    """Every scheme, activation and dtype; rounded inputs beside undefined rows, which no scale may see."""
    undefined = [layout for layout in produced_layouts(can) if layout != Standard()]
    accepted = listed(can)
    for number in range(max(len(can.schemes), len(accepted))):
        scheme, activation = can.schemes[number % len(can.schemes)], accepted[number % len(accepted)]
        row: Row = {"scheme": scheme, "activation": activation, "dtype": can.dtypes[number % len(can.dtypes)]}
        is_rounded = undefined and not isinstance(scheme.inputs, Plain)
        yield {**row, "layout": undefined[number % len(undefined)]} if is_rounded else row


def _admits(row: Row) -> bool:
    layout = row.get("layout")
    return not (row.get("weight_on_input") and isinstance(layout, Layout) and not layout.has_routing)


def _row(can: Capabilities, case: Case) -> Row:
    """What `case` is on the axes; without the activation where a free constant is at its default."""
    problem = case.problem
    row: dict[str, Any] = {"scheme": problem.scheme, "layout": case.fed, "dtype": problem.dtype}
    row |= {"bias": problem.bias, "output_norm": problem.output_norm is not None}
    row |= {"weight_on_input": problem.weight_on_input}
    for accepts in listed(can):
        constants, default = problem.activation.constants(), accepts.activation().constants()
        free = (*accepts.scalar, *accepts.per_expert)
        if problem.activation.__class__ is accepts.activation and all(constants[n] != default[n] for n in free):
            row["activation"] = accepts
    return row if problem.scheme in can.schemes else {}


def _case(can: Capabilities, row: Row, number: int, drawn: Random) -> Case:
    """The case of a row; what no row says, sizes and traffic, is drawn."""
    values: dict[str, Any] = dict(row)
    accepts: Accepts = values["activation"]
    case, layout = base_case(can, values["dtype"]), values["layout"]
    experts = min(drawn.choice((2, 5, 8, 13)), can.max_experts)
    slots = can.max_top_k if can.duplicate_ids else min(experts, can.max_top_k)
    problem = replace(
        case.problem,
        num_experts=experts,
        top_k=min(drawn.choice((1, 2, 4, 8)), slots),
        hidden_size=fitted(drawn.choice((24, 72, 136)), can, values["dtype"]),
        intermediate_size=fitted(drawn.choice((16, 40, 104)), can, values["dtype"]),
        activation=all_moved(accepts, experts, each=number % 2 == 1),
        scheme=values["scheme"],
        layout=drawn.choice([c for c in dict.fromkeys((*can.layouts, layout)) if c.accepts(layout)]),
        bias=values["bias"],
        output_norm=OutputNorm() if values["output_norm"] else None,
        weight_on_input=values["weight_on_input"],
    )
    return Case(
        problem=problem,
        fed=layout,
        num_tokens=drawn.choice(TOKENS),
        skew=drawn.choice((0.0, 1.0, 3.0)),
        padding=drawn.choice((0.0, 0.25, 0.5)),
        seed=number,
    )
