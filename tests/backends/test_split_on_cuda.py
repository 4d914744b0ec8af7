"""Few rows of bfloat16 split in two FP8 numbers each, times MXFP4 and INT4, on Hopper, against numpy in float64."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

from moesaic import (
    INT4,
    MXFP4,
    ExpertWeights,
    GroupedBatch,
    GroupedContiguous,
    PerGroup,
    Plain,
    ReLU2,
    Routing,
    Scheme,
    Standard,
    StandardBatch,
    SwiGLU,
    TritonQuantized,
    bind,
)
from tests.backends import example, numpy_oracle
from tests.tolerance import assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs sm_90"
    ),
]
DEVICE, EMPTY = "cuda", example.EMPTY_EXPERT
BACKEND = TritonQuantized(coded_rows=0, split_rows=2**20)
FORMATS = [MXFP4(), INT4(PerGroup(64), scale=torch.bfloat16), INT4(PerGroup(128), scale=torch.bfloat16)]
SIZES = [(136, 72), (304, 200), (256, 192), (128, 320), (2056, 128)]
"""H and I: 8 columns of a second block; 48 and 72 of the last; half a block between; whole blocks; a long sum."""

VARIANTS = {
    "": {},
    "biased": {"bias": True, "activation": SwiGLU(alpha=1.702, limit=(1.5, 0.5, 1.0, 2.0, 0.25))},
    "ungated": {"activation": ReLU2()},
    "ungated biased": {"activation": ReLU2(), "bias": True},
    "weight on input": {"weight_on_input": True},
}
each_format = pytest.mark.parametrize("stored", FORMATS, ids=repr)
each_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture
def poisoned():
    """Fresh memory on CUDA holds NaN, or the largest integer."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


class Layer:
    """A layer whose expert without rows has scales of NaN; `experts` computes it, `oracle` is what numpy reads."""

    def __init__(self, stored, sizes, *, nan=True, **changes):
        case = example.problem(dtype=torch.bfloat16, hidden_size=sizes[0], intermediate_size=sizes[1], **changes)
        plain = example.weights(case)
        weights = plain.quantize(stored)
        self.oracle = example.as_oracle(case, plain)
        for name in ("gate_up", "down"):
            held = getattr(weights, name)
            self.oracle[name] = held.dequantize(torch.float64).numpy()
            if nan:
                bits = held.scales["scale"].view(torch.uint8)
                bits[EMPTY] = 255
        self.problem = replace(case, scheme=Scheme(stored, Plain()))
        self.experts = bind(self.problem, moved(weights), backends=(BACKEND,))

    def tokens(self, batch):
        """The oracle's answer."""
        given = (batch.hidden_states, batch.routing.topk_ids, batch.routing.topk_weights)
        x, ids, weights = (tensor.double().cpu().numpy() for tensor in given)
        return numpy_oracle.tokens(x, ids.astype(np.int64), weights, self.oracle)

    def rows(self, batch, owner):
        """The oracle's answer for rows with an owner."""
        x = batch.rows.double().cpu().numpy()
        live = np.flatnonzero(owner >= 0)
        return np.array([numpy_oracle.one_row(x[at], owner[at], self.oracle) for at in live])


def moved(weights):
    """On the device of these tests."""
    sides = [
        replace(side, data=side.data.to(DEVICE), scales={name: scale.to(DEVICE) for name, scale in side.scales.items()})
        for side in (weights.gate_up, weights.down)
    ]
    biases = (None if bias is None else bias.to(DEVICE) for bias in (weights.gate_up_bias, weights.down_bias))
    return ExpertWeights(*sides, *biases)


def hot_batch(case, count, seed=0):
    """Every token at expert 4, so that 40 are three tiles, and at one of three others or at none; nobody at `EMPTY`."""
    g = np.random.default_rng(seed)
    ids = g.choice((0, 1, 3, *example.GARBAGE_IDS), size=(count, 3))
    ids[:, seed % 3] = 4
    weights = torch.tensor(g.random((count, 3)) + 0.1, dtype=torch.float32)
    routing = Routing(torch.tensor(ids, dtype=torch.int32).to(DEVICE), weights.to(DEVICE))
    return StandardBatch(example.rows(case, count, seed).to(DEVICE), routing)


@each_format
@each_variant
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.usefixtures("poisoned")
def test_tokens_are_the_oracles(stored, changes, sizes):
    layer = Layer(stored, sizes, **changes)
    for count in (1, 8, 9, 40):
        batch = hot_batch(layer.problem, count, seed=count)
        assert_close(layer.experts(batch), layer.tokens(batch), torch.bfloat16)


@each_format
def test_scales_without_nan_and_skewed_routings_give_the_oracles_answer_too(stored):
    """No expert holds NaN, which MXFP4 is compiled for."""
    layer = Layer(stored, (304, 200), nan=False, bias=True)
    for count in (2, 19, 65):
        routing = example.routing(layer.problem, count)
        routing = Routing(routing.topk_ids.to(DEVICE), routing.topk_weights.to(DEVICE))
        batch = StandardBatch(example.rows(layer.problem, count).to(DEVICE), routing)
        got = layer.experts(batch)
        assert_close(got, layer.tokens(batch), torch.bfloat16)
        assert torch.equal(layer.experts(batch), got)


