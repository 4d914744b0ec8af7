"""AllGather and AllToAll against the dispatcher kit, on 1 to 4 ranks; each rank is a thread with a gloo group."""

from functools import partial

import torch

from moesaic.conformance import DispatcherConformance
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.quant import FP8, PerGroup
from tests.dispatch.fleets import connected, unconnected
from tests.dispatch.some_trials import part


class Connected(DispatcherConformance):
    """The kit on ranks that are connected while the tests of the class run."""

    @classmethod
    def setup_class(cls):
        cls.shape, cls.fleet = cls.fleet, connected(cls.kind, cls.fleet.num_ranks)

    @classmethod
    def teardown_class(cls):
        cls.fleet = cls.shape


class Third(Connected):
    """A third of the kit; four ranks are put through all of it."""

    hidden_sizes = (65,)

    def trials(self):
        return part(super().trials(), 3)


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


class Coded(Connected):
    """A ninth of the kit for dispatchers whose tokens travel as FP8, the last of three groups short."""

    hidden_sizes = (300,)

    def trials(self):
        return part(super().trials(), 9)


coded_to_all = staticmethod(partial(AllToAll, wire=FP8(PerGroup(128))))
coded_gather = staticmethod(partial(AllGather, wire=FP8(PerGroup(128))))


class TestCodedAllToAllOn1(Coded):
    kind, fleet = coded_to_all, unconnected(1)


class TestCodedAllToAllOn2(Coded):
    kind, fleet = coded_to_all, unconnected(2)


class TestCodedAllToAllOn4(Coded):
    kind, fleet = coded_to_all, unconnected(4)
    dtypes = (torch.float32, torch.bfloat16, torch.float16)


class TestCodedAllGatherOn3(Coded):
    kind, fleet = coded_gather, unconnected(3)
