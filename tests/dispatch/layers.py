"""A small layer of five experts, in parts and whole, and the tokens that ranks hand to it."""

import torch

from moesaic import ExpertWeights, Local, MoE, Problem, Router, Routing, SwiGLU, bind

NUM_EXPERTS, HIDDEN, INNER, TOP_K = 5, 24, 16, 3


def layer_problem(num_experts=NUM_EXPERTS, **fields):
    """The layer, or as much of it as a rank has."""
    sizes = {"num_experts": num_experts, "top_k": TOP_K, "hidden_size": HIDDEN, "intermediate_size": INNER}
    return Problem(**{**sizes, "activation": SwiGLU(), "dtype": torch.float32, **fields})


def weights(dtype=torch.float32):
    """Of all experts."""
    generator = torch.Generator().manual_seed(7)
    gate_up = torch.randn(NUM_EXPERTS, 2 * INNER, HIDDEN, generator=generator) / HIDDEN**0.5
    down = torch.randn(NUM_EXPERTS, HIDDEN, INNER, generator=generator) / INNER**0.5
    return ExpertWeights.plain(gate_up.to(dtype), down.to(dtype))


def local_weights(placement, rank, dtype=torch.float32):
    """Of the experts that `placement` gives to `rank`, replicas included."""
    whole, held = weights(dtype), list(placement.experts[rank])
    return ExpertWeights.plain(whole.gate_up.data[held], whole.down.data[held])


def calls(tokens, num_experts=NUM_EXPERTS, dtype=torch.float32, seed=0):
    """Hidden states and routing of each rank; a fifth of the slots is inactive, with NaN for a weight."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for count in tokens:
        hidden = torch.randn(count, HIDDEN, generator=generator).to(dtype)
        ids = torch.rand(count, num_experts, generator=generator).argsort(-1)[:, :TOP_K].int()
        given = torch.rand(count, TOP_K, generator=generator) + 0.1
        dead = torch.rand(count, TOP_K, generator=generator) < 0.2
        made.append((hidden, Routing(ids.where(~dead, num_experts + 3), given.where(~dead, torch.nan))))
    return made


class Given(Router):
    """A router that was told the answer."""

    def __init__(self, routing):
        self.routing = routing

    def __call__(self, router_logits, token_ids=None):
        return self.routing


def one_rank(handed, dtype=torch.float32, **fields):
    """What one rank with all experts makes of the tokens of each rank."""
    experts = bind(layer_problem(dtype=dtype, **fields), weights(dtype))
    layers = [MoE(Given(routing), Local(), experts) for _, routing in handed]
    return [
        layer(hidden, torch.zeros(len(hidden), NUM_EXPERTS)) for layer, (hidden, _) in zip(layers, handed, strict=True)
    ]
