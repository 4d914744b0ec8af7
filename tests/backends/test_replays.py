"""A call that is launched again: on the addresses of its own tensors, and only where nothing else would happen."""

import gc
import threading
import weakref

import pytest
import torch

pytest.importorskip("triton")

from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from triton import knobs

from moesaic import Problem, Routing, SiTU, SwiGLU
from moesaic.backends import by_size, replays, triton_streamed
from moesaic.backends.chosen_weights import ChosenWeights
from moesaic.backends.device_weights import DeviceWeights
from moesaic.backends.replays import ATTEMPTS, Replays, kind_of
from moesaic.conformance.checks.fresh import Filled
from moesaic.errors import LaunchError
from moesaic.kernels import replayed_launches
from moesaic.kernels.launch_recording import recorded_calls
from moesaic.kernels.replayed_launches import Replay
from moesaic.tuning import Always, Product, Streamed, Task, Vector
from moesaic.tuning.choices import FORMS
from tests.backends import example
from tests.backends.launch_fakes import Fake, faked, flat, same_launches, storage
from tests.tuning.examples import H200

VECTOR = Vector((2, 64, 1, 4), (8, 64, 3, 4))
CHOICES = {
    "vector": VECTOR,
    "streamed": Streamed(16, 0, (16, 128, 3), (32, 128, 3), warps=2, swap=False, tma=False),
    "streamed by TMA": Streamed(32, 16, (64, 64, 4), (128, 64, 4), warps=4, swap=True, tma=True),
    "products, gathered": Product(gather=True),
    "products, copied": Product(gather=False),
    "products, summed": Product(gather=False, blocks=4),
}
each_form = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
PROBLEMS = {
    "plain": {},
    "biased": {"bias": True},
    "scaled": {"weight_on_input": True},
    "per expert": {"activation": SwiGLU(limit=(7.0, 1.0, 2.0, 3.0, 4.0))},
    "not swiglu": {"activation": SiTU()},
}


def layer(choice, **changes):
    """(problem, prepared weights) of a layer that computes by `choice`; its replays are of calls on a CPU."""
    problem = Problem(**{**SIZES, "activation": SwiGLU(), "dtype": torch.bfloat16, **changes})
    task = Task("hopper_grouped", FORMS, problem, H200)
    prepared = ChosenWeights(DeviceWeights.of(example.weights(problem), problem), Always(choice).chooser(task))
    object.__setattr__(prepared, "replays", Replays("cpu"))
    return problem, prepared


SIZES = {"num_experts": 5, "top_k": 3, "hidden_size": 128, "intermediate_size": 64}


def tokens(problem, count, seed=0):
    """Hidden states and a routing that nobody else has."""
    return example.rows(problem, count, seed), example.routing(problem, count, seed)


@pytest.mark.parametrize("changes", PROBLEMS.values(), ids=PROBLEMS)
@each_form
@pytest.mark.parametrize("count", [1, 33, 1500])
def test_a_replay_launches_what_the_call_itself_does(monkeypatch, choice, changes, count):
    """33 tokens are ordered in one launch, 1500 in three."""
    noted, through = faked(monkeypatch)
    problem, prepared = layer(choice, **changes)
    for seed in range(2):
        by_size.compute_tokens(*tokens(problem, count, seed), prepared, problem)
    assert isinstance(prepared.replays._known[count, 3], Replay)
    same_weights = ChosenWeights(prepared.weights, prepared.chooser)
    object.__setattr__(same_weights, "replays", Replays("nowhere"))
    compiled = len(through)
    for seed in (5, 6):
        hidden, routing = tokens(problem, count, seed)
        noted.clear()
        got = by_size.compute_tokens(hidden, routing, prepared, problem)
        replayed = noted[:]
        noted.clear()
        expected = by_size.compute_tokens(hidden, routing, same_weights, problem)
        inputs = (hidden, routing.topk_ids, routing.topk_weights)
        assert len(replayed) >= 2
        same_launches(replayed, noted, inputs, prepared.weights.tensors, (got, expected))
        assert (got.shape, got.dtype, got.is_contiguous()) == (hidden.shape, hidden.dtype, True)
        assert all(stream == 7 for _, _, stream, _ in replayed)
    assert len(through) == compiled


