"""Fleets of threads for the tests of dispatchers."""

from moesaic.dispatch.loopback import Loopback
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.threads import Threads, ranks_in_threads
from moesaic.dispatch.token_transports import Gathered

NUM_EXPERTS = 10
"""On 4 ranks they are uneven: 3, 3, 2 and 2."""


def unconnected(num_ranks):
    """What pytest collects by: a fleet of that shape without threads and sockets."""
    return Loopback(num_experts=NUM_EXPERTS, num_ranks=num_ranks, transport=Gathered())


def connected(kind, num_ranks):
    """`num_ranks` ranks of a dispatcher of class `kind` in this process."""
    placement = Placement.contiguous(NUM_EXPERTS, num_ranks)
    dispatchers = tuple(kind(ranks, placement) for ranks in ranks_in_threads(num_ranks, timeout=20.0))
    return Threads(num_experts=NUM_EXPERTS, num_ranks=num_ranks, dispatchers=dispatchers)
