"""identify: constants recovered exactly, both column orders, float64 and float32, and nothing guessed."""

import pytest
import torch
from transformers.activations import ACT2FN

from moesaic import GELU, GeGLU, Identity, PowLU, ReGLU, ReLU, ReLU2, SiLU, SiTU, SwiGLU, SwiGLUStep
from moesaic.integrations.transformers import Identified, identify
from tests.unchecked import unchecked

GATED = [
    SwiGLU(),
    SwiGLU(alpha=1.702),
    SwiGLU(alpha=1.702, beta=1.0, limit=7.0),
    SwiGLU(alpha=1.7024, beta=0.25, limit=6.5),
    SwiGLU(limit=10.0),
    SwiGLU(limit=0.3),
    SwiGLU(limit=100.0),
    SwiGLUStep(limit=7.0),
    SwiGLUStep(limit=0.25),
    SiTU(),
    SiTU(gate_scale=4.0, linear_scale=None),
    SiTU(gate_scale=4.0, linear_scale=25.0, limit=7.0),
    SiTU(gate_scale=4.0, linear_scale=None, limit=7.0),
    SiTU(gate_scale=3.3, linear_scale=21.5, limit=5.5),
    GeGLU("none"),
    GeGLU("tanh"),
    ReGLU(),
    PowLU(),
    PowLU(exponent=3.0, limit=7.0),
]
PLAIN = [ReLU2(), ReLU2(limit=7.0), ReLU(), GELU("none"), GELU("tanh"), SiLU(), Identity()]


def float64_too(activation):
    return activation


def inside_in_float32(activation):
    return lambda rows: activation(rows.float()).to(rows.dtype)


def only_float32(activation):
    def function(rows):
        if rows.dtype != torch.float32:
            raise RuntimeError("expected scalar type Float")
        return activation(rows)

    return function


@pytest.mark.parametrize("written", [float64_too, inside_in_float32, only_float32])
@pytest.mark.parametrize("activation", GATED + PLAIN, ids=repr)
def test_constants_are_found_exactly(activation, written):
    assert identify(written(activation), gated=activation.gated) == Identified(activation, interleaved=False)


@pytest.mark.parametrize("activation", [SwiGLU(alpha=1.702, beta=1.0, limit=7.0), SiTU(), GeGLU("tanh")], ids=repr)
def test_alternating_columns_are_found(activation):
    def function(rows):
        return activation(torch.cat([rows[..., ::2], rows[..., 1::2]], dim=-1))

    assert identify(function, gated=True) == Identified(activation, interleaved=True)


def gate_of(name):
    def function(rows):
        gate, up = rows.chunk(2, dim=-1)
        return ACT2FN[name](gate) * up

    return function


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("silu", SwiGLU()),
        ("quick_gelu", SwiGLU(alpha=1.702)),
        ("gelu", GeGLU("none")),
        ("gelu_new", GeGLU("tanh")),
        ("gelu_fast", GeGLU("tanh")),
        ("gelu_pytorch_tanh", GeGLU("tanh")),
        ("relu", ReGLU()),
    ],
)
def test_activations_of_transformers_are_known(name, activation):
    assert identify(gate_of(name), gated=True) == Identified(activation, interleaved=False)


@pytest.mark.parametrize("name", ["gelu_10", "hardswish", "leaky_relu", "mish", "relu2", "relu6", "sigmoid", "tanh"])
def test_other_activations_are_not_guessed(name):
    assert identify(gate_of(name), gated=True) is None


def almost(gate, up):
    """SwiGLU up to 200, and something else beyond."""
    return torch.where(up > 200, 0.999, 1.0) * gate * torch.sigmoid(gate) * up


def one_clamp(gate, up):
    """Only up is clamped."""
    return gate * torch.sigmoid(gate) * up.clamp(-7, 7)


def lopsided(gate, up):
    """The clamp of up has another lower end."""
    gate = gate.clamp(max=7)
    return gate * torch.sigmoid(gate) * up.clamp(-6.9, 7)


def slightly_other_alpha(gate, up):
    """Close to 1.702 for an eye, but not for the tolerance of float32."""
    return (gate * torch.sigmoid(torch.where(gate > 1, 1.70205, 1.702) * gate) * up).float()


@pytest.mark.parametrize("formula", [almost, one_clamp, lopsided, slightly_other_alpha])
def test_a_function_that_differs_somewhere_is_not_taken(formula):
    assert identify(lambda rows: formula(*rows.chunk(2, dim=-1)), gated=True) is None


def mixing_columns(rows):
    gate, up = rows.chunk(2, dim=-1)
    return torch.softmax(gate, dim=-1) * up


def failing(rows):
    raise ValueError("made for other shapes")


def not_finite(rows):
    return rows.chunk(2, dim=-1)[0] * float("nan")


@pytest.mark.parametrize("function", [mixing_columns, failing, not_finite])
def test_functions_that_are_not_pointwise_are_not_taken(function):
    with unchecked():
        assert identify(function, gated=True) is None


def test_the_function_may_work_in_place():
    def function(rows):
        gate, up = rows.chunk(2, dim=-1)
        return gate.clamp_(max=7.0).mul_(torch.sigmoid(gate)).mul_(up.clamp_(-7.0, 7.0))

    assert identify(function, gated=True) == Identified(SwiGLU(limit=7.0), interleaved=False)
