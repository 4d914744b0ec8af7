"""Replays on a GPU: the bits of launches through Triton, whatever was launched before, in graphs too."""

import pytest
import torch

pytest.importorskip("triton")

from moesaic import ExpertWeights, HopperGrouped, Problem, Routing, StandardBatch, SwiGLU, bind
from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.replayed_launches import Replay
from moesaic.tuning import Always, Product, Streamed, Vector

pytestmark = pytest.mark.gpu
CHOICES = {
    "vector": Vector((2, 512, 1, 4), (8, 256, 3, 4)),
    "streamed": Streamed(16, 0, (16, 128, 3), (32, 128, 3), warps=2, swap=False, tma=False),
    "streamed by TMA": Streamed(32, 16, (64, 64, 4), (128, 64, 4), warps=4, swap=True, tma=True),
    "products, gathered": Product(gather=True),
    "products, copied": Product(gather=False),
}
each_form = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
SIZES = {"num_experts": 6, "top_k": 2, "hidden_size": 512, "intermediate_size": 256}


@pytest.fixture(scope="module")
def weights():
    shapes = ((512, 512), (512, 256), (512,), (512,))
    gate_up, down, *biases = (torch.randn(6, *shape, device="cuda").bfloat16() / 16 for shape in shapes)
    return ExpertWeights.plain(gate_up, down, gate_up_bias=biases[0], down_bias=biases[1])


def layer(choice, weights, **changes):
    limits = (7.0, 1.0, 0.5, 2.0, 3.0, 4.0)
    problem = Problem(**SIZES, activation=SwiGLU(limit=limits), bias=True, **changes)
    return bind(problem, weights, backends=(HopperGrouped(Always(choice)),))


def batch(storage, tokens, column, first):
    """Rows that begin at a column of `storage`, and a routing in which the last expert has none."""
    draw = torch.Generator("cuda").manual_seed(first)
    ids = torch.rand(tokens, 5, device="cuda", generator=draw).argsort(1)[:, :2].int().contiguous()
    ids[::7, 1] = -1
    rows = storage[first : first + tokens, column : column + 512]
    return StandardBatch(rows, Routing(ids, torch.rand(tokens, 2, device="cuda", generator=draw)))


@each_form
@pytest.mark.parametrize("scaled", [False, True], ids=["", "weight on input"])
def test_the_bits_are_those_of_launches_through_triton(choice, scaled, weights, monkeypatch):
    """Other addresses, numbers of tokens, strides and alignments than those of the call before."""
    storage = torch.randn(2600, 1024, device="cuda").bfloat16()
    dense = storage[:, :512].contiguous()
    sizes = ((1, 0), (16, 0), (33, 8), (600, 512), (5, 1), (33, 0), (600, 0), (1, 3), (2200, 0))
    given = [batch(storage, tokens, column, 3 * n) for n, (tokens, column) in enumerate(sizes)]
    given += [batch(dense, tokens, 0, 40 + n) for n, tokens in enumerate((1, 16, 33, 600, 2200, 1, 16, 33, 600, 2200))]
    subject = layer(choice, weights, weight_on_input=scaled)
    got = [subject(each) for _ in range(4) for each in given]
    kept = subject._bound.prepared.replays._known.values()
    assert [value.__class__ for value in kept] == [Replay] * 5
    monkeypatch.setattr(DirectLaunch, "launch", lambda self, grid, *args, **kwargs: self.kernel[grid](*args, **kwargs))
    other = layer(choice, weights, weight_on_input=scaled)
    expected = [other(each) for each in given] * 4
    assert not any(isinstance(value, Replay) for value in other._bound.prepared.replays._known.values())
    assert all(map(torch.equal, got, expected))


@each_form
def test_a_replay_is_captured_in_a_graph_and_takes_the_current_stream(choice, weights):
    subject = layer(choice, weights)
    given = batch(torch.randn(40, 512, device="cuda").bfloat16(), 40, 0, 0)
    for _ in range(3):
        subject(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = subject(given)
    for seed in (1, 2):
        other = batch(torch.randn(40 + seed, 512, device="cuda").bfloat16(), 40, 0, seed)
        given.hidden_states.copy_(other.hidden_states)
        given.routing.topk_ids.copy_(other.routing.topk_ids)
        given.routing.topk_weights.copy_(other.routing.topk_weights)
        graph.replay()
        assert torch.equal(out, subject(other))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        given.hidden_states.zero_()
        got = subject(given)
    side.synchronize()
    assert torch.equal(got, subject(given))


@each_form
def test_a_replay_allocates_no_more_than_is_stated(choice, weights):
    subject = layer(choice, weights)
    for tokens in (1, 33, 600):
        given = batch(torch.randn(tokens, 512, device="cuda").bfloat16(), tokens, 0, 0)
        for _ in range(3):
            subject(given)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = subject(given)
        assert torch.cuda.max_memory_allocated() - before <= subject.workspace(tokens)
        assert out.shape == given.rows.shape
