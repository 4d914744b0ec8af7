"""Plain, Quantized and Scheme; the numbers of the quantized formats are tested beside each of them."""

import pytest
import torch

from moesaic import UNQUANTIZED, Format, Plain, Quantized, Scheme
from moesaic.errors import FormatError
from moesaic.quant import FORMATS

WEIGHTS = torch.arange(24.0).reshape(2, 3, 4)


def test_plain_keeps_the_tensor_and_its_shape():
    stored = Plain().quantize(WEIGHTS, name="down")
    assert stored.data is WEIGHTS
    assert stored.shape == (2, 3, 4)
    assert stored.tensors == (WEIGHTS,)
    assert torch.equal(stored.expert(1).dequantize(torch.float32), WEIGHTS[1])


def test_plain_rounds_once_to_the_dtype_asked_for():
    third = torch.tensor([1 / 3])
    assert Plain().quantize(third).dequantize(torch.bfloat16).item() == pytest.approx(0.333984375)
    assert Plain().quantize(third).dequantize(torch.float64).item() == third.item()


@pytest.mark.parametrize("scales", [{"scale": WEIGHTS}, {"scale": WEIGHTS, "zero_point": WEIGHTS}])
def test_scales_that_the_format_does_not_name_are_refused(scales):
    with pytest.raises(FormatError, match=r"Plain\(\) stores the scales \(\).*'scale'"):
        Quantized(Plain(), WEIGHTS, scales)


@pytest.mark.parametrize("value", [None, "fp8", Plain, Scheme(Plain(), Plain())], ids=str)
@pytest.mark.parametrize("field", ["weights", "inputs"])
@pytest.mark.usefixtures("unchecked")
def test_a_scheme_is_made_of_formats(field, value):
    with pytest.raises(FormatError, match=rf"Scheme\.{field}"):
        Scheme(**{"weights": Plain(), "inputs": Plain(), field: value})


def test_schemes_built_twice_are_one_value():
    assert Scheme(Plain(), Plain()) == UNQUANTIZED
    assert len({Scheme(Plain(), Plain()), UNQUANTIZED}) == 1
    assert eval(repr(UNQUANTIZED)) == UNQUANTIZED  # noqa: S307


@pytest.mark.parametrize("kind", FORMATS)
def test_formats_are_frozen_values_with_an_evaluable_repr(kind):
    assert issubclass(kind, Format)
    assert kind() == kind()
    assert hash(kind()) == hash(kind())
    assert eval(repr(kind()), {kind.__name__: kind}) == kind()  # noqa: S307


def test_the_abstract_format_is_not_a_format():
    with pytest.raises(TypeError):
        Format()
