"""A rebalance that fails on one rank: the same error on all, and every layer is what it was, bit for bit."""

import threading
import time

import pytest
import torch

from moesaic import Cpu, Local, MoE, Reason, ReasonCode, Reference, TorchGrouped, bind
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.threads import ranks_in_threads
from moesaic.errors import CollectiveError, DispatchError, FleetError
from moesaic.parallel import rebalance, rebalancing
from tests.dispatch.layers import Given, layer_problem
from tests.parallel.rank_layers import AFTER, BEFORE, build_all, errors, handed_in, run_all, same_bits, whole

UNCHANGED = "; no rank was changed, and the old placement serves on"


class Fleet:
    """Two ranks that serve, what they are made of, and what they answer."""

    def __init__(self, timeout=20.0, **fields):
        self.ranks, self.handed = ranks_in_threads(2, timeout=timeout), handed_in()
        self.layers = build_all(self.ranks, BEFORE, whole(), self.handed, **fields)
        self.parts = [(layer.dispatcher, layer.experts) for layer in self.layers]
        self.outputs = run_all(self.layers, self.handed)

    def assert_unchanged(self):
        for layer, (dispatcher, experts) in zip(self.layers, self.parts, strict=True):
            assert layer.dispatcher is dispatcher
            assert layer.experts is experts
        for got, wanted in zip(run_all(self.layers, self.handed), self.outputs, strict=True):
            assert same_bits(got, wanted)

    def errors(self, placements=(AFTER, AFTER), **options):
        """Of a rebalance in which each rank is given its own placement, and its own of each option."""
        own = [{name: of[rank] for name, of in options.items()} for rank in range(2)]
        return errors(lambda layer, given, more: rebalance(layer, given, **more), self.layers, placements, own)


def assert_failed_alike(fleet, found, words):
    assert [str(fault) for fault in found] == [words + UNCHANGED] * 2
    assert {fault.__class__ for fault in found} == {FleetError}
    fleet.assert_unchanged()
    assert fleet.errors() == [None, None]  # and the next one is done
    assert all(layer.dispatcher.placement == AFTER for layer in fleet.layers)


@pytest.mark.parametrize("place", [0, 777, -1])
@pytest.mark.parametrize("step", [1, 3])
def test_a_corrupted_chunk(monkeypatch, place, step):
    fleet, move, spoilt = Fleet(), Ranks.point_to_point, []

    def corrupted(self, sent, got, name):
        move(self, sent, got, name)
        if got and self.rank == 1 and f"chunk {step} of" in name:
            tensor, _ = got[0]
            tensor[place] ^= 4  # one bit
            spoilt.append(name)

    with monkeypatch.context() as patched:
        patched.setattr(Ranks, "point_to_point", corrupted)
        found = fleet.errors(chunk_bytes=(3000, 3000))
    assert len(spoilt) == 1
    expert = {1: 2, 3: 0}[step]  # two chunks an expert, of 4608 bytes
    words = (
        f"rebalance, chunk {step} of 4: rank 1: DispatchError: bytes 0 to 3000 of expert {expert} are not those that "
        "rank 0 sent (their checksum differs)"
    )
    assert_failed_alike(fleet, found, words)


def test_chunks_that_change_places(monkeypatch):
    fleet, move, held = Fleet(), Ranks.point_to_point, []

    def swapped(self, sent, got, name):
        move(self, sent, got, name)
        if got and self.rank == 1:  # the first message again, with its own checksum, in the place of the third
            held.append(got[0][0].clone())
            if len(held) == 3:
                got[0][0].copy_(held[0])

    with monkeypatch.context() as patched:
        patched.setattr(Ranks, "point_to_point", swapped)
        found = fleet.errors(chunk_bytes=(1536, 1536))
    words = (
        "rebalance, chunk 3 of 6: rank 1: DispatchError: bytes 3072 to 4608 of expert 2 are not those that rank 0 "
        "sent (their checksum differs)"
    )
    assert_failed_alike(fleet, found, words)


def test_no_memory_for_the_new_weights_on_one_rank(monkeypatch):
    fleet, room = Fleet(), rebalancing.room_for

    def short(weights, num_experts):
        if num_experts == len(AFTER.experts[1]):
            raise MemoryError(f"no room for {num_experts}")
        return room(weights, num_experts)

    with monkeypatch.context() as patched:
        patched.setattr(rebalancing, "room_for", short)
        found = fleet.errors()
    assert_failed_alike(fleet, found, "rebalance, room for the new weights: rank 1: MemoryError: no room for 4")


