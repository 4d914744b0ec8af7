"""One router of every class for eight logits per token, for the tests of what all routers promise."""

import pytest
import torch

from moesaic.routers import (
    BiasedSigmoidTopK,
    BiasedSoftmaxTopK,
    CustomRouter,
    ExpertScaledSoftmaxTopK,
    GroupedSigmoidTopK,
    GroupedSoftmaxTopK,
    HashedTopK,
    SigmoidTopK,
    SoftmaxTopK,
    SparseMixer,
    SqrtSoftplusTopK,
    TopKSoftmax,
    ZeroExpertTopK,
)
from tests.routers.comparing import random_bias

BIAS = random_bias(8)
TABLE = torch.tensor([[0, 5, 2], [7, 6, 1], [3, 4, 5], [2, 0, 7], [6, 1, 3]])


def every_second(logits, token_ids):
    """Experts 1, 3 and 5, weighed by their logits."""
    return torch.arange(1, 6, 2, device=logits.device).expand(logits.shape[0], 3), logits[:, 1:6:2]


WITHOUT_TENSORS = (
    SoftmaxTopK(8, 3, renormalize=True, epsilon=1e-20, scaling_factor=2.5),
    TopKSoftmax(8, 3),
    SigmoidTopK(8, 1),
    GroupedSoftmaxTopK(8, 3, num_groups=4, top_groups=2),
    SparseMixer(8),
)
BY_LOGITS = (
    *WITHOUT_TENSORS,
    BiasedSoftmaxTopK(8, 3, bias=BIAS, floor=1e-12),
    ExpertScaledSoftmaxTopK(8, 3, expert_scale=BIAS),
    BiasedSigmoidTopK(8, 3, bias=BIAS),
    GroupedSigmoidTopK(8, 3, num_groups=4, top_groups=2, bias=BIAS),
    SqrtSoftplusTopK(8, 3, bias=BIAS),
    ZeroExpertTopK(5, 3, num_zero_experts=3, bias=BIAS),
)
"""Those whose ids follow from the logits by a rule of this package."""

EXAMPLES = (*BY_LOGITS, HashedTopK(8, TABLE), CustomRouter(every_second))


def token_ids(num_tokens):
    return torch.arange(num_tokens) % 5


def identify(router):
    return type(router).__name__


every_router = pytest.mark.parametrize("router", EXAMPLES, ids=identify)
