"""Comparison of a router's answer with the oracle's, token by token."""

import torch


def assert_routes(routing, expected):
    """`expected` is a list of (ids, weights), one for each token; ids must be equal, weights close."""
    assert routing.topk_ids.dtype == torch.int32
    assert routing.topk_ids.tolist() == [list(ids) for ids, _ in expected]
    wanted = torch.tensor([weights for _, weights in expected], dtype=torch.float64)
    torch.testing.assert_close(routing.topk_weights, wanted.to(routing.topk_weights.dtype))


def probabilities(*rows):
    """Logits whose softmax is `rows`."""
    return torch.tensor(rows, dtype=torch.float64).log().float()


def scores(*rows):
    """Logits whose sigmoid is `rows`."""
    return torch.logit(torch.tensor(rows, dtype=torch.float64)).float()


def random_logits(num_tokens, num_experts, seed=0):
    return torch.randn(num_tokens, num_experts, generator=torch.Generator().manual_seed(seed)) * 2


def random_bias(num_experts, seed=1):
    return torch.randn(num_experts, generator=torch.Generator().manual_seed(seed)) * 0.3
