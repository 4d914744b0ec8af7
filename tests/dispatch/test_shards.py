"""ExpertWeights.shard under a dispatcher: ranks that hold shards of their experts give what one rank gives."""

import pytest
import torch

from moesaic import FP8, MXFP4, ExpertWeights, MoE, PerBlock, Plain, Scheme, bind
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.local import Local
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.threads import in_threads, ranks_in_threads
from tests.dispatch.layers import HIDDEN, NUM_EXPERTS, Given, calls, layer_problem
from tests.quant.examples import values
from tests.tolerance import assert_close

PLACEMENT = Placement(5, ((4, 0, 2), (1, 4, 3)))
INNER = 64


@pytest.mark.parametrize("stored", [Plain(), FP8(PerBlock(16, 32)), MXFP4()], ids=repr)
def test_sharded_experts_with_biases_give_what_one_rank_gives(stored):
    whole = ExpertWeights.plain(
        values(NUM_EXPERTS, 2 * INNER, HIDDEN, sigma=0.2),
        values(NUM_EXPERTS, HIDDEN, INNER, sigma=0.2, seed=1),
        gate_up_bias=values(NUM_EXPERTS, 2 * INNER, sigma=1.0, seed=2),
        down_bias=values(NUM_EXPERTS, HIDDEN, sigma=1.0, seed=3),
    ).quantize(stored)
    fields, handed = {"bias": True, "scheme": Scheme(stored, Plain())}, calls([3, 0, 6, 1])

    def sharded(ranks, call):
        dispatcher = AllToAll(ranks, PLACEMENT, shards=2)
        held = PLACEMENT.experts[ranks.rank // 2]
        problem = layer_problem(len(held), intermediate_size=INNER // 2, **fields)
        own = whole.select(held).shard(ranks.rank % 2, 2)
        return MoE(Given(call[1]), dispatcher, bind(problem, own))(call[0], torch.zeros(len(call[0]), NUM_EXPERTS))

    outputs = in_threads(sharded, ranks_in_threads(4, 20.0), handed)
    experts = bind(layer_problem(intermediate_size=INNER, **fields), whole)
    for got, (hidden, routing) in zip(outputs, handed, strict=True):
        wanted = MoE(Given(routing), Local(), experts)(hidden, torch.zeros(len(hidden), NUM_EXPERTS))
        assert_close(got, wanted.double().numpy(), torch.float32)