def test_every_number_of_tokens_and_slots_has_a_replay_of_its_own(monkeypatch):
    noted, _ = faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    for count in (1, 2, 1, 2, 1, 2):
        by_size.compute_tokens(*tokens(problem, count), prepared, problem)
    hidden, routing = tokens(problem, 2)
    fewer = Routing(routing.topk_ids[:, :1].contiguous(), routing.topk_weights[:, :1].contiguous())
    for _ in range(3):
        by_size.compute_tokens(hidden, fewer, prepared, problem)
    assert set(prepared.replays._known) == {(1, 3), (2, 3), (2, 1)}
    assert {launch[1] for launch in noted if launch[0] == "_vector_down"} == {(1, 16, 1), (2, 16, 1)}


def differing(problem, how):
    """Inputs of which a call is another: copied, converted, or for a kernel that was compiled for any address."""
    hidden, routing = tokens(problem, 4)
    match how:
        case "strided rows":
            return torch.cat([hidden, hidden], 1)[:, : problem.hidden_size], routing
        case "moved rows":
            return torch.cat([hidden.flatten()[:1], hidden.flatten()])[1:].view_as(hidden), routing
        case "strided ids":
            return hidden, Routing(routing.topk_ids.t().contiguous().t(), routing.topk_weights)
        case "strided weights":
            return hidden, Routing(routing.topk_ids, routing.topk_weights.t().contiguous().t())
        case "moved weights":
            return hidden, Routing(
                routing.topk_ids, torch.cat([torch.ones(1), routing.topk_weights.flatten()])[1:].view(4, 3)
            )
        case _:
            return hidden, Routing(routing.topk_ids, routing.topk_weights.double())


@pytest.mark.parametrize(
    "how", ["strided rows", "moved rows", "strided ids", "strided weights", "moved weights", "weights in float64"]
)
def test_inputs_of_another_kind_are_computed_as_ever(monkeypatch, how):
    noted, _ = faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    for _ in range(3):
        by_size.compute_tokens(*tokens(problem, 4), prepared, problem)
    hidden, routing = differing(problem, how)
    assert kind_of((hidden, routing.topk_ids, routing.topk_weights)) is None
    for _ in range(2):
        noted.clear()
        by_size.compute_tokens(hidden, routing, prepared, problem)
    given = noted[0][3]
    assert all(isinstance(argument, torch.Tensor) for argument in (given[0], *given[4:7]))
    assert set(prepared.replays._known) == {(4, 3)}


def test_a_hook_around_launches_is_told_of_all_of_them(monkeypatch):
    noted, _ = faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    for _ in range(3):
        by_size.compute_tokens(*tokens(problem, 4), prepared, problem)
    chain = knobs.HookChain()
    chain.add(print)
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", chain)
    noted.clear()
    by_size.compute_tokens(*tokens(problem, 4), prepared, problem)
    assert [launch[2] for launch in noted] == ["watched", "watched"]


@pytest.mark.parametrize("more", [torch.zeros_like, torch.clone, lambda x: x + 1, lambda x: x.double()], ids=range(4))
def test_a_call_in_which_anything_else_happens_is_never_replayed(monkeypatch, more):
    noted, _ = faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    vector = triton_streamed.vector_tokens
    monkeypatch.setattr(by_size, "vector_tokens", lambda x, *rest: (more(x), vector(x, *rest))[1])
    for _ in range(ATTEMPTS + 3):
        noted.clear()
        by_size.compute_tokens(*tokens(problem, 4), prepared, problem)
        assert all(isinstance(launch[3][0], torch.Tensor) for launch in noted)
    assert prepared.replays._known == {(4, 3): ATTEMPTS}


