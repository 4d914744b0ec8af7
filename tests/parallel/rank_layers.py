"""Layers over the ranks of a fleet of threads, built for one placement or rebalanced to another."""

import torch

from moesaic import ExpertWeights, MoE, SwiGLU, bind
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.threads import in_threads
from moesaic.errors import MoesaicError
from tests.dispatch.layers import HIDDEN, INNER, NUM_EXPERTS, Given, calls, layer_problem

BEFORE = Placement(5, ((0, 1, 2), (3, 4, 1)))
AFTER = Placement(5, ((4, 1), (2, 0, 3, 4)))
"""Rank 0 shrinks and rank 1 grows; experts 0, 2 and 4 travel, 1 and 3 stay, in other slots; one replica moves."""


def whole(dtype=torch.float32, *, bias=False, stored=None):
    """The weights of all experts, in the format `stored` if given."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape):
        return (torch.randn(*shape, generator=generator) / shape[-1] ** 0.5).to(dtype)

    gate_up, down = random(NUM_EXPERTS, 2 * INNER, HIDDEN), random(NUM_EXPERTS, HIDDEN, INNER)
    biases = {}
    if bias:
        biases = {"gate_up_bias": random(NUM_EXPERTS, 2 * INNER), "down_bias": random(NUM_EXPERTS, HIDDEN)}
    made = ExpertWeights.plain(gate_up, down, **biases)
    return made if stored is None else made.quantize(stored)


def build(ranks, placement, weights, routing, *, kind=AllToAll, backends=None, **fields):
    """The layer of one rank, built anew for `placement`; constants of an activation are those of all experts."""
    own = placement.experts[ranks.rank]
    activation = fields.pop("activation", SwiGLU()).select(own)
    problem = layer_problem(len(own), **{"bias": weights.down_bias is not None, "activation": activation, **fields})
    chosen = {} if backends is None else {"backends": backends}
    return MoE(Given(routing), kind(ranks, placement), bind(problem, weights.select(own), **chosen))


def build_all(ranks, placement, weights, handed, **fields):
    """One layer for each rank."""
    return in_threads(lambda own, call: build(own, placement, weights, call[1], **fields), ranks, handed)


def run_all(layers, handed):
    """The output of each rank."""
    return in_threads(lambda layer, call: layer(call[0], call[0][:, :1].expand(-1, NUM_EXPERTS)), layers, handed)


def errors(work, *arguments):
    """The error of each rank, or None."""

    def run(*own):
        try:
            work(*own)
        except MoesaicError as fault:
            return fault
        return None

    return in_threads(run, *arguments)


def handed_in(dtype=torch.float32, num_ranks=2):
    """Uneven numbers of tokens; none on the last of three ranks."""
    return calls([6, 3, 0][:num_ranks], dtype=dtype)


def same_bits(one, other):
    """Whether two tensors have the same bytes, NaN among them."""
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8)
    )
