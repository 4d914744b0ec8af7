"""cases_of: what a backend's declaration says, turned into cases: one axis at a time, then seeded combinations."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Accepts, Capabilities
from moesaic.conformance.case import Case
from moesaic.conformance.moved import variants
from moesaic.conformance.unlisted import UnlistedActivation, UnlistedFormat
from moesaic.errors import FormatError
from moesaic.layouts import BatchedExperts, GroupedContiguous, Layout, PaddedStandard, Standard
from moesaic.output_norm import OutputNorm
from moesaic.problem import Problem
from moesaic.quant import Plain, Scheme

SIZES = ((40, 200), (184, 88), (1408, 704))
"""H and I of every kit: more columns between the projections than outside, and the reverse; latent models have both."""

ALIGNED = ((48, 80), (256, 128))
"""H and I where no tile of 16, and none of 128, is cut short: kernels leave out their masks there."""

LARGE_SIZES = ((2880, 1856), (1856, 704), (704, 2880))
"""H and I of the full kit, of gpt-oss, Nemotron-3 and DeepSeek-MoE; no multiple of 256, and 2880 of 128 neither."""

COMBINATIONS = {True: 6, False: 40}
"""Seeded combinations of a quick and of a full kit."""

MANY_EXPERTS, MANY_SLOTS = 1100, 40
"""E and K in cases of small H: more than published (896, and 22 of Nemotron-3), than 1024 threads and than 32 lanes."""

MOST = 4096
"""Limits on experts and slots above this count as "no limit", which no run can execute."""

MANY_GROUPS = 67
"""E of cases in the layouts without routing: more than 32 lanes and than two times as many."""

WIDE_ALIGNMENTS = (64, 128)
"""Rows to which groups are aligned there, as the tiles of kernels are."""


def cases_of(backend: Backend[Any], *, quick: bool = False) -> tuple[Case, ...]:
    """Every case of the kit for `backend`, each once, the base case first. `quick`: fewer, but the same cells."""
    can = backend.capabilities
    each = [*_axes(can, quick=quick), *_sizes(can, quick=quick), *_combinations(can, COMBINATIONS[quick])]
    return tuple(dict.fromkeys(each))


@functools.cache
def base_case(can: Capabilities, dtype: torch.dtype | None = None) -> Case:
    """Five experts, top-3, sizes that are multiples of what the backend asks for and of no tile; the finest dtype."""
    chosen = finest(can) if dtype is None else dtype
    layout = produced_layouts(can)[0]
    problem = Problem(
        num_experts=min(5, can.max_experts),
        top_k=min(3, can.max_top_k),
        hidden_size=fitted(72, can, chosen),
        intermediate_size=fitted(40, can, chosen),
        activation=listed(can)[0].activation(),
        dtype=chosen,
        scheme=can.schemes[0],
        layout=layout,
        inactive_slots=can.inactive_slots,
        duplicate_ids=can.duplicate_ids,
        deterministic=can.deterministic,
    )
    return Case(problem=problem, fed=layout)


def finest(can: Capabilities) -> torch.dtype:
    """The declared dtype with the smallest rounding: where the noise is lowest a fault shows best."""
    return min(can.dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def fitted(columns: int, can: Capabilities, dtype: torch.dtype) -> int:
    """The first odd multiple of `row_bytes` from `columns` on that all schemes store, or else the first multiple."""
    step = max(1, can.row_bytes // dtype.itemsize)
    times = -(-columns // step)
    candidates = (*range(times | 1, times + 9, 2), *range(times, times + 257))
    return step * next(n for n in candidates if all(_is_stored(scheme, step * n) for scheme in can.schemes))


def aligned(columns: int, can: Capabilities, dtype: torch.dtype) -> int:
    """The first multiple of `row_bytes` and of the tile of 16 or 128 that `columns` fills, which all schemes store."""
    step = math.lcm(columns & -columns, max(1, can.row_bytes // dtype.itemsize))
    times = -(-columns // step)
    return step * next(
        n for n in range(times, times + 257) if all(_is_stored(scheme, step * n) for scheme in can.schemes)
    )


def _aligned_in(can: Capabilities, case: Case, sizes: tuple[int, int]) -> Case:
    hidden, inner = (aligned(columns, can, case.problem.dtype) for columns in sizes)
    return case.changed(hidden_size=hidden, intermediate_size=inner)


def _is_stored(scheme: Scheme, columns: int) -> bool:
    try:
        scheme.check_columns(columns)
    except FormatError:
        return False
    return True


def listed(can: Capabilities) -> tuple[Accepts, ...]:
    """The activations that are accepted; one that is in no list stands for "any activation"."""
    return (*can.activations, Accepts.everything(UnlistedActivation)) if can.any_activation else can.activations


def produced_layouts(can: Capabilities) -> tuple[Layout, ...]:
    """Every layout that may be fed to the backend: Standard to a PaddedStandard consumer, wider alignments too."""
    aligned = [c.alignment for c in can.layouts if isinstance(c, GroupedContiguous)]
    groups = (GroupedContiguous(a * times) for a in aligned for times in (1, 8))
    every = (Standard(), PaddedStandard(), *groups, BatchedExperts(), *can.layouts)
    return tuple(dict.fromkeys(p for p in every if any(c.accepts(p) for c in can.layouts)))


def _axes(can: Capabilities, *, quick: bool) -> Iterator[Case]:
    base = base_case(can)
    yield base
    for accepts in listed(can):
        for activation in variants(accepts, base.problem.num_experts):
            yield base.changed(activation=activation)
        for dtype in () if quick else can.dtypes:
            yield base_case(can, dtype).changed(activation=accepts.activation())
    for dtype in can.dtypes:
        for layout in produced_layouts(can):
            case = base_case(can, dtype).in_layout(layout)
            yield case
            yield from _unmasked(can, case, thorough=dtype == base.problem.dtype or not quick)
            if dtype == base.problem.dtype or not quick:
                yield from _fillings(case)
                yield from _consumers(can, case)
        for scheme in can.schemes if dtype == base.problem.dtype or not quick else ():
            yield (case := base_case(can, dtype).changed(scheme=scheme))
            # Rounded inputs once more beside undefined rows, which no scale may see.
            undefined = [layout for layout in produced_layouts(can) if layout != Standard()]
            if undefined and not isinstance(scheme.inputs, Plain):
                yield case.in_layout(undefined[0])
    if can.any_scheme:
        yield base.changed(scheme=Scheme(UnlistedFormat(), base.problem.scheme.inputs))
    yield from _flags(can, base)


def _fillings(case: Case) -> Iterator[Case]:
    """No padding, and nothing but padding."""
    yield replace(case, padding=0.0, seed=1)
    yield replace(case, padding=1.0)


def _unmasked(can: Capabilities, case: Case, *, thorough: bool) -> Iterator[Case]:
    """Columns that fill every tile, with an even load, then a one-sided one, and other numbers of tokens."""
    few, many = (_aligned_in(can, case, sizes) for sizes in ALIGNED)
    yield replace(few, skew=0.0, num_tokens=67 if thorough else 9, padding=0.5, seed=1)
    yield replace(many, skew=40.0, num_tokens=130 if thorough else 9, seed=2)


def _consumers(can: Capabilities, case: Case) -> Iterator[Case]:
    """The same batch fed to a problem that was bound with another layout."""
    for layout in can.layouts:
        if layout.accepts(case.fed) and layout != case.fed:
            yield case.changed(layout=layout)


def _flags(can: Capabilities, base: Case) -> Iterator[Case]:
    norm = OutputNorm(1e-5) if can.output_norm else None
    for layout in produced_layouts(can):
        case = base.in_layout(layout)
        if can.bias:
            yield case.changed(bias=True)
        if can.output_norm:
            yield case.changed(output_norm=norm)
        if can.weight_on_input and layout.has_routing:
            yield case.changed(weight_on_input=True)
            yield case.changed(weight_on_input=True, bias=can.bias, output_norm=norm)
        if can.differentiable:
            yield case.changed(differentiable=True, bias=can.bias)
        if can.graph_capture:  # in every dtype: what captures in one may read on the host in another
            each = (base_case(can, dtype).in_layout(layout) for dtype in can.dtypes)
            yield from (c.changed(graph_capture=True, bias=can.bias) for c in each)
        if can.bias and can.output_norm:
            yield case.changed(bias=True, output_norm=norm)
    for name in ("inactive_slots", "duplicate_ids", "deterministic"):
        if getattr(base.problem, name):
            yield base.changed(**{name: False})


def _sizes(can: Capabilities, *, quick: bool) -> Iterator[Case]:
    base = base_case(can)
    coarse = max(can.dtypes, key=lambda dtype: torch.finfo(dtype).eps)
    for dtype in (base.problem.dtype, coarse):
        small = base_case(can, dtype)
        for hidden, inner in ((65, 33), *SIZES):
            sizes = {"hidden_size": fitted(hidden, can, dtype), "intermediate_size": fitted(inner, can, dtype)}
            yield replace(small.changed(**sizes, bias=can.bias), num_tokens=9)
    small = base_case(can, coarse)
    for top_k in (1, min(8, can.max_top_k), min(MANY_SLOTS, can.max_top_k)):
        yield _with_slots(can, small, top_k)
    if MANY_SLOTS < can.max_top_k <= MOST:
        yield replace(_with_slots(can, small, can.max_top_k), num_tokens=2)
    for experts, top_k in ((1, 1), (min(MANY_EXPERTS, can.max_experts), min(16, can.max_top_k))):
        hidden, inner = fitted(16, can, coarse), fitted(8, can, coarse)
        yield small.changed(num_experts=experts, top_k=top_k, hidden_size=hidden, intermediate_size=inner)
    if MANY_EXPERTS < can.max_experts <= MOST:
        hidden, inner = fitted(16, can, coarse), fitted(8, can, coarse)
        yield small.changed(num_experts=can.max_experts, hidden_size=hidden, intermediate_size=inner)
    for layout in (BatchedExperts(), *map(GroupedContiguous, WIDE_ALIGNMENTS)):
        if any(consumed.accepts(layout) for consumed in can.layouts):
            many = small.changed(num_experts=min(MANY_GROUPS, can.max_experts), bias=can.bias)
            yield _aligned_in(can, many, ALIGNED[0]).in_layout(layout)
    for hidden, inner in () if quick else LARGE_SIZES:
        sizes = {"hidden_size": fitted(hidden, can, coarse), "intermediate_size": fitted(inner, can, coarse)}
        yield replace(small.changed(**sizes, num_experts=3, top_k=2), num_tokens=4)


def _with_slots(can: Capabilities, case: Case, top_k: int) -> Case:
    """`case` with `top_k` slots, and as many experts as they need where each may be named once."""
    if can.duplicate_ids:
        return case.changed(top_k=top_k)
    experts = min(can.max_experts, max(MANY_SLOTS, top_k) + 1)
    return case.changed(top_k=min(top_k, experts), num_experts=experts)


def _combinations(can: Capabilities, count: int) -> Iterator[Case]:
    drawn = random.Random(20240607)  # noqa: S311
    for seed in range(count):
        dtype, layout = drawn.choice(can.dtypes), drawn.choice(produced_layouts(can))
        case = base_case(can, dtype)
        experts = min(drawn.choice((2, 5, 8, 13)), can.max_experts)
        slots = can.max_top_k if can.duplicate_ids else min(experts, can.max_top_k)
        accepts = drawn.choice(listed(can))
        consumer = drawn.choice([c for c in (*can.layouts, layout) if c.accepts(layout)])
        problem = replace(
            case.problem,
            num_experts=experts,
            top_k=min(drawn.choice((1, 2, 4, 8)), slots),
            hidden_size=fitted(drawn.choice((24, 72, 136, 264)), can, dtype),
            intermediate_size=fitted(drawn.choice((16, 40, 104, 208)), can, dtype),
            activation=drawn.choice(list(variants(accepts, experts))),
            scheme=drawn.choice(can.schemes),
            layout=consumer,
            bias=can.bias and drawn.random() < 0.5,
            output_norm=OutputNorm() if can.output_norm and drawn.random() < 0.3 else None,
            weight_on_input=can.weight_on_input and layout.has_routing and drawn.random() < 0.3,
        )
        yield Case(
            problem=problem,
            fed=layout,
            num_tokens=drawn.choice((1, 2, 17, 64, 131)),
            skew=drawn.choice((0.0, 1.0, 3.0)),
            padding=drawn.choice((0.0, 0.25, 0.7)),
            seed=seed,
        )
