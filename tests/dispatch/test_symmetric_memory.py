"""SymmetricMemory without a GPU: its kernels in Triton's interpreter, in one process and in several that wait for each
other; compiled for sm_90; and what it refuses."""

import json
import threading
from contextlib import nullcontext

import pytest
import torch
import torch.distributed._symmetric_memory as symmetric

pytest.importorskip("triton")
from moesaic.dispatch.arrangement import AsArrived
from moesaic.dispatch.by_expert import SlabPerExpert
from moesaic.dispatch.exchanges import row_bytes
from moesaic.dispatch.open_window import open_window
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.symmetric_memory import SymmetricMemory
from moesaic.dispatch.threads import in_threads, ranks_in_threads
from moesaic.errors import BatchError, DispatchError, FleetError, GradientError
from moesaic.kernels.exchange_plan import MOST_ROWS, OF_MANY, REGISTERS, STEP_BYTES, STRIPES, ExchangePlan
from moesaic.kernels.peer_flags import ALL_STEPS
from moesaic.kernels.peer_window import row_starts, window_bytes
from tests.dispatch.layers import calls
from tests.dispatch.plain_windows import in_one_process
from tests.dispatch.programs import ended, started
from tests.dispatch.some_trials import NAMES

OPEN = "moesaic.dispatch.open_window"


def test_fleets_that_one_process_plays():
    [[checks, *others]] = ended([started("tests.dispatch.symmetric_process")])
    assert set(checks.split()) == NAMES
    assert others[:4] == ["layers equal one rank", "same bits", "one rank ahead", "one rank ahead with sums"]
    assert others[4:6] == ["same bits by every plan", "counted once"]
    for unheard in others[6:8]:  # one that did not come, and one that stopped half way
        assert "a rank was not heard from: it died, failed, or is slower than Ranks.timeout" in unheard
    assert others[8:] == ["same bits as codes"]


@pytest.mark.dist
def test_processes_that_share_windows_wait_for_each_other(tmp_path):
    size = 2
    given = [("tests.dispatch.symmetric_process", str(rank), str(size), str(tmp_path)) for rank in range(size)]
    for checks, epochs in ended([started(*each) for each in given]):
        assert set(checks.split()) == NAMES
        [number] = json.loads(epochs)  # all programs count alike
        assert number > 40


@pytest.mark.parametrize("oldest", [False, True], ids=["installed triton", "oldest triton"])
def test_rows_travel_16_bytes_at_a_time_and_flags_at_system_scope(oldest):
    [lines] = ended([started("tests.kernels.compiled_exchanges", interpret=False, oldest=oldest)])
    compiled = list(map(json.loads, lines))
    assert all(fact["triton"].startswith("3.6.") == oldest for fact in compiled)
    count = compiled.pop()
    assert (count["kernel"], count["counted"], count["waits_for_sums"], count["spills"]) == ("count", 4, 0, 0)
    kernels = [fact["kernel"] for fact in compiled]
    assert kernels == [*["exchange_tokens"] * 4, *["exchange_sums"] * 2] * 2
    assert [fact["to_codes"] > 0 for fact in compiled] == [False, False, True, True, False, False] * 2  # one for two
    assert [fact["counted"] for fact in compiled] == [0, 1, 0, 1, 0, 0] * 2
    assert {fact["waits_for_sums"] for fact in compiled} == {3}  # flags: nothing of what was counted
    for fact in compiled:
        assert fact["narrow_row_accesses"] == 0, fact
        assert fact["released"] == 1, fact
        assert fact["acquired"] == 2, fact  # once before the loop and once in it
        assert fact["spills"] == 0, fact


def test_a_window_holds_what_is_documented():
    assert row_bytes(2048, 8, torch.bfloat16, AsArrived()) == 2 * 2048 + 64
    assert row_bytes(2048, 8, torch.bfloat16, SlabPerExpert()) == 4 * 2048
    plan = ExchangePlan.of(4096, 132, 2)
    assert round(window_bytes(2, 4096, row_bytes(2048, 8, torch.bfloat16, AsArrived()), plan) / 1e6) == 68
    assert round(window_bytes(8, 4096, row_bytes(7168, 8, torch.bfloat16, AsArrived()), plan) / 1e6) == 944