def test_no_memory_to_prepare_them_on_one_rank(monkeypatch):
    fleet, prepare = Fleet(backends=(Cpu(),)), Cpu.prepare

    def short(self, weights, problem):
        if problem.num_experts == len(AFTER.experts[0]):
            raise torch.OutOfMemoryError("allocated all there is")
        return prepare(self, weights, problem)

    with monkeypatch.context() as patched:
        patched.setattr(Cpu, "prepare", short)
        found = fleet.errors()
    words = "rebalance, preparing the weights: rank 0: OutOfMemoryError: allocated all there is"
    assert_failed_alike(fleet, found, words)


def test_a_backend_that_one_rank_alone_can_run_is_an_error_on_all(monkeypatch):
    """Or they would switch to layers that compute otherwise."""
    fleet, judge = Fleet(backends=(Cpu(), Reference())), Cpu.reasons_against

    def reasons_against(self, problem, machine):
        found = judge(self, problem, machine)
        if problem.num_experts == len(AFTER.experts[1]):
            return (*found, Reason(ReasonCode.NUM_EXPERTS, "another number", str(problem.num_experts)))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Cpu, "reasons_against", reasons_against)
        found = fleet.errors()
    words = "rebalance: the ranks of a layer differ in backend: cpu on rank 0, but reference on rank 1"
    assert [str(fault) for fault in found] == [words] * 2
    fleet.assert_unchanged()
    assert fleet.errors() == [None, None]


def test_a_callers_progress_that_raises_on_one_rank():
    fleet = Fleet()

    def stop(done, of):
        if done == 2:
            raise ValueError(f"enough after {done} of {of}")

    found = fleet.errors(chunk_bytes=(3000, 3000), progress=(lambda done, of: None, stop))
    words = "rebalance, the caller's progress after chunk 2 of 4: rank 1: ValueError: enough after 2 of 4"
    assert isinstance(found[1].__cause__, ValueError)
    assert_failed_alike(fleet, found, words)


def test_an_interrupt_ends_its_own_rank_and_the_others_are_told():
    fleet = Fleet()

    def interrupted(done, of):
        raise KeyboardInterrupt

    options = [{"progress": lambda done, of: None}, {"progress": interrupted}]
    found = [None, None]

    def run(rank):
        try:
            rebalance(fleet.layers[rank], AFTER, **options[rank])
        except BaseException as fault:  # noqa: BLE001 - the interrupt is what is asked for
            found[rank] = fault

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(found[1], KeyboardInterrupt)
    assert "rank 1: KeyboardInterrupt: " in str(found[0])
    fleet.assert_unchanged()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"placements": (AFTER, "even")}, "rank 1: DispatchError: rebalance.placement is 'even'"),
        (
            {"placements": (Placement.contiguous(6, 2), AFTER)},
            "rank 0: DispatchError: the new placement is for 6 experts on 2 ranks, but the layer has 5 on 2",
        ),
        (
            {"placements": (Placement.contiguous(5, 3),) * 2},
            "ranks 0, 1: DispatchError: .* 5 experts on 3 ranks, but the layer has 5 on 2: place as many on as many",
        ),
        ({"chunk_bytes": (7, 8)}, "rank 0: DispatchError: rebalance.chunk_bytes is 7, but"),
        ({"ranks": (None, "all")}, "rank 1: DispatchError: rebalance.ranks is 'all', but it needs a Ranks"),
        ({"progress": (5, 5)}, "ranks 0, 1: DispatchError: rebalance.progress is 5, but it needs a function"),
    ],
)
def test_an_argument_that_is_wrong_on_one_rank(given, words):
    fleet = Fleet()
    for fault in fleet.errors(**given):
        with pytest.raises(FleetError, match=f"rebalance, what is asked for: {words}.*{UNCHANGED}"):
            raise fault
    fleet.assert_unchanged()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"placements": (AFTER, BEFORE)}, "new placement: .* on rank 0, but .* on rank 1"),
        ({"chunk_bytes": (64, 72)}, "chunk_bytes: 64 on rank 0, but 72 on rank 1"),
        ({"progress": (None, lambda done, of: None)}, "progress: False on rank 0, but True on rank 1"),
    ],
)
def test_a_rank_that_is_told_otherwise(given, words):
    fleet = Fleet()
    found = fleet.errors(**given)
    assert str(found[0]) == str(found[1])
    with pytest.raises(DispatchError, match=f"rebalance: the ranks of a layer differ in {words}"):
        raise found[0]
    fleet.assert_unchanged()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", ["None", "Local"])
