"""PaddedAllToAll and LowLatency against the dispatcher kit on 1 to 4 ranks; each rank is a thread with a gloo group."""

from functools import partial

import torch

from moesaic.dispatch.by_expert import GroupedByExpert
from moesaic.dispatch.fleet import Fleet
from moesaic.dispatch.loopback import Loopback
from moesaic.dispatch.low_latency import LowLatency
from moesaic.dispatch.padded_all_to_all import PaddedAllToAll
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.row_transports import Expanded, Slabs
from moesaic.dispatch.threads import Threads, ranks_in_threads
from moesaic.dispatch.token_transports import Deduplicated
from moesaic.quant import FP8, PerGroup
from tests.dispatch.fleets import NUM_EXPERTS
from tests.dispatch.some_trials import part
from tests.dispatch.test_over_ranks_conform import Connected as OverRanks

MOST = 8
PADDED, GROUPED, SLABS = Deduplicated(MOST), Expanded(alignment=4, max_tokens=MOST), Slabs(MOST)


def unconnected(num_ranks, transport, **fields):
    """What pytest collects by: a fleet of that shape without threads and sockets."""
    return Loopback(num_experts=NUM_EXPERTS, num_ranks=num_ranks, transport=transport, **fields)


class Connected(OverRanks):
    """`kind` makes a dispatcher of a rank. Every check once, and of all trials one in nine, or in `step`."""

    hidden_sizes = (65,)
    step = 9

    @classmethod
    def setup_class(cls):
        cls.shape, shape = cls.fleet, cls.fleet
        placement = Placement.contiguous(NUM_EXPERTS, shape.num_ranks)
        given = tuple(cls.kind(ranks, placement) for ranks in ranks_in_threads(shape.num_ranks, timeout=20.0))
        sizes = {"num_experts": NUM_EXPERTS, "num_ranks": shape.num_ranks, "weight_on_input": shape.weight_on_input}
        cls.fleet: Fleet = Threads(dispatchers=given, **sizes)

    def trials(self):
        return part(super().trials(), self.step)


padded = partial(PaddedAllToAll, max_tokens=MOST)
grouped = partial(PaddedAllToAll, max_tokens=MOST, laid=GroupedByExpert(alignment=4))
grouped_on_input = partial(PaddedAllToAll, max_tokens=MOST, laid=GroupedByExpert(alignment=1, weight_on_input=True))
slabs = partial(LowLatency, max_tokens=MOST)
slabs_on_input = partial(LowLatency, max_tokens=MOST, weight_on_input=True)
coded = {"wire": FP8(PerGroup(128))}


class TestPaddedOn1(Connected):
    kind, fleet = staticmethod(padded), unconnected(1, PADDED)


class TestPaddedOn2(Connected):
    kind, fleet = staticmethod(padded), unconnected(2, PADDED)


class TestPaddedOn3(Connected):
    kind, fleet = staticmethod(padded), unconnected(3, PADDED)


class TestPaddedOn4(Connected):
    kind, fleet = staticmethod(padded), unconnected(4, PADDED)
    hidden_sizes, dtypes, step = (65, 2880), (torch.float32, torch.bfloat16, torch.float16), 4


class TestGroupedOn1(Connected):
    kind, fleet = staticmethod(grouped), unconnected(1, GROUPED)


class TestGroupedOn2(Connected):
    kind, fleet = staticmethod(grouped), unconnected(2, GROUPED)


class TestGroupedOn3(Connected):
    kind, fleet = staticmethod(grouped_on_input), unconnected(3, GROUPED, weight_on_input=True)
    duplicate_ids = False  # 8 slots and 3 experts: rooms are for distinct ones


class TestGroupedOn4(Connected):
    kind, fleet = staticmethod(grouped), unconnected(4, GROUPED)
    duplicate_ids, step = False, 6


class TestSlabsOn1(Connected):
    kind, fleet, duplicate_ids = staticmethod(slabs), unconnected(1, SLABS), False


class TestSlabsOn2(Connected):
    kind, fleet, duplicate_ids = staticmethod(slabs_on_input), unconnected(2, SLABS, weight_on_input=True), False


class TestSlabsOn3(Connected):
    kind, fleet, duplicate_ids = staticmethod(slabs), unconnected(3, SLABS), False


class TestSlabsOn4(Connected):
    kind, fleet, duplicate_ids = staticmethod(slabs), unconnected(4, SLABS), False
    step = 6


class TestCodedPaddedOn1(Connected):
    kind, fleet, hidden_sizes = staticmethod(partial(padded, **coded)), unconnected(1, PADDED), (130,)


class TestCodedPaddedOn4(Connected):
    kind, fleet, hidden_sizes = staticmethod(partial(padded, **coded)), unconnected(4, PADDED), (300, 65)
    dtypes = (torch.float32, torch.bfloat16, torch.float16)


class TestCodedGroupedOn3(Connected):
    kind, fleet = staticmethod(partial(grouped_on_input, **coded)), unconnected(3, GROUPED, weight_on_input=True)
    duplicate_ids = False


class TestCodedSlabsOn2(Connected):
    kind, fleet, duplicate_ids = staticmethod(partial(slabs, **coded)), unconnected(2, SLABS), False


class TestCodedSlabsOn4(Connected):
    kind, fleet = staticmethod(partial(slabs_on_input, **coded)), unconnected(4, SLABS, weight_on_input=True)
    duplicate_ids, hidden_sizes = False, (300,)