@pytest.mark.parametrize("multiprocessors", [16, 78, 132])
@pytest.mark.parametrize("tokens", [1, 7, 64, 527, 529, 4096, 1 << 20])
@pytest.mark.parametrize("row_bytes", [16, 4160, 1 << 20])
def test_a_plan_covers_its_tokens_in_steps_that_a_flag_can_count(tokens, multiprocessors, row_bytes):
    plan = ExchangePlan.of(tokens, multiprocessors, 2)
    assert plan.stripes == min(tokens, STRIPES * multiprocessors)
    assert plan.programs == 2 * plan.stripes
    assert all(65536 // (registers * 32 * plan.warps) > STRIPES for registers in (REGISTERS, OF_MANY))  # who may send
    rows = plan.rows_of(row_bytes)
    assert 1 <= rows <= min(MOST_ROWS, -(-tokens // plan.stripes))
    assert (rows - 1) * row_bytes < STEP_BYTES
    assert -(-tokens // (plan.stripes * rows)) < ALL_STEPS.value


def test_the_plan_of_two_h200_is_the_one_that_was_measured():
    plan = ExchangePlan.of(4096, 132, 2)
    assert (plan.stripes, plan.warps, plan.elements, plan.registers) == (528, 4, 2048, 80)
    there = {(h, c): row_starts(h, 8, 2, coded=c)[-1] for h in (2048, 7168) for c in (False, True)}
    assert {of: plan.rows_of(size) for of, size in there.items()} == {
        (2048, False): 4,
        (7168, False): 2,
        (2048, True): 8,
        (7168, True): 3,
    }
    assert [plan.rows_of(2 * hidden) for hidden in (2048, 7168)] == [4, 2]
    assert ExchangePlan.of(64, 132, 2).programs == 128


def opened(ranks, **sizes):
    """The error of every rank."""

    def run(own):
        with pytest.raises((FleetError, DispatchError)) as fault:
            open_window(own, **{"max_tokens": 8, "hidden_size": 16, "top_k": 2, **sizes})
        return fault.value

    return in_threads(run, ranks)


def assert_told(found, words):
    """All ranks have the same error, and none has a window."""
    assert {fault.__class__ for fault in found} == {FleetError}
    assert {str(fault) for fault in found} == {f"open_window, {words}; no rank has a window"}


def test_without_cuda_all_ranks_get_one_reason():
    found = opened(ranks_in_threads(2))
    said = (
        "DispatchError: its tensors are on cpu, but it needs a CUDA device: PaddedAllToAll runs over any process group"
    )
    assert_told(found, f"what each rank has: ranks 0, 1: {said}")


def test_what_one_rank_lacks_is_an_error_on_all(monkeypatch):
    monkeypatch.setattr(f"{OPEN}.reasons_against", lambda ranks: ("no NVLink", "none at all") if ranks.rank else ())
    said = "DispatchError: no NVLink; none at all"
    assert_told(opened(ranks_in_threads(3)), f"what each rank has: ranks 1, 2: {said}")
    one, other = opened(ranks_in_threads(2), top_k=0)
    assert str(one) == str(other)
    assert str(one).startswith(
        "open_window, what each rank has: ranks 0, 1: DispatchError: open_window.top_k is 0, but it "
    )


@pytest.mark.parametrize(
    "fault", [OSError("libcuda.so.1: no such file"), RuntimeError("CUDA error: unknown")], ids=repr
)
def test_a_rank_that_cannot_even_look_is_an_error_on_all(fault, monkeypatch):
    def look(ranks):
        if ranks.rank:
            raise fault
        return ()

    monkeypatch.setattr(f"{OPEN}.reasons_against", look)
    assert_told(opened(ranks_in_threads(2)), f"what each rank has: rank 1: {fault.__class__.__name__}: {fault}")


class Driver:
    """torch's symmetric memory on a CPU; `fails` is the call that raises on rank 1. `called`: (call, rank)."""

    def __init__(self, monkeypatch, fails):
        self.fails, self.called, self.own = fails, [], threading.local()
        monkeypatch.setattr(f"{OPEN}.reasons_against", self.look)
        monkeypatch.setattr(symmetric, "empty", self.empty)
        monkeypatch.setattr(symmetric, "rendezvous", self.rendezvous)
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def look(self, ranks):
        self.own.rank = ranks.rank
        return ()

    def empty(self, size, dtype, device):
        self._call("empty")
        return torch.empty(size, dtype=dtype, device=device)

    def rendezvous(self, memory, group):
        self._call("rendezvous")

    def _call(self, name):
        self.called.append((name, self.own.rank))
        if name == self.fails and self.own.rank == 1:
            raise torch.OutOfMemoryError("nothing is left")


def test_a_rank_without_memory_is_known_before_any_waits_for_the_memory_of_the_others(monkeypatch):
    driver = Driver(monkeypatch, "empty")
    assert_told(opened(ranks_in_threads(2)), "room for the rows: rank 1: OutOfMemoryError: nothing is left")
    assert sorted(driver.called) == [("empty", 0), ("empty", 1)]


def test_memory_that_one_rank_cannot_map_is_an_error_on_all(monkeypatch):
    Driver(monkeypatch, "rendezvous")
    assert_told(opened(ranks_in_threads(2)), "mapping the rows of others: rank 1: OutOfMemoryError: nothing is left")


def test_ranks_on_other_hosts_or_with_other_sizes_are_told(monkeypatch):
    monkeypatch.setattr(f"{OPEN}.reasons_against", lambda ranks: ())
    names = iter(("here", "there"))
    monkeypatch.setattr(f"{OPEN}.host", lambda: next(names))
    one, other = opened(ranks_in_threads(2))
    assert str(one) == str(other)
    assert isinstance(one, DispatchError)
    assert "open_window: the ranks of a layer differ in host: " in str(one)
    assert "here on rank" in str(one)


@pytest.fixture
def dispatcher():
    """One of a single rank, whose window takes 4 tokens of 24 columns in float32."""
    (ranks,) = ranks_in_threads(1)
    [window] = in_one_process(1, 4, row_bytes(24, 3, torch.float32, AsArrived()))
    return SymmetricMemory(ranks, Placement.contiguous(5, 1), window)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            lambda hidden, routing: (hidden[:5], routing),
            DispatchError,
            "rank 0 hands in 5 tokens of 128 bytes, but the",
        ),
        (
            lambda hidden, routing: (hidden.repeat(1, 2), routing),
            DispatchError,
            "tokens of 224 bytes, but the window t",
        ),
        (
            lambda hidden, routing: (hidden.double(), routing),
            DispatchError,
            "hidden_states is torch.float64 and topk_w",
        ),
        (lambda hidden, routing: (hidden[:3], routing), BatchError, "hidden_states has 3 rows, but the routing is for"),
        (lambda hidden, routing: (hidden.to("meta"), routing), BatchError, "hidden_states is on meta and the routing"),
    ],
)
def test_tokens_that_do_not_fit_are_refused_before_anything_is_sent(dispatcher, change, error, words):
    [(hidden, routing)] = calls([5], num_experts=5)
    given = change(hidden, routing) if "rows" in words or "5 tokens" in words else change(*calls([4], num_experts=5)[0])
    with pytest.raises(error, match=words):
        dispatcher.dispatch(*given)
    assert not dispatcher.window.epochs.any()


def test_gradients_of_the_experts_are_refused_rather_than_lost(dispatcher):
    batch, receipt = dispatcher.arranged(dispatcher.token_exchange(*calls([4], num_experts=5)[0]))
    with pytest.raises(GradientError, match="the experts' rows require gradients"):
        dispatcher.combine(batch.rows.clone().requires_grad_(), receipt)
    assert not dispatcher.window.epochs.any()


@pytest.mark.usefixtures("unchecked")
def test_the_window_of_another_rank_is_refused():
    left, _ = ranks_in_threads(2)
    window = in_one_process(2, 4, 128)[1]
    with pytest.raises(DispatchError, match=r"PeerWindow\(1 of 2 on cpu, .* is not one of Ranks\(0 of 2 on cpu"):
        SymmetricMemory(left, Placement.contiguous(5, 2), window)
    with pytest.raises(DispatchError, match=r"SymmetricMemory.window is None, but it needs a PeerWindow"):
        SymmetricMemory(left, Placement.contiguous(5, 2), None)


def test_ranks_with_other_windows_are_told_when_a_layer_is_built():
    windows = [in_one_process(2, most, 128)[rank] for rank, most in enumerate((4, 8))]
    given = [
        SymmetricMemory(ranks, Placement.contiguous(4, 2), window)
        for ranks, window in zip(ranks_in_threads(2), windows, strict=True)
    ]

    def run(own):
        with pytest.raises(DispatchError, match="differ in window: 4 tokens of 128 bytes on rank 0, but 8 tokens of"):
            own.agree(2, {})

    in_threads(run, given)
