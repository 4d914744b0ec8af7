"""The package's own routers through the kit, with the facts that their docstrings state, and the catalogue's rows."""

import torch

from moesaic.conformance import RouterConformance, RoutingExample
from moesaic.routers import (
    ROUTERS,
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

BIAS = torch.tensor([0.11, -0.23, 0.31, 0.07, -0.4, 0.19, -0.05, 0.02])
TABLE = torch.tensor([[0, 5, 2], [7, 6, 1], [3, 4, 5], [2, 0, 7], [6, 1, 3]])


def of_probabilities(*numbers):
    return tuple(torch.tensor(numbers, dtype=torch.float64).log().tolist())


def of_scores(*numbers):
    return tuple(torch.tensor(numbers, dtype=torch.float64).logit().tolist())


class TestSoftmaxTopK(RouterConformance):
    router = SoftmaxTopK(8, 3)
    renormalised = False


class TestSoftmaxTopKNotRenormalised(RouterConformance):
    router = SoftmaxTopK(3, 2)
    renormalised = False
    examples = (RoutingExample(of_probabilities(0.5, 0.3, 0.2), (0, 1), (0.5, 0.3)),)  # F38


class TestSoftmaxTopKRenormalised(RouterConformance):
    router = SoftmaxTopK(3, 2, renormalize=True, scaling_factor=2.5)
    renormalised = True
    scaling = 2.5
    examples = (RoutingExample(of_probabilities(0.5, 0.3, 0.2), (0, 1), (1.5625, 0.9375)),)  # F32, F38


class TestSoftmaxOverAll(RouterConformance):
    router = SoftmaxTopK(3, 1)
    examples = (RoutingExample((1.0, 0.0, 0.0), (0,), (0.576116885,)),)  # F38


class TestTopKSoftmax(RouterConformance):
    router = TopKSoftmax(3, 1)
    renormalised = True
    examples = (RoutingExample((1.0, 0.0, 0.0), (0,), (1.0,)), RoutingExample((8.0, 8.02, 0.0), (1,), (1.0,)))  # F37


class TestTopKSoftmaxOfGptOss(RouterConformance):
    router = TopKSoftmax(128, 4)
    renormalised = True


class TestSigmoidTopK(RouterConformance):
    router = SigmoidTopK(16, 1)
    renormalised = False


class TestSigmoidTopKRenormalised(RouterConformance):
    router = SigmoidTopK(16, 4, renormalize=True, epsilon=1e-20, scaling_factor=2.5)
    renormalised = True
    scaling = 2.5


class TestBiasedSoftmaxTopK(RouterConformance):
    router = BiasedSoftmaxTopK(8, 3, bias=BIAS, floor=1e-12)
    renormalised = True
    bias = "bias"


class TestExpertScaledSoftmaxTopK(RouterConformance):
    router = ExpertScaledSoftmaxTopK(8, 3, expert_scale=BIAS)


class TestBiasedSigmoidTopK(RouterConformance):
    router = BiasedSigmoidTopK(8, 3, bias=BIAS, scaling_factor=2.5)
    renormalised = True
    scaling = 2.5
    bias = "bias"


class TestBiasedSigmoidTopKNotRenormalised(RouterConformance):
    router = BiasedSigmoidTopK(2, 1, bias=torch.tensor([0.0, 1.0]), renormalize=False)
    renormalised = False
    bias = "bias"
    examples = (RoutingExample(of_scores(0.6, 0.5), (1,), (0.5,)),)  # F39


class TestBiasedSigmoidTopKOfManyExperts(RouterConformance):
    router = BiasedSigmoidTopK(896, 22, bias=torch.zeros(896), epsilon=1e-20)  # F42
    renormalised = True
    bias = "bias"


class TestGroupedSigmoidTopK(RouterConformance):
    router = GroupedSigmoidTopK(8, 3, num_groups=4, top_groups=2, bias=BIAS, epsilon=1e-20, scaling_factor=2.5)
    renormalised = True
    scaling = 2.5
    bias = "bias"
    groups = (4, 2)


class TestGroupedSigmoidTopKUnderANegativeBias(RouterConformance):
    router = GroupedSigmoidTopK(4, 2, num_groups=2, top_groups=1, bias=-torch.ones(4))
    renormalised = True
    bias = "bias"
    groups = (2, 1)
    examples = (RoutingExample(of_scores(0.6, 0.5, 0.4, 0.3), (0, 1), (0.545454545, 0.454545455)),)  # F34


class TestGroupedSoftmaxTopK(RouterConformance):
    router = GroupedSoftmaxTopK(8, 3, num_groups=4, top_groups=2, scaling_factor=16.0)
    renormalised = False
    scaling = 16.0
    groups = (4, 2)


class TestSqrtSoftplusTopK(RouterConformance):
    router = SqrtSoftplusTopK(8, 3, bias=BIAS, epsilon=1e-20, scaling_factor=1.5)
    renormalised = True
    scaling = 1.5
    bias = "bias"


class TestHashedTopK(RouterConformance):
    router = HashedTopK(8, TABLE, scaling_factor=1.5)
    renormalised = True
    scaling = 1.5
    vocabulary = 5
    by_score = False


class TestZeroExpertTopK(RouterConformance):
    router = ZeroExpertTopK(5, 3, num_zero_experts=3, bias=BIAS, scaling_factor=6.0)
    num_logits = 8
    bias = "bias"


class TestZeroExpertTopKWithoutBias(RouterConformance):
    router = ZeroExpertTopK(5, 3, num_zero_experts=3, bias=torch.zeros(8))
    num_logits = 8
    bias = "bias"


class TestSparseMixer(RouterConformance):
    router = SparseMixer(16)


def best_two(logits, token_ids):
    ids = logits.argsort(dim=-1, descending=True, stable=True)[:, :2]
    return ids, logits.gather(-1, ids).sigmoid()


class TestCustomRouter(RouterConformance):
    router = CustomRouter(best_two)
    renormalised = False


def test_every_router_is_tried():
    tried = [kind.router for kind in RouterConformance.__subclasses__() if kind.__module__ == __name__]
    assert {type(router) for router in tried} == set(ROUTERS)
