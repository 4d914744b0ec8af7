"""The parts of a move: who sends what to whom, in which rounds, as which bytes, with which checksum."""

import itertools
import random

import pytest
import torch

from moesaic.dispatch.all_or_none import all_or_none
from moesaic.dispatch.checksum import checksum
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.expert_bytes import ExpertBytes
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.texts import gather_texts
from moesaic.dispatch.threads import in_threads, ranks_in_threads
from moesaic.dispatch.transfers import Transfer, rounds, transfers
from moesaic.errors import CollectiveError, DispatchError, FleetError, MoesaicError

MASK = 2**64 - 1


def mixed(state):
    """One step of SplitMix64, as published, in plain Python."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def plain_checksum(values, place):
    """By the definition."""
    padded = values + bytes(-len(values) % 8)
    words = [int.from_bytes(padded[i : i + 8], "little") for i in range(0, len(padded), 8)]
    return (sum(mixed(w ^ mixed(place + i)) for i, w in enumerate(words)) + mixed(place + len(values))) & MASK


def test_the_oracle_is_splitmix64():
    assert mixed(0) == 0xE220A8397B1DCDAF  # the first number of the published generator with the seed 0


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 63, 1000])
@pytest.mark.parametrize("place", [0, 5, (255 << 40) + 12345])
def test_the_checksum_is_the_sum_that_it_says_it_is(length, place):
    values = random.Random(length).randbytes(length)  # noqa: S311
    found = checksum(torch.tensor(list(values), dtype=torch.uint8), place)
    assert int(found) & MASK == plain_checksum(values, place)


def test_a_change_of_any_bit_and_of_the_place_changes_the_checksum():
    values = torch.randint(0, 256, (37,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    found = {int(checksum(values, place)) for place in (0, 1, 2**40)}
    for byte, bit in itertools.product(range(37), range(8)):
        other = values.clone()
        other[byte] ^= 1 << bit
        found.add(int(checksum(other, 0)))
    found |= {int(checksum(part, 0)) for part in (values[:-1], values.flip(0), values[8:])}
    zeros = [torch.zeros(n, dtype=torch.uint8) for n in (7, 8, 16)]
    found |= {int(checksum(part, 0)) for part in zeros}
    signs = values.clone()
    signs[[7, 15]] ^= 128  # the highest bits of two words
    found.add(int(checksum(signs, 0)))
    assert len(found) == 3 + 37 * 8 + 3 + 3 + 1


def random_placement(rng, num_experts, num_ranks):
    """Every expert on one to three ranks, in random slots; no rank is empty."""
    held = [[] for _ in range(num_ranks)]
    for expert in range(num_experts):
        for rank in rng.sample(range(num_ranks), rng.randint(1, min(3, num_ranks))):
            held[rank].append(expert)
    for own in held:
        own.extend([] if own else [rng.randrange(num_experts)])
        rng.shuffle(own)
    return Placement(num_experts, tuple(map(tuple, held)))


@pytest.mark.parametrize("seed", range(30))
def test_every_expert_that_arrives_comes_once_from_a_rank_that_has_it(seed):
    rng = random.Random(seed)  # noqa: S311
    num_experts, num_ranks = rng.randint(1, 17), rng.randint(1, 7)
    before, after = (random_placement(rng, num_experts, num_ranks) for _ in range(2))
    moves = transfers(before, after)
    arrive = {(e, r) for r, own in enumerate(after.experts) for e in own if e not in before.experts[r]}
    assert sorted((move.expert, move.target) for move in moves) == sorted(arrive)
    assert all(move.expert in before.experts[move.source] for move in moves)
    made = rounds(moves)
    assert sorted(map(repr, itertools.chain(*made))) == sorted(map(repr, moves))
    for own in made:
        assert len({move.source for move in own}) == len({move.target for move in own}) == len(own)
    busiest = max((sum(r in (m.source, m.target) for m in moves) for r in range(num_ranks)), default=0)
    assert len(made) <= 2 * busiest


def test_replicas_share_what_is_to_be_sent():
    before = Placement(4, ((0, 1), (0, 1), (2, 3)))
    after = Placement(4, ((0, 1), (2, 3), (0, 1)))
    assert transfers(before, after) == (Transfer(2, 2, 1), Transfer(3, 2, 1), Transfer(0, 0, 2), Transfer(1, 1, 2))
    assert transfers(before, before) == ()
    for other in (Placement.contiguous(5, 3), Placement.contiguous(4, 2)):
        with pytest.raises(DispatchError, match="place as many on as many"):
            transfers(before, other)


def test_the_bytes_of_an_expert_lie_behind_one_another():
    stacks = (
        torch.arange(2 * 3 * 5, dtype=torch.int16).view(2, 3, 5),
        torch.tensor([[1.0], [-2.0]], dtype=torch.float64),
        torch.arange(12, dtype=torch.uint8).view(3, 2, 2).transpose(0, 1),  # not contiguous
    )
    own = ExpertBytes.of(stacks, 1)
    raw = b"".join(stack[1].contiguous().numpy().tobytes() for stack in stacks)
    assert own.num_bytes == len(raw) == 30 + 8 + 6
    for start, stop in itertools.combinations(range(len(raw) + 1), 2):
        assert bytes(own.read(start, stop).tolist()) == raw[start:stop]
    target = (torch.zeros(4, 3, 5, dtype=torch.int16), torch.zeros(4, 1, dtype=torch.float64))
    place = ExpertBytes.of(target, 2)
    for start in range(0, 38, 11):
        place.write(start, own.read(start, min(start + 11, 38)))
    assert torch.equal(target[0][2], stacks[0][1])
    assert torch.equal(target[1][2], stacks[1][1])
    assert sum(int(stack[i].count_nonzero()) for stack in target for i in (0, 1, 3)) == 0


def outcome(work, ranks):
    try:
        return work(ranks)
    except MoesaicError as fault:
        return fault


def test_all_or_none():
    ranks = ranks_in_threads(3, timeout=20.0)

    def work(own):
        with all_or_none(own, "the step", "nothing happened"):
            if own.rank == 1:
                raise OSError("é" * 3000)
            if own.rank == 2:
                raise ValueError
        return "done"

    found = in_threads(lambda own: outcome(work, own), ranks)
    assert {fault.__class__ for fault in found} == {FleetError}
    told = "the step: rank 1: OSError: " + "é" * (1000 - len("OSError: ")) + "; rank 2: ValueError: ; nothing happened"
    assert [str(fault) for fault in found] == [told] * 3
    assert [fault.__cause__.__class__ for fault in found] == [None.__class__, OSError, ValueError]

    def fine(own):
        with all_or_none(own, "the step", "nothing happened"):
            pass
        return own.rank

    assert in_threads(fine, ranks) == [0, 1, 2]


def test_a_lost_group_is_not_asked_again():
    ranks = ranks_in_threads(2, timeout=0.5)

    def work(own):
        with all_or_none(own, "the step", "nothing happened"):
            raise CollectiveError("lost before")

    found = in_threads(lambda own: outcome(work, own), ranks)
    assert [str(fault) for fault in found] == ["lost before"] * 2


def test_texts_of_different_lengths():
    ranks, texts = ranks_in_threads(3, timeout=20.0), ["", "zwölf", "x" * 300]
    assert in_threads(lambda own, text: gather_texts(own, text, "step", "texts"), ranks, texts) == [texts] * 3


def test_ranks_with_nothing_to_say_exchange_once(monkeypatch):
    gather, steps = Ranks.all_gather, []

    def noted(self, values, step):
        steps.append(step)
        return gather(self, values, step)

    monkeypatch.setattr(Ranks, "all_gather", noted)
    assert (
        in_threads(lambda own: gather_texts(own, "", "step", "texts"), ranks_in_threads(2, timeout=20.0))
        == [["", ""]] * 2
    )
    assert steps == ["step, lengths of the texts"] * 2


class Grouped:
    """A process group that runs what is grouped at once, as NCCL does, and is done after some looks."""

    supports_coalescing = True

    def __init__(self, looks):
        self.looks, self.calls = looks, []

    def size(self):
        return 2

    def rank(self):
        return 0

    def _get_backend(self, _):
        return self

    def _start_coalescing(self, _):
        self.calls.append("begin")

    def _end_coalescing(self, _):
        self.calls.append("end")
        return self

    def send(self, tensors, rank, tag):
        self.calls.append(f"send {len(tensors[0])} to {rank}")

    def recv(self, tensors, rank, tag):
        self.calls.append(f"get {len(tensors[0])} from {rank}")

    def is_completed(self):
        self.looks -= 1
        return self.looks < 0

    def wait(self, timeout):
        self.calls.append("wait")
        if self.looks >= 0:
            raise RuntimeError("timed out")


@pytest.mark.parametrize(("looks", "heard"), [(0, True), (3, True), (10**9, False)])
def test_a_group_that_runs_exchanges_at_once_is_watched_until_it_is_done(looks, heard):
    ranks, group = Ranks(ranks_in_threads(1)[0].group, timeout=0.05), Grouped(looks)
    object.__setattr__(ranks, "group", group)
    sent, got = [(torch.zeros(3), 1)], [(torch.zeros(5), 1)]
    if heard:
        ranks.point_to_point(sent, got, "pairs")
        assert group.looks == -1
    else:
        with pytest.raises(CollectiveError, match="pairs: rank 0 did not hear from all of the ranks 1 "):
            ranks.point_to_point(sent, got, "pairs")
    assert group.calls == ["begin", "send 3 to 1", "get 5 from 1", "end", "wait"]


def test_tensors_between_two_ranks_meet_in_order_and_the_others_go_on():
    ranks = ranks_in_threads(3, timeout=20.0)

    def work(own):
        own.all_gather(torch.zeros(1), "first")
        sent = [(torch.full((n,), n, dtype=torch.uint8), 2) for n in (3, 5)] if own.rank == 0 else []
        got = [(torch.zeros(n, dtype=torch.uint8), 0) for n in (3, 5)] if own.rank == 2 else []
        own.point_to_point(sent, got, "pairs")
        return [tensor.tolist() for tensor, _ in got]

    assert in_threads(work, ranks) == [[], [], [[3] * 3, [5] * 5]]