def test_a_layer_that_is_wrong_on_one_rank_is_told_to_the_group_that_was_given(wrong):
    fleet, others = Fleet(), ranks_in_threads(2, timeout=20.0)
    local = MoE(Given(None), Local(), bind(layer_problem(), whole()))
    given, words = {
        "None": (None, "rebalance.layer is None, but it needs a MoE"),
        "Local": (local, "the layer's dispatcher is Local, which has no placement"),
    }[wrong]
    found = errors(lambda layer, own: rebalance(layer, AFTER, ranks=own), [fleet.layers[0], given], others)
    for fault in found:
        with pytest.raises(FleetError, match=f"what is asked for: rank 1: DispatchError: {words}.*{UNCHANGED}"):
            raise fault
    fleet.assert_unchanged()


def test_an_error_that_cannot_be_put_into_words_is_told_all_the_same():
    class OddError(Exception):
        def __str__(self):
            raise ValueError("none")

    def odd(done, of):
        raise OddError

    fleet = Fleet()
    found = fleet.errors(chunk_bytes=(3000, 3000), progress=(lambda done, of: None, odd))
    words = "rebalance, the caller's progress after chunk 1 of 4: rank 1: OddError: <exception str() failed>"
    assert_failed_alike(fleet, found, words)


def test_a_rank_that_does_not_come_leaves_the_layers_own_group_as_it_is():
    fleet, others = Fleet(), ranks_in_threads(2, timeout=0.5)
    start = time.monotonic()
    (missed,) = errors(lambda layer, own: rebalance(layer, AFTER, ranks=own), fleet.layers[:1], others[:1])
    assert time.monotonic() - start < 5.0
    assert isinstance(missed, CollectiveError)
    assert "rebalance, what is asked for, lengths of the outcomes: rank 0 did not hear from all of" in str(missed)
    fleet.assert_unchanged()
    again = ranks_in_threads(2, timeout=20.0)
    assert fleet.errors(ranks=again) == [None, None]
    assert all(layer.dispatcher.ranks is own for layer, own in zip(fleet.layers, fleet.ranks, strict=True))
    run_all(fleet.layers, fleet.handed)


def test_a_rank_that_falls_silent_on_the_way(monkeypatch):
    fleet, others, move = Fleet(), ranks_in_threads(2, timeout=0.5), Ranks.point_to_point

    def silent(self, sent, got, step):
        if self.rank == 1 and "chunk 2 of" in step:
            raise CollectiveError("this rank is cut off")
        move(self, sent, got, step)

    with monkeypatch.context() as patched:
        patched.setattr(Ranks, "point_to_point", silent)
        found = fleet.errors(chunk_bytes=(3000, 3000), ranks=others)
    assert [fault.__class__ for fault in found] == [CollectiveError] * 2
    assert "rank 0 did not hear from all of the ranks 1" in str(found[0])
    fleet.assert_unchanged()


def test_what_cannot_be_rebalanced_is_refused():
    fleet, (one,) = Fleet(), ranks_in_threads(1)
    local = MoE(Given(None), Local(), bind(layer_problem(), whole()))
    with pytest.raises(DispatchError, match=r"the layer's dispatcher is Local, .*, LowLatency or SymmetricMemory$"):
        rebalance(local, AFTER)
    with pytest.raises(FleetError, match="give a group of the same ranks in one order"):
        rebalance(fleet.layers[1], AFTER, ranks=one)
    fleet.assert_unchanged()


def test_weights_that_are_trained_are_refused_on_all_ranks():
    weights = whole()
    weights.gate_up.data.requires_grad_()
    ranks, handed = ranks_in_threads(2, timeout=20.0), handed_in()
    layers = build_all(ranks, BEFORE, weights, handed, backends=(TorchGrouped(),))
    found = errors(lambda layer: rebalance(layer, AFTER), layers)
    assert str(found[0]) == str(found[1])
    assert "ranks 0, 1: WeightsError: the weights require gradients" in str(found[0])
