"""cases_of: what a backend's declaration says, turned into cases: one axis at a time, then all of them crossed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Capabilities
from moesaic.conformance.case import Case
from moesaic.conformance.crossed import crossed
from moesaic.conformance.moved import all_moved, variants
from moesaic.conformance.plainest import aligned, base_case, fitted, listed, produced_layouts
from moesaic.conformance.published import published
from moesaic.conformance.unlisted import UnlistedFormat, unlisted_schemes
from moesaic.layouts import BatchedExperts, GroupedContiguous
from moesaic.output_norm import OutputNorm
from moesaic.quant import Format, Scheme

SIZES = ((40, 200), (184, 88), (1408, 704))
"""H and I of every kit: more columns between the projections than outside, and the reverse; latent models have both."""

ALIGNED = ((48, 80), (256, 128))
"""H and I where no tile of 16, and none of 128, is cut short: kernels leave out their masks there."""

LARGE_SIZES = ((2880, 1856), (1856, 704), (704, 2880))
"""H and I of the full kit, of gpt-oss, Nemotron-3 and DeepSeek-MoE; no multiple of 256, and 2880 of 128 neither."""

WIDE_SIZES = ((7168, 24), (24, 14336))
"""H and I beside a small one: H of DeepSeek-V3 and I of Mixtral, the longest sums that open models have."""

NAMED = ((32, 4, 0), (128, 8, 1))
"""E, K and seed: multiples of 16 and 32 with rows for every expert but the middle one, then for all but the first."""

NARROW_TILE, LONG = 32, 1024
"""Columns that share a scale: of up to 32 the plainest case has several tiles; rows that long are no tiles."""

QUICK_PUBLISHED = 2
"""Published constants in a quick kit: gpt-oss's, and a limit that few values reach."""

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
    each = tuple(dict.fromkeys((*_axes(can, quick=quick), *_sizes(can, quick=quick), *_gradients(can, quick=quick))))
    return tuple(dict.fromkeys((*each, *crossed(can, each, quick=quick))))


def _aligned_in(can: Capabilities, case: Case, sizes: tuple[int, int]) -> Case:
    hidden, inner = (aligned(columns, can, case.problem.dtype) for columns in sizes)
    return case.changed(hidden_size=hidden, intermediate_size=inner)


def _axes(can: Capabilities, *, quick: bool) -> Iterator[Case]:
    base = base_case(can)
    yield base
    yield from _activations(can, base, quick=quick)
    for dtype in can.dtypes:
        for layout in produced_layouts(can):
            case = base_case(can, dtype).in_layout(layout)
            yield case
            yield from _unmasked(can, case, thorough=dtype == base.problem.dtype or not quick)
            if dtype == base.problem.dtype or not quick:
                yield from _fillings(case)
                yield from _consumers(can, case)
    for scheme in can.schemes:
        yield base.changed(scheme=scheme)
        tile = max(map(_tile, (scheme.weights, scheme.inputs)))
        if tile > (NARROW_TILE if quick else 0):
            columns = fitted(2 * tile + 1, can, base.problem.dtype)
            several = base.changed(scheme=scheme, hidden_size=columns, intermediate_size=columns, num_experts=3)
            yield replace(several, num_tokens=9)
    if can.any_scheme:
        yield base.changed(scheme=Scheme(UnlistedFormat(), base.problem.scheme.inputs))
        yield from (base.changed(scheme=scheme) for scheme in unlisted_schemes(can))
    yield from _flags(can, base)


def _activations(can: Capabilities, base: Case, *, quick: bool) -> Iterator[Case]:
    """Every activation with its constants moved, and as models publish them."""
    for accepts in listed(can):
        for activation in variants(accepts, base.problem.num_experts):
            yield base.changed(activation=activation)
        for dtype in () if quick else can.dtypes:
            yield base_case(can, dtype).changed(activation=accepts.activation())
    for activation in tuple(published(can))[: QUICK_PUBLISHED if quick else None]:
        yield base.changed(activation=activation)


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
        if can.graph_capture:  # in every dtype: what captures in one may read on the host in another
            each = (base_case(can, dtype).in_layout(layout) for dtype in can.dtypes)
            yield from (c.changed(graph_capture=True, bias=can.bias) for c in each)
        if can.bias and can.output_norm:
            yield case.changed(bias=True, output_norm=norm)
    for name in ("inactive_slots", "duplicate_ids", "deterministic"):
        if getattr(base.problem, name):
            yield base.changed(**{name: False})


