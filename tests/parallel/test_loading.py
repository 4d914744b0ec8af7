"""load_experts: each rank reads the experts of its placement, and no byte of the others'."""

import json

import pytest
import torch
from safetensors.torch import save_file

from moesaic import FP8, MoE, PerBlock, Plain, Reference, Scheme, SwiGLU
from moesaic.checkpoints import Checkpoint, FineGrainedFP8, write_experts
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.low_latency import LowLatency
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.threads import in_threads, ranks_in_threads
from moesaic.errors import DispatchError, FleetError
from moesaic.layouts import BatchedExperts
from moesaic.parallel import load_experts, rebalance
from tests.dispatch.layers import INNER, NUM_EXPERTS, TOP_K, Given, layer_problem, one_rank
from tests.parallel.rank_layers import AFTER, BEFORE, build_all, errors, handed_in, run_all, same_bits, whole
from tests.tolerance import assert_close

ASKED = {"activation": SwiGLU(), "top_k": TOP_K}


def directories(where, weights, placement):
    """One directory a rank, with an index of all experts and the files of its own: one file an expert."""
    names = {"gate_proj": weights.gate_up.data[:, :INNER], "up_proj": weights.gate_up.data[:, INNER:]}
    names["down_proj"] = weights.down.data
    files = {
        f"expert-{expert}.safetensors": {
            f"model.layers.3.mlp.experts.{expert}.{name}.weight": values[expert].contiguous()
            for name, values in names.items()
        }
        for expert in range(NUM_EXPERTS)
    }
    index = {"weight_map": {name: file for file, tensors in files.items() for name in tensors}}
    made = []
    for rank, held in enumerate(placement.experts):
        directory = where / f"rank-{rank}"
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps({"num_experts": NUM_EXPERTS}), encoding="utf-8")
        (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        for expert in held:
            file = f"expert-{expert}.safetensors"
            save_file(files[file], directory / file)
        made.append(directory)
    return made


@pytest.mark.parametrize("given", [Checkpoint, str])
@pytest.mark.parametrize("placement", [BEFORE, AFTER])
def test_each_rank_needs_the_files_of_its_own_experts_only(placement, given, tmp_path):
    weights, ranks, handed = whole(), ranks_in_threads(2, timeout=20.0), handed_in()
    where = directories(tmp_path, weights, placement)

    def load(own, directory, call):
        experts = load_experts(given(directory), 3, placement, own, **ASKED)
        return MoE(Given(call[1]), AllToAll(own, placement), experts)

    layers = in_threads(load, ranks, where, handed)
    anew = build_all(ranks, placement, weights, handed)
    for layer, new in zip(layers, anew, strict=True):
        assert layer.experts.problem == new.experts.problem
        pairs = zip(layer.experts.canonical().tensors, new.experts.canonical().tensors, strict=True)
        assert all(same_bits(one, other) for one, other in pairs)
    outputs = run_all(layers, handed)
    assert all(same_bits(got, new) for got, new in zip(outputs, run_all(anew, handed), strict=True))
    in_threads(lambda layer: rebalance(layer, AFTER), layers)
    assert [layer.dispatcher.placement for layer in layers] == [AFTER] * 2


def test_what_was_loaded_for_the_layout_of_a_dispatcher_runs_under_it(tmp_path):
    weights, ranks, handed = whole(), ranks_in_threads(2, timeout=20.0), handed_in()
    where = directories(tmp_path, weights, BEFORE)

    def load(own, directory, call):
        dispatcher = LowLatency(own, BEFORE, max_tokens=8)
        experts = load_experts(directory, 3, BEFORE, own, layout=dispatcher.layout, **ASKED)
        return MoE(Given(call[1]), dispatcher, experts)

    layers = in_threads(load, ranks, where, handed)
    for got, wanted in zip(run_all(layers, handed), one_rank(handed), strict=True):
        assert_close(got, wanted.double().numpy(), torch.float32)


def test_formats_and_constants_are_those_of_the_ranks_experts(tmp_path):
    weights, ranks = whole(torch.bfloat16, stored=FP8(PerBlock())), ranks_in_threads(2, timeout=20.0)
    config = {"num_experts": NUM_EXPERTS, "dtype": "float32"}
    write_experts(tmp_path / "fp8", {0: weights, 1: weights}, FineGrainedFP8(), config=config)
    limits = (1.0, 2.0, 3.0, 4.0, 5.0)
    asked = {"activation": SwiGLU(limit=limits), "top_k": TOP_K}
    found = in_threads(lambda own: load_experts(tmp_path / "fp8", 1, AFTER, own, **asked), ranks)
    for experts, held in zip(found, AFTER.experts, strict=True):
        scheme = Scheme(FP8(PerBlock()), experts.problem.scheme.inputs)
        activation = SwiGLU(limit=tuple(limits[expert] for expert in held))
        assert experts.problem == layer_problem(len(held), activation=activation, scheme=scheme)
        assert experts.problem.scheme.inputs != Plain()
        pairs = zip(experts.canonical().tensors, weights.select(held).tensors, strict=True)
        assert all(same_bits(one, other) for one, other in pairs)


def test_on_more_ranks_than_placed_each_keeps_a_shard(tmp_path):
    weights, ranks = whole(), ranks_in_threads(4, timeout=20.0)
    (where,) = directories(tmp_path, weights, Placement(5, ((0, 1, 2, 3, 4),)))
    found = in_threads(lambda own: load_experts(where, 3, AFTER, own, **ASKED), ranks)
    for rank, experts in enumerate(found):
        held, own = list(AFTER.experts[rank // 2]), slice(rank % 2 * INNER // 2, (rank % 2 + 1) * INNER // 2)
        gate, up = weights.gate_up.data[held].chunk(2, dim=1)
        assert experts.problem == layer_problem(len(held), intermediate_size=INNER // 2)
        assert same_bits(experts.canonical().gate_up.data, torch.cat([gate[:, own], up[:, own]], dim=1))
        assert same_bits(experts.canonical().down.data, weights.down.data[held][:, :, own])


def test_a_rank_that_cannot_read_ends_the_loading_of_all(tmp_path):
    ranks, where = ranks_in_threads(2, timeout=20.0), directories(tmp_path, whole(), BEFORE)
    (where[1] / "expert-4.safetensors").unlink()

    def load(own, directory):
        return load_experts(directory, 3, BEFORE, own, **ASKED)

    found = errors(load, ranks, where)
    assert str(found[0]) == str(found[1])
    with pytest.raises(FleetError, match=r"load_experts: rank 1: CheckpointError: .*expert-4.*; no rank has loaded"):
        raise found[0]
    other = errors(load, ranks, [where[0], tmp_path / "nowhere"])
    assert "rank 1: CheckpointError: " in str(other[0])
    assert "is not a directory" in str(other[0])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"top_k": 2}, DispatchError, "the ranks of a layer differ in top_k: 3 on rank 0, but 2 on rank 1"),
        (
            {"activation": SwiGLU(alpha=2.0)},
            DispatchError,
            "activation: SwiGLU.alpha=1.0, .* on rank 0, but SwiGLU.alpha=2.0, .* on rank 1",
        ),
        ({"placement": AFTER}, DispatchError, "differ in placement: "),
        ({"backends": (Reference(),)}, DispatchError, "differ in backend: cpu on rank 0, but reference on rank 1"),
        (
            {"placement": Placement.contiguous(4, 2)},
            FleetError,
            "of 4 experts on 2 ranks, but .* has 5 and the group 2",
        ),
        (
            {"placement": Placement.contiguous(5, 3)},
            FleetError,
            "of 5 experts on 3 ranks, but .* has 5 and the group 2",
        ),
        ({"placement": ((0, 1), (2, 3, 4))}, FleetError, "rank 1: DispatchError: load_experts.placement is"),
        ({"top_k": 6}, FleetError, "rank 1: DispatchError: load_experts.top_k is 6, but the layer has 5 experts"),
        ({"activation": "SwiGLU"}, FleetError, "rank 1: DispatchError: load_experts.activation is 'SwiGLU', but"),
        (
            {"activation": SwiGLU(limit=(1.0, 2.0) * 10)},
            FleetError,
            "rank 1: DispatchError: SwiGLU.limit holds 20 values, but the layer has 5 experts: give one number, or",
        ),
        ({"layout": "slabs"}, FleetError, "rank 1: DispatchError: load_experts.layout is 'slabs', but it needs a Lay"),
        (
            {"layout": BatchedExperts()},
            DispatchError,
            r"layout: Standard\(\) on rank 0, but BatchedExperts\(\) on rank 1",
        ),
        ({"layer": 2}, FleetError, "rank 1: CheckpointError: "),
    ],
)
def test_ranks_that_are_told_otherwise(changed, error, words, tmp_path):
    (directory,) = directories(tmp_path, whole(), Placement(5, ((0, 1, 2, 3, 4),)))
    given = {"layer": 3, "placement": BEFORE, **ASKED}

    def load(own):
        asked = {**given, **(changed if own.rank else {})}
        load_experts(directory, asked.pop("layer"), asked.pop("placement"), own, **asked)

    found = errors(load, ranks_in_threads(2, timeout=20.0))
    assert str(found[0]) == str(found[1])
    with pytest.raises(error, match=words):
        raise found[0]


@pytest.mark.usefixtures("unchecked")
def test_ranks_are_needed():
    with pytest.raises(DispatchError, match=r"load_experts\.ranks is None"):
        load_experts("nowhere", 0, BEFORE, None, **ASKED)
