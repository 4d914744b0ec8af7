"""Exchanges that count, on one GPU that plays two ranks: both send, and then both receive, in one CUDA graph."""

import pytest
import torch

from moesaic import Routing, StandardBatch

pytest.importorskip("triton")
from moesaic.dispatch.arrangement import AsArrived
from moesaic.dispatch.exchanges import TokenExchange, row_bytes
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.dispatch.placement import Placement
from moesaic.kernels.exchange_plan import ExchangePlan
from tests.dispatch.plain_windows import in_one_process, run

DEVICE = "cuda"
EXPERTS, MOST, HIDDEN, TOP_K = 37, 1500, 264, 7
"""More tokens than stripes, so that some have two and three; columns that are no multiple of a block."""
PLACEMENT = Placement(EXPERTS, (tuple(range(19)), (0, *range(19, 37))))
TOKENS = (MOST, 701)


class Pair:
    """Two ranks with windows, a recorder each and routing that can be overwritten; expert 5 is empty."""

    def __init__(self, coded):
        self.coded = coded
        plan = ExchangePlan.of(MOST, 132, 2)
        self.windows = in_one_process(2, MOST, row_bytes(HIDDEN, TOP_K, torch.bfloat16, AsArrived()), plan, DEVICE)
        self.recorders = [LoadRecorder(2, EXPERTS, DEVICE) for _ in TOKENS]
        self.tables = PLACEMENT.tables(DEVICE)
        self.handed = []
        for number in TOKENS:
            ids = torch.zeros(number, TOP_K, dtype=torch.int32, device=DEVICE)
            rows = torch.randn(number, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
            self.handed.append(StandardBatch(rows, Routing(ids, torch.rand(ids.shape, device=DEVICE))))

    def draw(self, seed):
        """Other ids; some are outside of the model, of both signs, and some tokens name an expert twice."""
        for rank, tokens in enumerate(self.handed):
            generator = torch.Generator().manual_seed(2 * seed + rank)
            ids = torch.randint(-2, EXPERTS + 3, tokens.routing.topk_ids.shape, generator=generator)
            tokens.routing.topk_ids.copy_(torch.where(ids == 5, 4, ids))

    def exchanges(self, *, counting):
        """What both ranks launch."""
        each = zip(self.handed, self.windows, self.recorders, strict=True)
        return [
            TokenExchange.of(
                tokens, self.tables, window, shards=1, coded=self.coded, bins=recorder.bins(1) if counting else None
            )
            for tokens, window, recorder in each
        ]

    def assert_equal(self, exchanges):
        """What came is what comes of an exchange that does not count."""
        plain = self.exchanges(counting=False)
        run(plain)
        for one, other in zip(exchanges, plain, strict=True):
            live = (other.arrivals.ids >= 0).any(1)
            assert torch.equal(one.arrivals.ids, other.arrivals.ids)
            assert torch.equal(one.arrivals.rows[live], other.arrivals.rows[live])

    def assert_counted(self, drawn):
        """Each slot of every call that was `drawn` once; the other layer, and what is no expert's, are 0."""
        for rank, recorder in enumerate(self.recorders):
            wanted = [sum(named[rank].count(expert) for named in drawn) for expert in range(EXPERTS)]
            assert recorder.read().counts.tolist() == [[0] * EXPERTS, wanted]
            assert recorder.bins(1)[[0, -1]].tolist() == [0, 0]

    def ids(self):
        """Of both ranks, now."""
        return [tokens.routing.topk_ids.flatten().tolist() for tokens in self.handed]


@pytest.mark.gpu
@pytest.mark.parametrize("coded", [False, True], ids=["plain", "fp8"])
def test_replays_of_a_graph_count_each_slot_once_and_send_what_was_sent_without(coded):
    pair = Pair(coded)
    pair.draw(0)
    drawn = [pair.ids()]
    run(pair.exchanges(counting=True))  # a first call may load kernels
    pair.assert_counted(drawn)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        exchanges = pair.exchanges(counting=True)
        run(exchanges)
    for seed in (1, 2, 3):
        pair.draw(seed)
        drawn.append(pair.ids())
        graph.replay()
        pair.assert_equal(exchanges)
    pair.assert_counted(drawn)


@pytest.mark.gpu
def test_counting_launches_nothing_more():
    pair = Pair(coded=False)
    pair.draw(0)
    for counting in (False, True):
        run(pair.exchanges(counting=counting))
        exchanges = pair.exchanges(counting=counting)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
            run(exchanges)
            torch.cuda.synchronize()
        kernels = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        assert kernels == ["_exchange_tokens"] * 4