def test_a_tensor_from_elsewhere_is_never_replayed(monkeypatch):
    """The memory of another call: nobody knows where it will be."""
    faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    vector, other = triton_streamed.vector_tokens, torch.ones(4, 3)

    def elsewhere(x, routing, *rest):
        return vector(x, Routing(routing.topk_ids, other), *rest)

    monkeypatch.setattr(by_size, "vector_tokens", elsewhere)
    for _ in range(ATTEMPTS + 1):
        by_size.compute_tokens(*tokens(problem, 4), prepared, problem)
    assert prepared.replays._known == {(4, 3): ATTEMPTS}


def test_inputs_that_lie_in_one_another_are_never_recorded(monkeypatch):
    faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    hidden, routing = tokens(problem, 4)
    ids = routing.topk_weights.view(torch.int32)
    for _ in range(ATTEMPTS + 1):
        by_size.compute_tokens(hidden, Routing(ids, routing.topk_weights), prepared, problem)
    assert prepared.replays._known == {(4, 3): ATTEMPTS}


def test_only_so_many_kinds_are_kept(monkeypatch):
    faked(monkeypatch)
    monkeypatch.setattr(replays, "MOST", 2)
    problem, prepared = layer(VECTOR)
    for count in (1, 2, 1, 2, 1, 2):
        by_size.compute_tokens(*tokens(problem, count), prepared, problem)
    assert [value.__class__ for value in prepared.replays._known.values()] == [Replay, Replay]
    by_size.compute_tokens(*tokens(problem, 3), prepared, problem)
    assert prepared.replays._known == {(3, 3): 1}


def test_a_call_that_takes_much_memory_is_computed_as_ever(monkeypatch):
    faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    inner = 4 * 3 * 64 * 2  # bytes of the rows between the products
    monkeypatch.setattr(replayed_launches, "MOST_BYTES", inner - 1)
    for _ in range(ATTEMPTS + 1):
        by_size.compute_tokens(*tokens(problem, 4), prepared, problem)
    assert prepared.replays._known == {(4, 3): ATTEMPTS}


def test_a_number_of_tokens_that_comes_once_is_not_recorded(monkeypatch):
    faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    for count in (1, 2, 3):
        by_size.compute_tokens(*tokens(problem, count), prepared, problem)
    assert prepared.replays._known == {(1, 3): 1, (2, 3): 1, (3, 3): 1}


def test_a_launch_that_fails_in_a_replay_has_all_its_names(monkeypatch):
    faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    failing = []

    def run(self, *_):
        if failing and self.name == "_vector_down":
            raise RuntimeError("Triton Error [CUDA]: invalid argument")

    monkeypatch.setattr(Fake, "run", run)
    for _ in range(3):
        by_size.compute_tokens(*tokens(problem, 4), prepared, problem)
    failing.append(True)
    with pytest.raises(LaunchError) as raised:
        by_size.compute_tokens(*tokens(problem, 4), prepared, problem)
    for part in (
        "kernel moesaic.kernels.vector_experts._vector_down",
        repr(VECTOR),
        repr(problem),
        "COLUMNS=8, BLOCK=64",
    ):
        assert part in str(raised.value)
    failing.clear()
    by_size.compute_tokens(*tokens(problem, 4), prepared, problem)


def test_recording_ends_with_the_call_also_where_it_raises(monkeypatch):
    faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    with pytest.raises(ZeroDivisionError), recorded_calls():
        raise ZeroDivisionError
    with recorded_calls() as calls:
        x = torch.empty(4).view(2, 2)[1]
    assert (calls.other, len(calls.allocated)) == ("", 1)
    by_size.compute_tokens(*tokens(problem, 4), prepared, problem)
    assert (x.shape, calls.launches) == ((2,), [])


