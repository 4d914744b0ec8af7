"""Choices as values: checked when built, written as their repr and read back, never evaluated."""

import pytest

from moesaic import BatchedExperts, GroupedContiguous
from moesaic.errors import MoesaicError, ParseError, TuningError
from moesaic.tuning import FORMS, Choice, Product, Streamed, Vector, candidates, read_choice
from moesaic.tuning.choices import short
from moesaic.tuning.choosing import Task
from tests.tuning.examples import H200, PRODUCT, QWEN3, STREAMED, VECTOR, WGMMA, layer

EVERY = (VECTOR, STREAMED, WGMMA, PRODUCT)


@pytest.mark.parametrize("choice", EVERY, ids=short)
def test_a_choice_is_read_back_from_its_repr(choice):
    assert read_choice(repr(choice)) == choice
    assert hash(read_choice(repr(choice))) == hash(choice)
    assert eval(repr(choice)) == choice  # noqa: S307


def test_whatever_is_tried_is_read_back():
    task = Task("hopper_grouped", FORMS, QWEN3, H200)
    for rows in (1, 2, 64, 1024, 16384):
        assert all(read_choice(repr(choice)) == choice for choice in candidates(task, rows))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("__import__('os').system('true')", ParseError),
        ("Standard()", ParseError),
        ("7", ParseError),
        ("Product(group=0)", TuningError),
        ("Product(gather=1)", TuningError),
        ("Product(stages=4)", ParseError),
        ("Vector((2, 2048, 1), (8, 1024, 3, 4))", TuningError),
        ("Vector((3, 2048, 1, 4), (8, 1024, 3, 4))", TuningError),
        ("Vector(2, 3)", TuningError),
        ("Vector((2, 8, 1, 4), (8, 1024, 3, 4))", TuningError),
        ("Vector((2, 2048, 13, 4), (8, 1024, 3, 4))", TuningError),
        ("Vector((2, 2048, 0, 4), (8, 1024, 3, 4))", TuningError),
        ("Vector((2, 2048, 1, 4), (8, 1024, 3, 64))", TuningError),
        ("Vector((2, 2048, 1, 4), (8, 1024, 3, 3))", TuningError),
        ("Vector((2, 2097152, 1, 4), (8, 1024, 3, 4))", TuningError),
        ("Product(group=1025)", TuningError),
        ("Product(blocks=16)", TuningError),
        ("Product(blocks=3)", TuningError),
        ("Product(blocks=1)", TuningError),
        (repr(STREAMED).replace("rows=16", "rows=24"), TuningError),
        (repr(STREAMED).replace("rows=16", "rows=0"), TuningError),
        (repr(STREAMED).replace("rows=16", "rows=8"), TuningError),
        (repr(STREAMED).replace("more=0", "more=8"), TuningError),
        (repr(STREAMED).replace("more=0", "more=-16"), TuningError),
        (repr(STREAMED).replace("8, 128, 3", "8, 8, 3"), TuningError),
        (repr(STREAMED).replace("8, 128, 3", "8, 128, 13"), TuningError),
        (repr(STREAMED).replace("8, 128, 3", "8, 128"), TuningError),
        (repr(STREAMED).replace("8, 128, 3", "3, 128, 3"), TuningError),
        (repr(STREAMED).replace("warps=1", "warps=-1"), TuningError),
        (repr(STREAMED).replace("warps=1", "warps=64"), TuningError),
        (repr(STREAMED).replace("warps=1", "warps=3"), TuningError),
        (repr(STREAMED).replace("8, 128, 3", "8, 128, True"), TuningError),
        (repr(STREAMED).replace("more=0", "more=None"), TuningError),
        (repr(STREAMED).replace("tma=False", "tma='no'"), TuningError),
    ],
)
def test_what_is_no_choice_is_refused(text, error, unchecked):
    with pytest.raises(error) as raised:
        read_choice(text)
    assert isinstance(raised.value, MoesaicError)


def test_the_bounds_themselves_are_taken():
    for text in (
        *("Product(group=1024)", "Product(group=1)", "Vector((1, 16, 12, 32), (1, 16, 1, 1))"),
        "Streamed(16, 16, (1, 16, 12), (1, 16, 1), 32, True, True)",
    ):
        assert eval(repr(read_choice(text))) == read_choice(text)  # noqa: S307


def test_a_number_out_of_bounds_is_named_with_what_is_needed():
    with pytest.raises(TuningError, match=r"Vector.down\[3\] is 64, but it needs at most 32"):
        Vector((2, 2048, 1, 4), (8, 1024, 3, 64))
    with pytest.raises(TuningError, match=r"Streamed.more is 8, but it needs 0 or at least 16"):
        Streamed(16, 8, (8, 128, 3), (8, 128, 3), warps=1, swap=False, tma=False)


def test_what_a_layout_can_be_computed_by():
    in_order = [layer("qwen3_30b", layout=layout) for layout in (GroupedContiguous(64), BatchedExperts())]
    assert all(choice.computes(QWEN3) for choice in EVERY)
    for problem in in_order:
        assert [choice for choice in EVERY if not choice.computes(problem)] == [VECTOR]


def test_for_people():
    assert short(VECTOR) == "Vector (2, 2048, 1, 4) (8, 1024, 3, 4)"
    assert short(WGMMA) == "Streamed 32 16 (64, 64, 3) (128, 64, 3) 4 swap tma"
    assert short(Product()) == "Product gather 8 0"
    assert short(PRODUCT) == "Product 4 0"


def test_a_choice_is_abstract_and_its_forms_are_all_there():
    assert set(FORMS) == set(Choice.__subclasses__()) == {Vector, Streamed, Product}
    with pytest.raises(TypeError):
        Choice()
