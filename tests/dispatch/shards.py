"""The weights of an expert's share of its intermediate size, cut out of the whole layer's."""

import torch

from moesaic import ExpertWeights
from tests.dispatch.layers import weights


def shard(placement, rank, shards):
    """What `rank` holds where so many ranks in a row share each expert: their experts, and a part of I of each."""
    whole, held, part = weights(), list(placement.experts[rank // shards]), rank % shards
    gate, up = whole.gate_up.data[held].chunk(2, dim=1)
    rows = [half.chunk(shards, dim=1)[part] for half in (gate, up)]
    return ExpertWeights.plain(torch.cat(rows, dim=1), whole.down.data[held].chunk(shards, dim=2)[part].contiguous())
