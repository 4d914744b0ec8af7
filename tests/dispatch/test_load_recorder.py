"""What the recorder counts, and that counting neither changes a call nor waits for the device."""

import collections
import json
import re

import pytest
import torch

from moesaic import Local, MoE, Routing, bind
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.balance import balance
from moesaic.dispatch.expert_load import ExpertLoad
from moesaic.dispatch.load_recorder import FEW, LoadRecorder
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.recorded import Recorded
from moesaic.dispatch.threads import Threads, in_threads, ranks_in_threads
from moesaic.errors import BatchError, DispatchError
from tests.dispatch.layers import NUM_EXPERTS, Given, calls, layer_problem, one_rank, weights
from tests.dispatch.programs import ended, started

LAST, FIRST = 2**31 - 1, -(2**31)


def counted(*ids, num_experts=NUM_EXPERTS):
    """By plain Python: how often each expert is named."""
    found = collections.Counter(e for each in ids for row in each.tolist() for e in row if 0 <= e < num_experts)
    return [found[e] for e in range(num_experts)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("few", [1, FEW], ids=["many ids", "few ids"])
def test_every_active_slot_counts_and_no_other(dtype, few, monkeypatch):
    monkeypatch.setattr("moesaic.dispatch.load_recorder.FEW", few)
    recorder = LoadRecorder(3, 5)
    ids = torch.tensor([[0, 4, 0], [-1, 5, 4], [LAST, FIRST, 6], [1, -2, 4]], dtype=dtype)
    for layer, times in ((0, 1), (2, 2)):
        for _ in range(times):
            recorder.record(layer, ids)
    recorder.record(1, ids[:0])
    once = counted(ids)
    assert once == [2, 1, 0, 0, 3]  # expert 2 and 3 are empty
    assert recorder.read().counts.tolist() == [once, [0] * 5, [2 * n for n in once]]


def test_a_reading_stays_what_it_was_and_windows_are_differences():
    recorder, ids = LoadRecorder(1, 5), torch.tensor([[1, 2]])
    recorder.record(0, ids)
    before = recorder.read()
    recorder.record(0, ids)
    recorder.record(0, torch.tensor([[4, 4]]))
    assert before.counts.tolist() == [[0, 1, 1, 0, 0]]
    assert recorder.read().since(before).counts.tolist() == [[0, 1, 1, 0, 2]]


def test_the_layer_computes_what_it_computed_and_a_refused_call_is_not_counted():
    recorder, ((hidden, routing),) = LoadRecorder(2, NUM_EXPERTS), calls([7])
    layer = MoE(Given(routing), Recorded(Local(), recorder, 1), bind(layer_problem(), weights()))
    assert torch.equal(layer(hidden, torch.zeros(7, NUM_EXPERTS)), one_rank([(hidden, routing)])[0])
    (alone,) = ranks_in_threads(1)
    dispatcher = Recorded(AllToAll(alone, Placement.contiguous(NUM_EXPERTS, 1)), recorder, 0)
    with pytest.raises(BatchError):
        dispatcher.dispatch(hidden[:1], routing)
    assert recorder.read().counts.tolist() == [[0] * NUM_EXPERTS, counted(routing.topk_ids)]


def test_ranks_count_their_own_tokens_by_the_models_experts_and_add_them_up():
    placement, handed = Placement(5, ((4, 0, 2), (1, 4, 3))), calls([6, 9])
    ranks, recorders = ranks_in_threads(2, timeout=20.0), [LoadRecorder(1, 5) for _ in range(2)]
    dispatchers = [Recorded(AllToAll(own, placement), r, 0) for own, r in zip(ranks, recorders, strict=True)]
    in_threads(lambda dispatcher, call: dispatcher.dispatch(*call), dispatchers, handed)
    every = [counted(routing.topk_ids) for _, routing in handed]
    assert [recorder.read().counts.tolist() for recorder in recorders] == [[own] for own in every]
    added = in_threads(lambda recorder, own: recorder.read_all(own), recorders, ranks)
    assert [load.counts.tolist() for load in added] == [[[sum(n) for n in zip(*every, strict=True)]]] * 2


def test_a_recorded_dispatcher_says_what_the_one_inside_says():
    placement = Placement.contiguous(10, 2)
    dispatchers = tuple(
        Recorded(AllToAll(own, placement), LoadRecorder(1, 10), 0) for own in ranks_in_threads(2, timeout=20.0)
    )
    fleet = Threads(num_experts=10, num_ranks=2, dispatchers=dispatchers)
    assert fleet.layout == dispatchers[0].dispatcher.layout
    assert dispatchers[0].synchronises
    assert not Recorded(Local(), LoadRecorder(1, 10), 0).synchronises


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


VIEWS = {"aten::view", "aten::expand", "aten::flatten", "aten::_unsafe_view", "aten::reshape"}


@pytest.mark.parametrize(
    ("rows", "operators"),
    [
        (FEW // 4, ["aten::bucketize.Tensor", "aten::scatter_add_"]),
        (FEW // 4 + 1, ["aten::clamp", "aten::add_.Tensor", "aten::index_add_"]),
    ],
)
def test_a_call_runs_few_operators_and_reads_nothing_on_the_host(rows, operators):
    recorder, ids = LoadRecorder(2, 5), torch.randint(-1, 7, (rows, 4)).int()
    with Operators() as mode:
        recorder.record(1, ids)
    assert [name for name in mode.names if name not in VIEWS] == operators
    assert recorder.read().counts.tolist() == [[0] * 5, counted(ids)]
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):  # in which no value can be read
        LoadRecorder(2, 5).record(1, torch.empty(rows, 4, dtype=torch.int32))


def test_calls_of_several_layers_compile_into_one_graph():
    [lines] = ended([started("tests.dispatch.compiled_recorder", interpret=False)])
    assert len(lines) == 3
    for got, wanted in map(json.loads, lines):
        assert got == wanted


def test_one_launch_counts_what_the_operators_count_also_compiled():
    [lines] = ended([started("tests.dispatch.counted_ids")])
    assert len(lines) == 8
    for got, wanted in map(json.loads, lines):
        assert got == wanted


@pytest.mark.gpu
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # by inductor itself
def test_on_cuda_a_call_is_one_launch_eager_and_compiled():
    recorder, ids = LoadRecorder(1, 5, "cuda"), torch.randint(-1, 7, (300, 7), device="cuda").int()
    compiled = torch.compile(lambda ids: recorder.record(0, ids), fullgraph=True)
    for count in (compiled, lambda ids: recorder.record(0, ids)):
        before = recorder.read()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
            count(ids)
            torch.cuda.synchronize()
        assert recorder.read().since(before).counts.tolist() == [counted(ids)]
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 1, kernels


@pytest.mark.gpu
def test_replays_of_a_cuda_graph_count():
    recorder = LoadRecorder(1, 5, "cuda")
    ids = torch.tensor([[0, 4], [-1, 5]], device="cuda").int()
    recorder.record(0, ids)  # a first call may load kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorder.record(0, ids)
    ids.copy_(torch.tensor([[1, 1], [3, 9]]))
    before = recorder.read()
    for _ in range(4):
        graph.replay()
    assert recorder.read().since(before).counts.tolist() == [[0, 8, 0, 4, 0]]


def test_inference_mode_at_the_start_does_no_harm():
    with torch.inference_mode():
        recorder = LoadRecorder(1, 2)
    recorder.record(0, torch.tensor([[1, 0]]))
    with torch.inference_mode():
        recorder.record(0, torch.tensor([[1, 1]]))
    assert recorder.read().counts.tolist() == [[1, 3]]


LINE = re.compile(r'(\w+)\{layer="(\d+)",expert="(\d+)"((?:,\w+="(?:[^"\\\n]|\\[\\"n])*")*)\} (\d+)')


def test_prometheus_reads_the_counts_of_each_layer_and_expert():
    counts = torch.tensor([[3, 0, 2**40], [1, 7, 0]])
    text = ExpertLoad(counts).prometheus({"rank": "1", "model": 'a "b"\\c\nd'})
    first, second, *lines = text.splitlines()
    assert first.startswith("# HELP moesaic_expert_tokens_total ")
    assert second == "# TYPE moesaic_expert_tokens_total counter"
    assert text.endswith("\n")
    found = [LINE.fullmatch(line).groups() for line in lines]
    assert {(int(layer), int(expert)): int(value) for _, layer, expert, _, value in found} == {
        (layer, expert): int(counts[layer, expert]) for layer in range(2) for expert in range(3)
    }
    assert {name for name, *_ in found} == {"moesaic_expert_tokens_total"}
    assert {labels for _, _, _, labels, _ in found} == {r',rank="1",model="a \"b\"\\c\nd"'}


def test_numbers_are_labels_and_placements_come_one_after_another():
    load = ExpertLoad(torch.tensor([[3, 0]]))
    assert load.prometheus({"rank": 0}) == load.prometheus({"rank": "0"})
    given = [Placement.contiguous(2, 2)]
    assert load.json(each for each in given) == load.json(given)


@pytest.mark.parametrize("name", ["layer", "expert", "", "1st", "a-b", "ä", "__name__"])
def test_labels_that_prometheus_would_refuse_are_refused(name):
    with pytest.raises(DispatchError, match=f"a label is called {name!r}"):
        ExpertLoad(torch.zeros(1, 1, dtype=torch.int64)).prometheus({name: "x"})


def test_the_json_is_what_balance_reads(tmp_path):
    from moesaic.cli.balance_load import read_load  # noqa: PLC0415 - typer is no part of the other tests

    counts = torch.tensor([[3, 0, 9], [1, 7, 0]])
    placements = [Placement(3, ((0, 1), (2,))), Placement(3, ((2, 0), (1,)))]
    for given in (None, placements):
        (tmp_path / "load.json").write_text(ExpertLoad(counts).json(given), encoding="utf-8")
        load, current = read_load(tmp_path / "load.json")
        assert torch.equal(load, counts.double())
        assert current == (None if given is None else tuple(given))
        assert len(balance(load, 3, 2, current=current)) == 2
    assert set(json.loads(ExpertLoad(counts).json())) == {"load"}


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_is_refused():
    recorder, ids = LoadRecorder(2, 5), torch.tensor([[0]])
    (alone,) = ranks_in_threads(1)
    for make, words in (
        (lambda: LoadRecorder(0, 5), "num_layers is 0"),
        (lambda: LoadRecorder(2, 2.0), "num_experts is 2.0"),
        (lambda: recorder.record(2, ids), "layer 2 of 2"),
        (lambda: recorder.record(-1, ids), "layer -1 of 2"),
        (lambda: recorder.record(0, ids.short()), "the ids are torch.int16, but a recorder counts torch.int32"),
        (lambda: recorder.record(0, ids.to("meta")), r"the ids are on meta, but LoadRecorder\(2, 5, 'cpu'\) counts"),
        (lambda: Recorded(Local(), recorder, 2), "Recorded.layer is 2, but the recorder has 2"),
        (lambda: Recorded("Local()", recorder, 0), "Recorded.dispatcher is 'Local"),
        (lambda: Recorded(Local(), None, 0), "Recorded.recorder is None"),
        (lambda: Recorded(Local(), recorder, 0).num_experts(4), "counts 5 experts, but Local.* reaches 4"),
        (lambda: recorder.record(1.0, ids), "record.layer is 1.0, but it needs a whole number"),
        (lambda: recorder.record("0", ids), "record.layer is '0', but"),
        (lambda: recorder.record(True, ids), "record.layer is True, but"),
        (lambda: recorder.record(0, [[1]]), r"record.topk_ids is \[\[1\]\], but it needs a Tensor"),
        (lambda: recorder.read_all(None), "read_all.ranks is None"),
        (lambda: LoadRecorder(1, 2, "nope"), "LoadRecorder.device is 'nope', which torch does not reach here"),
        (lambda: ExpertLoad([[1]]), r"ExpertLoad.counts is \[\[1\]\]"),
        (lambda: recorder.read().since(None), "since.before is None"),
        (lambda: ExpertLoad(ids).since(ExpertLoad(ids + 2)), "shrank by up to 2 tokens .* an earlier reading"),
        (lambda: recorder.read().json(Placement.contiguous(5, 2)), "json.placements is Placement"),
        (lambda: recorder.read().json([None]), "json.placement is None"),
        (lambda: recorder.read().prometheus(["rank"]), "prometheus.labels is"),
        (lambda: ExpertLoad(torch.zeros(2)), r"the counts are torch.float32 of shape \(2,\)"),
        (lambda: recorder.read().since(LoadRecorder(1, 5).read()), "give a reading of the same recorder"),
        (lambda: recorder.read().json([Placement.contiguous(5, 2)]), "give one a layer"),
        (lambda: Recorded(AllToAll(alone, Placement.contiguous(4, 1)), recorder, 0).num_experts(4), "reaches 4"),
    ):
        with pytest.raises(DispatchError, match=words):
            make()


def test_a_recorder_elsewhere_than_the_tokens_of_ranks_is_found_before_any_call():
    """Or the other ranks would wait for the results of a call that this one has given up."""
    own, _ = ranks_in_threads(2, timeout=0.5)
    dispatcher, ids = AllToAll(own, Placement.contiguous(4, 2)), torch.tensor([[0, 3]]).int()
    with pytest.raises(DispatchError, match=r"'meta'\) counts on meta, but the tokens of Ranks.* are on cpu: make it"):
        Recorded(dispatcher, LoadRecorder(1, 4, "meta"), 0).dispatch(torch.ones(1, 3), Routing(ids, torch.ones(1, 2)))


def test_recorders_within_recorders_are_looked_through():
    own, _ = ranks_in_threads(2, timeout=0.5)
    inner = Recorded(AllToAll(own, Placement.contiguous(4, 2)), LoadRecorder(1, 4), 0)
    with pytest.raises(DispatchError, match=r"'meta'\) counts on meta, but the tokens of Ranks.* are on cpu: make it"):
        Recorded(inner, LoadRecorder(1, 4, "meta"), 0)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([(2, 4), (4, 2)], "layers of the recorder: 2 on rank 0, but 4 on rank 1; and in experts: 4 on rank 0, but 2"),
        ([(1, 4), (2, 4)], "layers of the recorder: 1 on rank 0, but 2 on rank 1$"),
    ],
)
def test_recorders_of_other_sizes_are_not_added_up(sizes, words):
    def work(own):
        with pytest.raises(DispatchError, match="LoadRecorder.read_all: the ranks of a layer differ in " + words):
            LoadRecorder(*sizes[own.rank]).read_all(own)

    in_threads(work, ranks_in_threads(2, timeout=20.0))