def in_order(case, alignment, counts, *, ends):
    """(a batch of rows at multiples of `alignment`, NaN where they are nobody's; the expert of each row, or -1)."""
    begins = np.cumsum([0, *(-(-count // alignment) * alignment for count in counts)])
    size = begins[-2] + counts[-1] if ends else begins[-1] + alignment
    owner = np.full(size, -1)
    for expert, (begin, count) in enumerate(zip(begins, counts, strict=False)):
        owner[begin : begin + count] = expert
    rows = example.rows(case, size)
    rows[torch.from_numpy(owner < 0)] = torch.nan
    index = {"dtype": torch.int32, "device": DEVICE}
    return GroupedBatch(
        rows.to(DEVICE), torch.tensor(begins[:-1], **index), torch.tensor(counts, **index), alignment
    ), owner


@each_format
@each_variant
@pytest.mark.parametrize("alignment", [8, 64])
@pytest.mark.usefixtures("poisoned")
def test_rows_in_expert_order_are_the_oracles(stored, changes, alignment):
    if "weight_on_input" in changes:
        pytest.skip("there are no weights")
    for sizes in ((136, 72), (256, 192), (304, 320)):
        layer = Layer(stored, sizes, **changes, layout=GroupedContiguous(alignment))
        for counts, ends in (((7, 40, 0, 1, 13), True), ((0, 16, 0, 17, 8), False), ((0, 0, 0, 0, 5), True)):
            batch, owner = in_order(layer.problem, alignment, counts, ends=ends)
            got = layer.experts(batch)[torch.from_numpy(owner >= 0).to(DEVICE)]
            assert_close(got, layer.rows(batch, owner), torch.bfloat16)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@each_format
def test_what_is_not_finite_stays_in_its_token_and_is_seen_there(stored, value):
    """NaN in a product of FP8 is NaN, whatever it meets: infinity is none, and two of its 64 columns are not."""
    layer = Layer(stored, (304, 200))
    batch = hot_batch(layer.problem, 40)
    clean = layer.experts(batch)
    batch.hidden_states[[3, 17], [70, 303]] = value
    got = layer.experts(batch)
    spoiled = torch.zeros(40, dtype=torch.bool, device=DEVICE)
    spoiled[[3, 17]] = True
    assert got[spoiled].isnan().all()
    assert torch.equal(got[~spoiled], clean[~spoiled])


@each_format
def test_an_activation_that_is_not_finite_is_seen_in_its_token(stored):
    """What the first product splits for the second: NaN comes out of numbers that were finite."""
    layer = Layer(stored, (256, 192))
    batch = hot_batch(layer.problem, 40)
    clean = layer.experts(batch)
    batch.hidden_states[5] *= 2.0**120
    got = layer.experts(batch)
    assert got[5].isnan().all()
    assert torch.equal(got[torch.arange(40, device=DEVICE) != 5], clean[torch.arange(40, device=DEVICE) != 5])


@each_format
def test_rows_of_very_different_size_keep_their_own_scale(stored):
    """Each row and each 64 columns have a power of two: small ones beside large ones lose nothing."""
    layer = Layer(stored, (304, 200), activation=ReLU2())
    batch = hot_batch(layer.problem, 40)
    power = 2.0 ** (torch.arange(40, device=DEVICE) - 20).to(torch.bfloat16)[:, None]
    batch.hidden_states.mul_(power)
    got = layer.experts(batch) / power.double() ** 2  # as that activation grows
    wanted = layer.tokens(batch) / power.double().cpu().numpy() ** 2
    assert_close(got.to(torch.bfloat16), wanted, torch.bfloat16)


@each_format
@pytest.mark.parametrize("count", [1, 40, 300])
def test_a_graph_replays_another_routing(stored, count):
    """All tokens at one expert, then none at any: both need other tiles than those of the capture."""
    layer = Layer(stored, (304, 200), graph_capture=True)
    static = hot_batch(layer.problem, count)
    layer.experts(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = layer.experts(static)
    hot, nobody = torch.full_like(static.routing.topk_ids, 4), torch.full_like(static.routing.topk_ids, -1)
    for ids in (hot, nobody, hot_batch(layer.problem, count, seed=1).routing.topk_ids):
        static.routing.topk_ids.copy_(ids)
        static.hidden_states.copy_(static.hidden_states.roll(1, dims=-1))
        output.fill_(torch.nan)
        graph.replay()
        assert torch.equal(output, layer.experts(static))
    static.routing.topk_ids.copy_(nobody)
    graph.replay()
    assert not output.any()


def test_these_tests_split():
    """What is chosen here, of each layout."""
    from moesaic.backends import triton_quantized  # noqa: PLC0415

    for name, layout in (("split_tokens", Standard()), ("split_grouped", GroupedContiguous(8))):
        layer = Layer(MXFP4(), (136, 72), layout=layout)
        rows, _ = in_order(layer.problem, 8, (1, 0, 0, 0, 3), ends=True)
        batch = rows if name == "split_grouped" else hot_batch(layer.problem, 40)
        with mock.patch.object(triton_quantized, name, wraps=getattr(triton_quantized, name)) as called:
            layer.experts(batch)
        assert called.call_count == 1
