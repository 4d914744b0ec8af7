"""The whole layer against its equations: any problem, layout and contents, on the reference and every CPU backend."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic import (
    BACKENDS,
    FP8,
    INT8,
    MXFP4,
    BatchedBatch,
    BatchedExperts,
    ExpertWeights,
    GroupedBatch,
    GroupedContiguous,
    Local,
    Machine,
    MoE,
    OutputNorm,
    PaddedStandard,
    PaddedStandardBatch,
    PerBlock,
    PerRow,
    Plain,
    Problem,
    Reference,
    Routing,
    Scheme,
    Standard,
    StandardBatch,
    bind,
    routers,
)
from tests.properties import layer, rules
from tests.properties.drawing import activations, normal, seeds
from tests.unchecked import unchecked

CPU = Machine.current("cpu")
ERROR = {torch.float64: 1e-11, torch.float32: 3e-5}
"""Of the largest number of the output, and of 1: sums of 16 terms whose factors are up to 12."""
GARBAGE = (-1, -7, 2**31 - 1, -(2**31))
POISON = (float("nan"), 1e4)


LAYOUTS = (Standard(), PaddedStandard(), GroupedContiguous(), GroupedContiguous(4), BatchedExperts())
SIZES = (2, 4, 6, 8, 12, 16, 20)
"""Even, since four bits are packed in pairs; backends that read 16 bytes at a time decline some of them."""
WEIGHTS = (*[Plain()] * 4, FP8(PerBlock(4, 6)), INT8(PerRow()), MXFP4())


@st.composite
def problems(draw, layouts=LAYOUTS):
    """The fields of a problem, its activation as class and constants."""
    layout, num_experts = draw(st.sampled_from(layouts)), draw(st.integers(1, 6))
    return {
        "num_experts": num_experts,
        "top_k": draw(st.integers(1, 4)),
        "hidden_size": draw(st.sampled_from(SIZES)),
        "intermediate_size": draw(st.sampled_from(SIZES)),
        "activation": draw(activations(num_experts)),
        "dtype": draw(st.sampled_from([torch.float32, torch.float64])),
        "scheme": Scheme(draw(st.sampled_from(WEIGHTS)), Plain()),
        "layout": layout,
        "bias": draw(st.booleans()),
        "output_norm": draw(st.none() | st.just(OutputNorm(1e-3))),
        "weight_on_input": layout.has_routing and draw(st.booleans()),
    }


def built(fields):
    kind, constants = fields["activation"]
    return Problem(**{**fields, "activation": kind(**constants)})


def weights_of(problem, generator):
    """Random weights, and the same as arrays of what is stored."""
    experts, hidden, inner, width = (
        problem.num_experts,
        problem.hidden_size,
        problem.intermediate_size,
        problem.width,
    )

    def tensor(*shape, scale):
        return torch.tensor(normal(generator, *shape, scale=scale)).to(problem.dtype)

    weights = ExpertWeights.plain(
        tensor(experts, width, hidden, scale=2 / hidden**0.5),
        tensor(experts, hidden, inner, scale=1 / inner**0.5),
        gate_up_bias=tensor(experts, width, scale=1.0) if problem.bias else None,
        down_bias=tensor(experts, hidden, scale=1.0) if problem.bias else None,
        output_scale=1 + tensor(hidden, scale=0.3) if problem.output_norm else None,
    ).quantize(problem.scheme.weights)
    arrays = [None if t is None else t.double().numpy() for t in (weights.gate_up_bias, weights.down_bias)]
    return weights, {
        "gate_up": weights.gate_up.dequantize(torch.float64).numpy(),
        "down": weights.down.dequantize(torch.float64).numpy(),
        "b1": arrays[0],
        "b2": arrays[1],
        "norm": problem.output_norm.eps if problem.output_norm else None,
        "norm_scale": None if weights.output_scale is None else weights.output_scale.double().numpy(),
        "kind": problem.activation.__class__.__name__,
        "constants": problem.activation.constants(),
        "num_experts": problem.num_experts,
        "on_input": problem.weight_on_input,
    }


def fed(problem, facts, generator):
    """(batch, wanted rows as an array, mask of the rows that are defined)."""
    poison, hidden = generator.choice(POISON), problem.hidden_size
    if problem.layout.has_routing:
        return tokens(problem, facts, generator, poison)
    counts = generator.integers(0, 6, size=problem.num_experts)
    if isinstance(problem.layout, BatchedExperts):
        capacity = int(counts.max()) + int(generator.integers(0, 3))
        starts, shape = np.arange(problem.num_experts) * capacity, (problem.num_experts, capacity, hidden)
    else:
        step = problem.layout.alignment
        gaps = -(-counts // step) * step + step * generator.integers(0, 2, size=problem.num_experts)
        starts, shape = np.cumsum(gaps) - gaps, (int(gaps.sum()) + int(generator.integers(0, 3)), hidden)
    flat = np.full((int(np.prod(shape[:-1])), hidden), poison)
    wanted, live = np.zeros_like(flat), np.zeros(len(flat), dtype=bool)
    for expert, (start, count) in enumerate(zip(starts, counts, strict=True)):
        for row in range(start, start + count):
            flat[row] = torch.tensor(normal(generator, hidden)).to(problem.dtype).double().numpy()
            wanted[row], live[row] = layer.expert_row(flat[row], expert, facts), True
    rows, index = torch.tensor(flat.reshape(shape)).to(problem.dtype), {"dtype": torch.int32}
    if isinstance(problem.layout, BatchedExperts):
        return BatchedBatch(rows, torch.tensor(counts, **index)), wanted, live
    batch = GroupedBatch(rows, torch.tensor(starts, **index), torch.tensor(counts, **index), problem.layout.alignment)
    return batch, wanted, live


def tokens(problem, facts, generator, poison):
    """Any ids, one expert twice among them, and garbage with a weight of NaN in inactive slots."""
    many = generator.random() < 0.05  # another path of the CPU backend: more than 512 slots
    count, slots = 300 if many else int(generator.integers(0, 9)), int(generator.integers(1, problem.top_k + 1))
    x = torch.tensor(normal(generator, count, problem.hidden_size)).to(problem.dtype)
    garbage = np.array([*GARBAGE, problem.num_experts, problem.num_experts + 5])
    ids = generator.integers(problem.num_experts, size=(count, slots))
    dead = generator.random(ids.shape) < generator.choice([0.0, 0.3, 0.9])
    ids = np.where(dead, generator.choice(garbage, size=ids.shape), ids)
    weights = np.where(dead, np.nan, generator.random(ids.shape) + 0.1).astype(np.float32)
    precise = torch.float64 if problem.dtype == torch.float64 else torch.float32
    routing = Routing(torch.tensor(ids, dtype=torch.int32), torch.tensor(weights).to(precise))
    live = np.ones(count, dtype=bool)
    if isinstance(problem.layout, PaddedStandard):
        live = ~dead.all(1)
        x[~torch.tensor(live)] = poison
    rows = x.double().numpy()
    wanted = np.zeros(rows.shape)
    for token in np.flatnonzero(live):
        wanted[token] = layer.token_row(rows[token], ids[token], np.nan_to_num(weights[token].astype(float)), facts)
    batch = PaddedStandardBatch if isinstance(problem.layout, PaddedStandard) else StandardBatch
    return batch(x, routing), wanted, live


def assert_rows(got, wanted, dtype, what):
    assert got.dtype == dtype
    values = got.double().numpy()
    scale = 1 + np.abs(wanted).max(initial=0.0)
    assert np.isfinite(values).all(), what
    assert np.abs(values - wanted).max(initial=0.0) <= ERROR[dtype] * scale, (what, values, wanted)


@settings(max_examples=300)
@given(problems(), seeds)
def test_every_backend_computes_the_equations(fields, seed):
    generator = np.random.default_rng(seed)
    with unchecked():
        problem = built(fields)
        weights, facts = weights_of(problem, generator)
        batch, wanted, live = fed(problem, facts, generator)
        serving = [b for b in (Reference(), *BACKENDS) if not b.reasons_against(problem, CPU)]
        for backend in serving:
            got = bind(problem, weights, machine=CPU, backends=(backend,))(batch)
            rows = got.flatten(0, -2)[torch.tensor(live)]
            assert_rows(rows, wanted[live], problem.dtype, backend.name)
    assert serving


@given(problems(layouts=(Standard(),)), st.integers(0, 7), st.sampled_from([1.0, 2.5]), seeds)
def test_routing_experts_and_shared_expert_make_the_layer(fields, count, scale, seed):
    """Scores with a correction bias, renormalised and scaled once; the shared expert is added after the routed sum."""
    generator = np.random.default_rng(seed)
    with unchecked():
        problem = built({**fields, "top_k": min(fields["top_k"], fields["num_experts"])})
        weights, facts = weights_of(problem, generator)
        x = torch.tensor(normal(generator, count, problem.hidden_size)).to(problem.dtype)
        logits = torch.tensor(normal(generator, count, problem.num_experts, scale=2.0)).to(problem.dtype)
        bias = normal(generator, problem.num_experts)
        shared = torch.tensor(normal(generator, problem.hidden_size, problem.hidden_size)).to(problem.dtype)
        router = routers.BiasedSigmoidTopK(
            problem.num_experts, problem.top_k, bias=torch.tensor(bias), scaling_factor=scale
        )
        for backend in (b for b in (Reference(), *BACKENDS) if not b.reasons_against(problem, CPU)):
            experts = bind(problem, weights, machine=CPU, backends=(backend,))
            got = MoE(router, Local(), experts, shared=lambda rows: rows @ shared.T)(x, logits)
            wanted = np.zeros((count, problem.hidden_size))
            for token, (row, scores) in enumerate(zip(x.double().numpy(), logits.double().numpy(), strict=True)):
                ids, p = rules.biased(rules.sigma(scores), problem.top_k, bias, renormalize=True, scale=scale)
                wanted[token] = layer.token_row(row, ids, p, facts) + shared.double().numpy() @ row
            assert_rows(got, wanted, problem.dtype, backend.name)