@pytest.mark.parametrize(
    ("recorders", "layers", "words"),
    [
        ([(2, 4), (2, 4)], (0, 1), "recorded: layer 0 of 2 with 4 experts on rank 0, but layer 1 of 2 with 4 experts"),
        ([(2, 4), (3, 4)], (1, 1), "recorded: layer 1 of 2 with 4 experts on rank 0, but layer 1 of 3 with 4 experts"),
        ([(2, 4), (2, 5)], (1, 1), "recorded: layer 1 of 2 with 4 experts on rank 0, but layer 1 of 2 with 5 experts"),
    ],
)
def test_ranks_that_record_otherwise_are_told_when_a_layer_is_built(recorders, layers, words):
    def build(own):
        made, placement = LoadRecorder(*recorders[own.rank]), Placement.contiguous(4, 2)
        recorded = Recorded(AllToAll(own, placement), made, layers[own.rank])
        with pytest.raises(DispatchError, match=words):
            recorded.agree(2, {})
        with pytest.raises(DispatchError, match=r"recorded: .*and layer"):
            Recorded(recorded, LoadRecorder(1, 4), 0).agree(2, {})

    in_threads(build, ranks_in_threads(2, timeout=20.0))


def test_ranks_whose_layers_are_recorded_are_compared_too():
    placement = Placement.contiguous(4, 2)

    def build(own):
        recorded = Recorded(AllToAll(own, placement), LoadRecorder(1, 4), 0)
        with pytest.raises(DispatchError, match="the ranks of a layer differ in words: 0 on rank 0, but 1 on rank 1"):
            recorded.agree(2, {"words": str(own.rank)})
        with pytest.raises(DispatchError, match="local experts: as placed on rank 0, but 3 instead of the 2 placed"):
            recorded.agree(2 + own.rank, {})

    in_threads(build, ranks_in_threads(2, timeout=20.0))


def test_routing_is_not_changed():
    ids = torch.tensor([[0, 9], [-3, 1]]).int()
    routing, kept = Routing(ids, torch.ones(2, 2)), ids.clone()
    Recorded(Local(), LoadRecorder(1, 5), 0).dispatch(torch.zeros(2, 3), routing)
    assert torch.equal(routing.topk_ids, kept)