def _tile(stored: Format) -> int:
    """Columns of a tile of scales; 0 where a row or more has one."""
    named = stored.storage((1, LONG), torch.float32)
    grid = max((named[name].shape[-1] for name in stored.scale_names), default=1)
    return LONG // grid if grid > 1 else 0


def _gradients(can: Capabilities, *, quick: bool) -> Iterator[Case]:
    """Gradients in every layout and dtype, of every activation, through norm and weights, and of many rows."""
    if not can.differentiable:
        return
    plain = base_case(can).changed(differentiable=True)
    for layout in produced_layouts(can):
        yield plain.changed(bias=can.bias).in_layout(layout)
    for dtype in can.dtypes:
        yield base_case(can, dtype).changed(differentiable=True, bias=can.bias)
    for number, accepts in enumerate(listed(can)):
        if number == 0 or not quick:
            yield plain.changed(activation=all_moved(accepts, plain.problem.num_experts, each=False))
    norm = OutputNorm(1e-5) if can.output_norm else None
    yield plain.changed(output_norm=norm)
    if can.weight_on_input and plain.fed.has_routing:
        yield plain.changed(weight_on_input=True)
    yield replace(plain, num_tokens=67, padding=0.0)


def _sizes(can: Capabilities, *, quick: bool) -> Iterator[Case]:
    base = base_case(can)
    coarse = max(can.dtypes, key=lambda dtype: torch.finfo(dtype).eps)
    for dtype in (base.problem.dtype, coarse):
        small = base_case(can, dtype)
        for hidden, inner in ((65, 33), *SIZES):
            sizes = {"hidden_size": fitted(hidden, can, dtype), "intermediate_size": fitted(inner, can, dtype)}
            yield replace(small.changed(**sizes, bias=can.bias), num_tokens=9)
    yield from _many(can, coarse)
    for hidden, inner in () if quick else LARGE_SIZES:
        sizes = {"hidden_size": fitted(hidden, can, coarse), "intermediate_size": fitted(inner, can, coarse)}
        yield replace(base_case(can, coarse).changed(**sizes, num_experts=3, top_k=2), num_tokens=4)


def _many(can: Capabilities, coarse: torch.dtype) -> Iterator[Case]:
    """Few and many slots, experts and columns."""
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
    for experts, top_k, seed in NAMED:
        columns = {"hidden_size": fitted(16, can, coarse), "intermediate_size": fitted(8, can, coarse)}
        even = _with_slots(can, small, min(top_k, can.max_top_k)).changed(
            num_experts=min(experts, can.max_experts), **columns
        )
        yield replace(even, num_tokens=130, skew=0.0, padding=0.0, seed=seed)
    for hidden, inner in WIDE_SIZES:
        sizes = {"hidden_size": fitted(hidden, can, coarse), "intermediate_size": fitted(inner, can, coarse)}
        yield replace(small.changed(**sizes, num_experts=min(2, can.max_experts), top_k=1), num_tokens=4)
    for layout in (BatchedExperts(), *map(GroupedContiguous, WIDE_ALIGNMENTS)):
        if any(consumed.accepts(layout) for consumed in can.layouts):
            many = small.changed(num_experts=min(MANY_GROUPS, can.max_experts), bias=can.bias)
            yield _aligned_in(can, many, ALIGNED[0]).in_layout(layout)


def _with_slots(can: Capabilities, case: Case, top_k: int) -> Case:
    """`case` with `top_k` slots, and as many experts as they need where each may be named once."""
    if can.duplicate_ids:
        return case.changed(top_k=top_k)
    experts = min(can.max_experts, max(MANY_SLOTS, top_k) + 1)
    return case.changed(top_k=min(top_k, experts), num_experts=experts)
