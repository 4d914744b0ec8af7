"""Fields of routers: what is refused when a router is built (F41), equality, repr and moving to a device."""

import numpy as np
import pytest
import torch

import moesaic.routers
from moesaic.errors import RouterError
from moesaic.routers import BiasedSigmoidTopK, GroupedSigmoidTopK, HashedTopK, SoftmaxTopK, SparseMixer
from tests.routers.examples import EXAMPLES, WITHOUT_TENSORS, identify

NAN, INF = float("nan"), float("inf")
WITH_TENSORS = [r for r in EXAMPLES if r not in WITHOUT_TENSORS][:-1]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": -1}, r"num_experts is -1"),
        ({"num_experts": 0}, r"num_experts is 0"),
        ({"num_experts": 8.0}, r"num_experts is 8\.0"),
        ({"top_k": 0}, r"top_k is 0"),
        ({"top_k": True}, r"top_k is True"),
        ({"top_k": 9}, r"top_k is 9, but it needs at most num_experts=8"),
        ({"renormalize": 1}, r"renormalize is 1"),
        ({"epsilon": -1e-20}, r"epsilon is -1e-20, but it needs a number of at least 0"),
        ({"epsilon": NAN}, r"epsilon is nan"),
        ({"scaling_factor": NAN}, r"scaling_factor is nan"),
        ({"scaling_factor": INF}, r"scaling_factor is inf"),
        ({"scaling_factor": 0}, r"scaling_factor is 0\.0, but it needs a number above 0"),
        ({"scaling_factor": "2.5"}, r"scaling_factor is '2\.5'"),
    ],
)
def test_a_wrong_field_is_named(changes, message):
    with pytest.raises(RouterError, match=rf"SoftmaxTopK\.{message}"):
        SoftmaxTopK(**{"num_experts": 8, "top_k": 2, **changes})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "bias", [None, [0.0] * 4, torch.zeros(3), torch.zeros(1, 4), torch.zeros(4).int(), torch.tensor(0.0)]
)
def test_a_wrong_bias_is_named(bias):
    with pytest.raises(RouterError, match=r"BiasedSigmoidTopK\.bias is .* floating tensor of shape \(4,\)"):
        BiasedSigmoidTopK(4, 2, bias=bias)


def test_a_bias_is_stored_as_float32():
    assert BiasedSigmoidTopK(4, 2, bias=torch.zeros(4).bfloat16()).bias.dtype == torch.float32
    assert BiasedSigmoidTopK(4, 2, bias=torch.zeros(4).double()).bias.dtype == torch.float64


def test_only_the_first_two_fields_are_positional():
    with pytest.raises(TypeError):
        SoftmaxTopK(8, 2, True)
    with pytest.raises(TypeError):
        SparseMixer(8, 0.01)


@pytest.mark.parametrize("router", WITHOUT_TENSORS, ids=identify)
def test_without_tensors_the_repr_evaluates(router):
    again = eval(repr(router), dict(vars(moesaic.routers)))  # noqa: S307
    assert again == router
    assert hash(again) == hash(router)
    assert repr(again) == repr(router)


@pytest.mark.usefixtures("unchecked")
def test_equal_values_are_one_router():
    given = SoftmaxTopK(np.int64(8), torch.tensor(2).item(), scaling_factor=np.float32(2), epsilon=torch.tensor(0.0))
    assert repr(given) == repr(SoftmaxTopK(8, 2, scaling_factor=2.0))
    assert len({given, SoftmaxTopK(8, 2, scaling_factor=2)}) == 1
    assert given != SoftmaxTopK(8, 2)


@pytest.mark.parametrize("router", WITH_TENSORS, ids=identify)
def test_with_tensors_identity_is_equality(router):
    moved = router.to("meta")
    assert router == router  # noqa: PLR0124
    assert router != moved
    assert hash(router) != hash(moved)


@pytest.mark.parametrize("router", WITH_TENSORS, ids=identify)
def test_moving_takes_every_tensor_along(router):
    moved = router.to("meta")
    assert type(moved) is type(router)
    held = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert held
    assert all(tensor.device.type == "meta" for tensor in held)
    with pytest.raises(RouterError, match=r'is on meta and the logits on cpu: move the router with .to\("cpu"\)'):
        moved(torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("router", WITHOUT_TENSORS, ids=identify)
def test_moving_no_tensor_is_no_move(router):
    assert router.to("meta") is router


@pytest.mark.parametrize(
    "build",
    [
        lambda: GroupedSigmoidTopK(8, 0, num_groups=2, top_groups=1, bias=torch.zeros(8)),
        lambda: HashedTopK(0, torch.zeros(2, 2).int()),
        lambda: SparseMixer(8, jitter=-0.1),
    ],
)
def test_classes_with_further_checks_make_the_common_ones_too(build):
    with pytest.raises(RouterError):
        build()
