"""rebalance: as a layer built anew, bit for bit; the old placement serves until the switch."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from moesaic import (
    FP8,
    INT4,
    INT8,
    BatchedExperts,
    Cpu,
    ExpertWeights,
    GroupedContiguous,
    MoE,
    PaddedStandard,
    PerBlock,
    PerGroup,
    PerRow,
    Plain,
    Reference,
    Scheme,
    SwiGLU,
    bind,
)
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.by_expert import GroupedByExpert
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.dispatch.low_latency import LowLatency
from moesaic.dispatch.padded_all_to_all import PaddedAllToAll
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.recorded import Recorded
from moesaic.dispatch.threads import in_threads, ranks_in_threads
from moesaic.parallel import rebalance
from tests.dispatch.layers import INNER, Given, calls, layer_problem
from tests.parallel.rank_layers import AFTER, BEFORE, build_all, handed_in, run_all, same_bits, whole


def moved(ranks, weights, handed, *, before=BEFORE, after=AFTER, chunk_bytes=1000, **fields):
    """Layers that were built for `before` and rebalanced."""
    layers = build_all(ranks, before, weights, handed, **fields)
    in_threads(lambda layer: rebalance(layer, after, chunk_bytes=chunk_bytes), layers)
    return layers


def assert_as_built_anew(layers, ranks, weights, handed, *, after=AFTER, **fields):
    anew = build_all(ranks, after, weights, handed, **fields)
    for layer, new, own in zip(layers, anew, after.experts, strict=True):
        assert layer.experts.problem == new.experts.problem
        assert layer.experts.backend == new.experts.backend
        assert layer.dispatcher == new.dispatcher
        found, wanted = layer.experts.canonical().tensors, weights.select(own).tensors
        assert all(same_bits(one, other) for one, other in zip(found, wanted, strict=True))
    for got, wanted in zip(run_all(layers, handed), run_all(anew, handed), strict=True):
        assert same_bits(got, wanted)
    assert any(output.abs().sum() > 0 for output in run_all(layers, handed))


FORMS = {
    "float32": {},
    "bfloat16, which Cpu packs": {"dtype": torch.bfloat16},
    "biases": {"bias": True},
    "FP8 in blocks": {"stored": FP8(PerBlock())},
    "FP8 in rows": {"stored": FP8(PerRow())},
    "INT8": {"stored": INT8(PerRow()), "dtype": torch.bfloat16},
    "INT4 with zero points, biases": {"stored": INT4(PerGroup(8), zero_point=True), "bias": True},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_rebalanced_layer_is_one_built_anew_bit_for_bit(form):
    asked = FORMS[form]
    weights, dtype = whole(**asked), asked.get("dtype", torch.float32)
    fields = {"dtype": dtype, "scheme": Scheme(asked.get("stored", Plain()), Plain())}
    fields |= {"backends": (Cpu(),)} if form.startswith("bfloat16") else {}
    ranks, handed = ranks_in_threads(2, timeout=20.0), handed_in(dtype)
    assert_as_built_anew(moved(ranks, weights, handed, **fields), ranks, weights, handed, **fields)


THREE = (Placement(5, ((0, 1), (2, 3), (4,))), Placement(5, ((3, 4, 0), (0, 1), (2, 1, 0))))


@pytest.mark.parametrize("kind", [AllToAll, AllGather])
@pytest.mark.parametrize("backend", [Reference(), Cpu()])
def test_three_ranks_there_and_back(kind, backend):
    weights, ranks, handed = whole(), ranks_in_threads(3, timeout=20.0), handed_in(num_ranks=3)
    fields = {"kind": kind, "backends": (backend,)}
    layers = moved(ranks, weights, handed, before=THREE[0], after=THREE[1], **fields)
    assert_as_built_anew(layers, ranks, weights, handed, after=THREE[1], **fields)
    in_threads(lambda layer: rebalance(layer, THREE[0]), layers)
    assert_as_built_anew(layers, ranks, weights, handed, after=THREE[0], **fields)


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        (partial(PaddedAllToAll, max_tokens=6), PaddedStandard()),
        (partial(PaddedAllToAll, max_tokens=6, laid=GroupedByExpert(4)), GroupedContiguous(4)),
        (partial(LowLatency, max_tokens=6), BatchedExperts()),
    ],
    ids=["padded", "grouped", "slabs"],
)
def test_dispatchers_that_do_not_wait_on_the_host(kind, layout):
    weights, ranks, handed = whole(), ranks_in_threads(2, timeout=20.0), handed_in()
    fields = {"kind": kind, "layout": layout}
    assert_as_built_anew(moved(ranks, weights, handed, **fields), ranks, weights, handed, **fields)


@pytest.mark.parametrize("chunk_bytes", [96, 999, 3072, 3080, 2**24])
def test_the_size_of_chunks_is_kept_to_and_changes_nothing(chunk_bytes, monkeypatch):
    weights, ranks, handed = whole(), ranks_in_threads(2, timeout=20.0), handed_in()
    sizes, move = [], Ranks.point_to_point

    def noted(self, sent, got, step):
        sizes.extend(len(tensor) for tensor, _ in sent)
        move(self, sent, got, step)

    monkeypatch.setattr(Ranks, "point_to_point", noted)
    before, after = Placement(5, ((0, 1, 2), (3, 4))), Placement(5, ((0, 1), (2, 3, 4)))  # one expert travels
    layers = moved(ranks, weights, handed, before=before, after=after, chunk_bytes=chunk_bytes)
    expert = (2 * 16 * 24 + 24 * 16) * 4
    assert sum(size - 8 for size in sizes) == expert  # a message ends with its checksum
    assert max(sizes) - 8 <= chunk_bytes
    assert_as_built_anew(layers, ranks, weights, handed, after=after)


def test_the_old_placement_serves_between_the_steps():
    weights, ranks, handed = whole(), ranks_in_threads(2, timeout=20.0), handed_in()
    layers = build_all(ranks, BEFORE, weights, handed)
    old = run_all(layers, handed)

    def work(layer, call, wanted):
        seen = []

        def progress(done, of):
            served = layer(call[0], call[0][:, :1].expand(-1, 5))
            seen.append((done, of, torch.equal(served, wanted), layer.dispatcher.placement))

        rebalance(layer, AFTER, chunk_bytes=2000, progress=progress)
        return seen

    seen = in_threads(work, layers, handed, old)
    of = len(seen[0])
    assert of > 4
    assert seen == [[(done, of, True, BEFORE) for done in range(1, of + 1)]] * 2
    assert_as_built_anew(layers, ranks, weights, handed)


def test_constants_travel_with_their_experts():
    weights, ranks, handed = whole(), ranks_in_threads(2, timeout=20.0), handed_in()
    activation = SwiGLU(limit=(0.3, 0.2, 0.2, 0.2, 0.1), alpha=(1.0, 2.0, 1.0, 1.0, 1.0))
    before, after = Placement(5, ((0, 1, 4), (2, 3))), Placement(5, ((2, 3), (4, 1, 0)))
    fields = {"activation": activation}
    assert activation.select(before.experts[1]) == SwiGLU(limit=0.2)  # a number there
    layers = moved(ranks, weights, handed, before=before, after=after, **fields)
    assert layers[1].experts.problem.activation == SwiGLU(limit=(0.1, 0.2, 0.3), alpha=(1.0, 2.0, 1.0))
    assert_as_built_anew(layers, ranks, weights, handed, after=after, **fields)


def test_constants_survive_placements_in_which_they_are_alike_on_every_rank():
    weights, ranks, handed = whole(), ranks_in_threads(2, timeout=20.0), handed_in()
    fields = {"activation": SwiGLU(limit=(0.1, 0.7, 0.1, 0.7, 0.1))}
    alike, last = Placement(5, ((0, 2, 4), (1, 3))), Placement(5, ((3, 0), (1, 4, 2)))
    layers = moved(ranks, weights, handed, after=alike, **fields)
    assert [layer.experts.problem.activation for layer in layers] == [SwiGLU(limit=0.1), SwiGLU(limit=0.7)]
    in_threads(lambda layer: rebalance(layer, last), layers)
    assert_as_built_anew(layers, ranks, weights, handed, after=last, **fields)


def test_a_recorder_goes_on_counting():
    weights, ranks, handed = whole(), ranks_in_threads(2, timeout=20.0), handed_in()
    recorders = [LoadRecorder(1, 5) for _ in ranks]
    built = build_all(ranks, BEFORE, weights, handed)

    def recorded(layer, recorder):
        return MoE(layer.router, Recorded(layer.dispatcher, recorder, 0), layer.experts)

    layers = in_threads(recorded, built, recorders)
    run_all(layers, handed)
    once = [recorder.read().counts for recorder in recorders]
    in_threads(lambda layer: rebalance(layer, AFTER), layers)
    run_all(layers, handed)
    for layer, recorder, counts in zip(layers, recorders, once, strict=True):
        assert layer.dispatcher.dispatcher.placement == AFTER
        assert torch.equal(recorder.read().counts, 2 * counts)
        assert counts.sum() > 0


def test_the_same_placement_moves_nothing():
    weights, ranks, handed = whole(), ranks_in_threads(2, timeout=20.0), handed_in()
    layers = build_all(ranks, BEFORE, weights, handed)
    experts = [layer.experts for layer in layers]
    in_threads(lambda layer: rebalance(layer, replace(BEFORE)), layers)
    assert [layer.experts for layer in layers] == experts


def test_shards_of_an_expert_travel_between_ranks_with_the_same_shard():
    weights, ranks = whole(), ranks_in_threads(4, timeout=20.0)
    handed = calls([4, 1, 0, 3])

    def shard(own):
        """One half of the intermediate size: rows of gate and up, columns of down."""
        gate_up = weights.gate_up.data.unflatten(1, (2, 2, INNER // 2))[:, :, own.rank % 2].flatten(1, 2)
        return ExpertWeights.plain(gate_up, weights.down.data[:, :, own.rank % 2 * INNER // 2 :][:, :, : INNER // 2])

    def built(placement):
        def build(own, call):
            held = placement.experts[own.rank // 2]
            problem = layer_problem(len(held), intermediate_size=INNER // 2)
            dispatcher = AllToAll(own, placement, shards=2)
            return MoE(Given(call[1]), dispatcher, bind(problem, shard(own).select(held)))

        return in_threads(build, ranks, handed)

    layers, anew = built(BEFORE), built(AFTER)
    in_threads(lambda layer: rebalance(layer, AFTER, chunk_bytes=1000), layers)
    for layer, new in zip(layers, anew, strict=True):
        pairs = zip(layer.experts.canonical().tensors, new.experts.canonical().tensors, strict=True)
        assert all(same_bits(one, other) for one, other in pairs)
    for got, new in zip(run_all(layers, handed), run_all(anew, handed), strict=True):
        assert same_bits(got, new)
