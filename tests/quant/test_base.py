"""Plain, Quantized and Scheme; the numbers of the quantized formats are tested beside each of them."""

import pytest
import torch

import moesaic
from moesaic import FP8, INT4, INT8, SCHEMES, UNQUANTIZED, Format, Granularity, Plain, Quantized, Scheme
from moesaic.errors import FormatError
from moesaic.parsing import parse
from moesaic.quant import FORMATS, GRANULARITIES
from moesaic.vocabulary import VOCABULARY
from tests.quant import examples

EXAMPLES = (Plain(), *examples.FORMATS)
WEIGHTS = torch.arange(24.0).reshape(2, 3, 4)


def test_plain_keeps_the_tensor_and_its_shape():
    stored = Plain().quantize(WEIGHTS, name="down")
    assert stored.data is WEIGHTS
    assert stored.shape == (2, 3, 4)
    assert stored.tensors == (WEIGHTS,)
    assert torch.equal(stored.expert(1).dequantize(torch.float32), WEIGHTS[1])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("stored", EXAMPLES, ids=repr)
@pytest.mark.parametrize(
    ("expert", "said"),
    [
        (-1, "expert_id is -1, but it needs a whole number of at least 0"),
        (2, "expert_id is 2, but the tensor stores 2 experts"),
        (slice(0, 1), r"expert_id is slice\(0, 1, None\), but it needs a whole number"),
        (True, "expert_id is True"),
        (1.0, "expert_id is 1.0"),
        (None, "expert_id is None"),
    ],
    ids=str,
)
def test_an_expert_is_a_number_below_that_of_experts(stored, expert, said):
    stack = stored.quantize(examples.values(2, 64, 64))
    with pytest.raises(FormatError, match=said):
        stack.expert(expert)


@pytest.mark.parametrize("stored", EXAMPLES, ids=repr)
def test_one_expert_has_no_experts(stored):
    one = stored.quantize(examples.values(2, 64, 64)).expert(1)
    with pytest.raises(FormatError, match=r"stores \(64, 64\), one matrix, .* already"):
        one.expert(1)


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


@pytest.mark.parametrize("stored", EXAMPLES, ids=repr)
def test_formats_are_values_with_a_repr_that_evaluates(stored):
    again = eval(repr(stored), {**vars(moesaic), "torch": torch})  # noqa: S307
    assert again == stored
    assert hash(again) == hash(stored)
    assert parse(repr(stored), {kind.__name__: kind for kind in VOCABULARY}) == stored
    assert [other for other in EXAMPLES if other == stored] == [stored]


def test_every_format_and_granularity_is_among_the_examples():
    assert {e.__class__ for e in EXAMPLES} == set(FORMATS)
    assert {e.granularity.__class__ for e in EXAMPLES if isinstance(e, FP8 | INT8 | INT4)} == set(GRANULARITIES)


@pytest.mark.parametrize("kind", [*FORMATS, *GRANULARITIES])
def test_formats_and_granularities_are_final_and_frozen(kind):
    assert issubclass(kind, Format | Granularity)
    assert kind.__final__
    assert kind.__dataclass_params__.frozen


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_schemes_are_values_that_the_command_line_reads(scheme):
    assert parse(repr(scheme), {kind.__name__: kind for kind in VOCABULARY}) == scheme
    assert SCHEMES.count(scheme) == 1


def test_the_abstract_format_is_not_a_format():
    with pytest.raises(TypeError):
        Format()
