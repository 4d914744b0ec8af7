"""The Triton backends on CUDA: what they do with few rows, more and many is one answer, at every size on a boundary."""

import dataclasses

import pytest
import torch

from moesaic import (
    GroupedBatch,
    GroupedContiguous,
    HopperGrouped,
    Machine,
    Reference,
    Routing,
    StandardBatch,
    SwiGLU,
    TritonGrouped,
    bind,
    known_machine,
)
from moesaic.backends.capabilities import ReasonCode
from moesaic.backends.device_weights import DeviceWeights
from moesaic.backends.hopper_products import product_rows, product_tokens
from moesaic.backends.triton_streamed import streamed_rows, streamed_tokens, vector_tokens
from moesaic.backends.triton_tilings import streamed_launch, vector_launch
from moesaic.tuning import Always, Product
from moesaic.tuning.strips import strips
from moesaic.tuning.tilings import step_for_mean, tilings
from tests.backends import example
from tests.kernels.order_cases import routing
from tests.tolerance import assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs sm_90"
)
EMPTY = example.EMPTY_EXPERT
LARGE = example.problem(
    hidden_size=1096,
    intermediate_size=616,
    num_experts=9,
    dtype=torch.bfloat16,
    bias=True,
    activation=SwiGLU(limit=tuple(1.0 + e for e in range(9))),
)
BOUNDARIES = sorted(
    {0, 1, 2, 3, 4, 7, 8, 9, *(9 * mean // 3 + d for mean in (1, 8, 20, 44, 64, 72, 512) for d in (0, 1))}
)
"""Numbers of tokens around which another tiling, or another kernel, takes over."""


EACH = (
    TritonGrouped(),
    HopperGrouped(),
    HopperGrouped(Always(Product())),
    HopperGrouped(Always(Product(gather=False))),
    HopperGrouped(Always(Product(blocks=2))),
    HopperGrouped(Always(Product(gather=False, blocks=8))),
)


@pytest.fixture(scope="module")
def layer():
    """Weights on the GPU, those of the expert without rows NaN; what the kernels hold of them; the oracle."""
    given = example.weights(LARGE)
    finite = bind(LARGE, moved(given), backends=(Reference(),))
    given.gate_up.data[EMPTY] = torch.nan
    given.down.data[EMPTY] = torch.nan
    return moved(given), DeviceWeights.of(moved(given), LARGE), finite


def moved(given, device="cuda"):
    """The same weights on `device`."""
    projections = {name: getattr(given, name) for name in STORED}
    stored = {name: dataclasses.replace(held, data=held.data.to(device)) for name, held in projections.items()}
    return dataclasses.replace(given, **stored, **{name: getattr(given, name).to(device) for name in BIASES})


STORED = ("gate_up", "down")
BIASES = ("gate_up_bias", "down_bias")


def tokens(count, seed=0):
    """Skewed routing with garbage, nobody at one expert."""
    ids = torch.tensor(routing(count, 3, 9, empty=EMPTY, seed=seed), dtype=torch.int32, device="cuda").view(count, 3)
    g = torch.Generator(device="cuda").manual_seed(count + seed)
    rows = torch.randn(count, LARGE.hidden_size, generator=g, device="cuda", dtype=torch.bfloat16)
    return StandardBatch(rows, Routing(ids, torch.rand(count, 3, generator=g, device="cuda") + 0.1))


def skip_if_declined(backend, device="cuda"):
    """Where this GPU is not the backend's; on one that is, a verdict against it is a failure."""
    reasons = backend.reasons_against(LARGE, Machine.current(device))
    if reasons:
        assert {reason.code for reason in reasons} <= {ReasonCode.ARCHITECTURE}, reasons
        pytest.skip(f"not a GPU of {backend.name}: {reasons}")


def agree(got, wanted):
    assert_close(got, wanted.double().cpu().numpy(), torch.bfloat16)


@pytest.mark.parametrize("count", BOUNDARIES)
@pytest.mark.parametrize("backend", [TritonGrouped(), HopperGrouped()], ids=lambda b: b.name)
def test_every_number_of_tokens_gives_the_oracles_answer(layer, backend, count):
    skip_if_declined(backend)
    weights, _, oracle = layer
    batch = tokens(count)
    agree(bind(LARGE, weights, backends=(backend,))(batch), oracle(batch))


@pytest.mark.parametrize("count", [1, 5, 8, 300])
def test_all_kernels_give_one_answer_to_one_batch(layer, count):
    _, prepared, oracle = layer
    batch = tokens(count)
    given = (batch.hidden_states, batch.routing, prepared, LARGE)
    wanted = oracle(batch)
    small = dataclasses.replace(LARGE, hidden_size=64, intermediate_size=64)
    agree(vector_tokens(*given, vector_launch(strips(small, 1))), wanted)
    machines = ("a100", "h200") if Machine.current("cuda").capability == 90 else ("a100",)
    for machine in machines:
        for _, tiling in tilings(known_machine(machine)):
            agree(streamed_tokens(*given, streamed_launch(tiling)), wanted)
    if "h200" in machines:
        agree(product_tokens(*given), wanted)


@on_hopper
@pytest.mark.parametrize("counts", [(7, 64, 0, 1, 129, 160, 161, 300, 65), (0, 0, 0, 0, 5000, 0, 0, 0, 0)], ids=str)
def test_rows_in_expert_order(layer, counts):
    _, prepared, _ = layer
    case = dataclasses.replace(LARGE, layout=GroupedContiguous(64))
    weights = example.weights(LARGE)
    oracle = bind(case, moved(weights), backends=(Reference(),))
    heights = torch.tensor(counts, dtype=torch.int32)
    begins = (torch.cumsum((heights + 63) // 64 * 64, 0) - (heights + 63) // 64 * 64).to(torch.int32)
    rows = torch.full((int(begins[-1]) + 128, LARGE.hidden_size), torch.nan, dtype=torch.bfloat16)
    live = torch.zeros(len(rows), dtype=torch.bool)
    for begin, height in zip(begins.tolist(), counts, strict=True):
        rows[begin : begin + height] = example.rows(LARGE, height, seed=begin)
        live[begin : begin + height] = True
    batch = GroupedBatch(rows.cuda(), begins.cuda(), heights.cuda(), 64)
    wanted = oracle(batch)[live.cuda()]
    agree(product_rows(batch, prepared, case)[live.cuda()], wanted)
    machine = Machine.current("cuda")
    _, tiling = tilings(machine)[step_for_mean(case, machine, len(rows))]
    agree(streamed_rows(batch, prepared, case, streamed_launch(tiling))[live.cuda()], wanted)


@pytest.mark.parametrize("count", [1, 8, 40, 300, 2000])
@pytest.mark.parametrize("backend", EACH, ids=repr)
def test_a_graph_replays_another_routing(layer, backend, count):
    """All tokens at one expert, then none at any: both need other tiles than those of the capture."""
    skip_if_declined(backend)
    experts = bind(dataclasses.replace(LARGE, graph_capture=True), layer[0], backends=(backend,))
    static = tokens(count)
    experts(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = experts(static)
    hot, nobody = torch.full_like(static.routing.topk_ids, 4), torch.full_like(static.routing.topk_ids, -1)
    for ids in (hot, nobody, tokens(count, seed=1).routing.topk_ids):
        static.routing.topk_ids.copy_(ids)
        static.hidden_states.copy_(static.hidden_states.roll(1, dims=-1))
        output.fill_(torch.nan)
        graph.replay()
        assert torch.equal(output, experts(static))
    static.routing.topk_ids.copy_(nobody)
    graph.replay()
    assert not output.any()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("backend", EACH, ids=repr)
def test_weights_on_another_than_the_current_device(backend):
    """Triton launches on the current device."""
    skip_if_declined(backend, "cuda:1")
    given = example.weights(LARGE)
    here, there = (moved(given, device) for device in ("cuda:0", "cuda:1"))
    batch = tokens(40)
    elsewhere = StandardBatch(
        batch.hidden_states.to("cuda:1"),
        Routing(batch.routing.topk_ids.to("cuda:1"), batch.routing.topk_weights.to("cuda:1")),
    )
    with torch.cuda.device(0):
        wanted = bind(LARGE, here, backends=(backend,))(batch)
        got = bind(LARGE, there, backends=(backend,))(elsewhere)
    assert torch.equal(got.cpu(), wanted.cpu())
