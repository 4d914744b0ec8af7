"""AllGather and AllToAll against the dispatcher kit, on 1 to 4 ranks; each rank is a thread with a gloo group."""

import torch

from moesaic.conformance import DispatcherConformance
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from tests.dispatch.fleets import connected, unconnected


class Connected(DispatcherConformance):
    """The kit on ranks that are connected while the tests of the class run."""

    @classmethod
    def setup_class(cls):
        cls.shape, cls.fleet = cls.fleet, connected(cls.kind, cls.fleet.num_ranks)

    @classmethod
    def teardown_class(cls):
        cls.fleet = cls.shape


class Third(Connected):
    """A third of the kit, each of its checks among them; four ranks are put through all of it."""

    hidden_sizes = (65,)

    def trials(self):
        return list(super().trials())[::3]  # 8 checks for each traffic, and one more for some


class TestAllToAllOn1(Third):
    kind, fleet = AllToAll, unconnected(1)


class TestAllToAllOn2(Third):
    kind, fleet = AllToAll, unconnected(2)


class TestAllToAllOn3(Third):
    kind, fleet = AllToAll, unconnected(3)


class TestAllToAllOn4(Connected):
    kind, fleet = AllToAll, unconnected(4)
    dtypes = (torch.float32, torch.bfloat16, torch.float16)


class TestAllGatherOn1(Third):
    kind, fleet = AllGather, unconnected(1)


class TestAllGatherOn2(Third):
    kind, fleet = AllGather, unconnected(2)


class TestAllGatherOn3(Third):
    kind, fleet = AllGather, unconnected(3)


class TestAllGatherOn4(Connected):
    kind, fleet = AllGather, unconnected(4)
