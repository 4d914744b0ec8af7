"""The package's own activations through the kit, at their defaults and as models set them."""

from moesaic import (
    ACTIVATIONS,
    GELU,
    GeGLU,
    Identity,
    PowLU,
    ReGLU,
    ReLU,
    ReLU2,
    SiLU,
    SiTU,
    SwiGLU,
    SwiGLUStep,
)
from moesaic.conformance import ActivationConformance
from moesaic.conformance.activation_checks import GOLDEN


class TestSwiGLU(ActivationConformance):
    activation = SwiGLU()


class TestSwiGLUOfGptOss(ActivationConformance):
    activation = SwiGLU(alpha=1.702, beta=1.0, limit=7.0)


class TestSwiGLUOfDeepSeek(ActivationConformance):
    activation = SwiGLU(limit=10.0)


class TestSwiGLUWithALowLimit(ActivationConformance):
    activation = SwiGLU(limit=3.0)


class TestSwiGLUWithALimitOfOne(ActivationConformance):
    activation = SwiGLU(limit=1.0)


class TestSwiGLUPerExpert(ActivationConformance):
    activation = SwiGLU(alpha=(1.0, 1.702), limit=(7.0, 5.0))


class TestSwiGLUStep(ActivationConformance):
    activation = SwiGLUStep()


class TestSwiGLUStepWithALimitOfOne(ActivationConformance):
    activation = SwiGLUStep(limit=1.0)


class TestSiTU(ActivationConformance):
    activation = SiTU()


class TestSiTUWithALimit(ActivationConformance):
    activation = SiTU(limit=5.0)


class TestSiTUWithoutLinearScale(ActivationConformance):
    activation = SiTU(linear_scale=None)


class TestGeGLU(ActivationConformance):
    activation = GeGLU()


class TestGeGLUOfGemma(ActivationConformance):
    activation = GeGLU("tanh")


class TestReGLU(ActivationConformance):
    activation = ReGLU()


class TestPowLU(ActivationConformance):
    activation = PowLU()


class TestPowLUWithALimit(ActivationConformance):
    activation = PowLU(limit=2.0)


class TestReLU2(ActivationConformance):
    activation = ReLU2()


class TestReLU2WithALimit(ActivationConformance):
    activation = ReLU2(limit=3.0)


class TestReLU(ActivationConformance):
    activation = ReLU()


class TestGELU(ActivationConformance):
    activation = GELU()


class TestGELUWithTanh(ActivationConformance):
    activation = GELU("tanh")


class TestSiLU(ActivationConformance):
    activation = SiLU()


class TestIdentity(ActivationConformance):
    activation = Identity()


def test_every_activation_and_every_known_value_is_tried():
    tried = {kind.activation for kind in ActivationConformance.__subclasses__() if kind.__module__ == __name__}
    assert {type(activation) for activation in tried} == set(ACTIVATIONS)
    assert set(GOLDEN) <= tried