@each_form
def test_weights_that_hold_the_hidden_states_are_never_taken_for_them(monkeypatch, choice):
    """They are one address, of which the next call moves a part only."""
    faked(monkeypatch)
    problem, prepared = layer(choice)
    _, routing = tokens(problem, 4)
    for _ in range(ATTEMPTS + 1):
        by_size.compute_tokens(prepared.weights.gate_up[0, :4], routing, prepared, problem)
    assert prepared.replays._known == {(4, 3): ATTEMPTS}


def test_an_output_in_more_memory_than_its_own_is_never_replayed(monkeypatch):
    """A kernel may write behind it, and a replay allocates no more than the output."""
    faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    monkeypatch.setattr(torch, "empty_like", lambda x, **_: x.new_empty(len(x) + 1, x.shape[1])[: len(x)])
    for _ in range(ATTEMPTS + 1):
        by_size.compute_tokens(*tokens(problem, 4), prepared, problem)
    assert prepared.replays._known == {(4, 3): ATTEMPTS}


@each_form
def test_a_mode_of_torch_is_told_of_every_allocation(monkeypatch, choice):
    """The kit fills them: in a replay one would be bytes, which hold no number of another dtype."""
    noted, _ = faked(monkeypatch)
    problem, prepared = layer(choice)
    for _ in range(3):
        by_size.compute_tokens(*tokens(problem, 40), prepared, problem)
    noted.clear()
    hidden, routing = tokens(problem, 40)
    with Filled(1e4):
        by_size.compute_tokens(hidden, routing, prepared, problem)
    given = {storage(hidden), storage(routing.topk_ids), storage(routing.topk_weights)}
    given |= {storage(tensor) for tensor in prepared.weights.tensors}
    pairs = [pair for launch in noted for argument in launch[3] for pair in flat(argument, argument)]
    own = [tensor for _, tensor in pairs if storage(tensor) not in given]
    assert len({storage(tensor) for tensor in own}) >= 2
    for tensor in own:
        held = 1e4 if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
        assert (tensor == torch.tensor(held, dtype=tensor.dtype)).all()


def test_a_call_that_a_mode_is_told_of_is_not_recorded(monkeypatch):
    faked(monkeypatch)
    problem, prepared = layer(VECTOR)
    for _ in range(3):
        with Filled(1e4):
            by_size.compute_tokens(*tokens(problem, 4), prepared, problem)
    assert prepared.replays._known == {}


def test_two_threads_that_record_at_once_leave_no_mode_behind():
    """Torch notes for the process whether there is a mode, and restores what the other thread had noted."""
    entered, other, left = threading.Event(), threading.Event(), threading.Event()

    def first():
        with recorded_calls():
            entered.set()
            assert other.wait(10)
        left.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(10)
    with recorded_calls() as calls:
        other.set()
        assert left.wait(10)
        torch.empty(3)
    thread.join()
    assert len(calls.allocated) == 1
    assert not is_in_torch_dispatch_mode()


@each_form
def test_a_replay_keeps_no_tensor_of_the_call_that_was_recorded(monkeypatch, choice):
    """And nothing waits for the collector of cycles, which memory in a pool of a CUDA graph could not."""
    noted, _ = faked(monkeypatch)
    problem, prepared = layer(choice)
    held = []

    def call():
        hidden, routing = tokens(problem, 40)
        out = by_size.compute_tokens(hidden, routing, prepared, problem)
        pairs = [pair for launch in noted for argument in launch[3] for pair in flat(argument, argument)]
        constants = {storage(tensor) for tensor in prepared.weights.tensors}
        seen = [tensor for _, tensor in pairs if storage(tensor) not in constants]
        held.extend(weakref.ref(tensor) for tensor in (hidden, routing.topk_ids, routing.topk_weights, out, *seen))
        noted.clear()

    gc.collect()
    gc.disable()
    try:
        call()
        call()
        assert isinstance(prepared.replays._known[40, 3], Replay)
        assert len(held) > 8
        assert all(each() is None for each in held)
    finally:
        gc.enable()
