"""Layouts as values, and the full table of who accepts whom."""

import itertools

import numpy as np
import pytest

from moesaic import BatchedExperts, GroupedContiguous, Layout, PaddedStandard, Standard
from moesaic.errors import LayoutError

LAYOUTS = (
    Standard(),
    PaddedStandard(),
    BatchedExperts(),
    GroupedContiguous(1),
    GroupedContiguous(4),
    GroupedContiguous(6),
    GroupedContiguous(12),
)
ACCEPTED = {
    (Standard(), Standard()),
    (PaddedStandard(), Standard()),
    (PaddedStandard(), PaddedStandard()),
    (BatchedExperts(), BatchedExperts()),
    *((GroupedContiguous(a), GroupedContiguous(b)) for a in (1, 4, 6, 12) for b in (1, 4, 6, 12) if b % a == 0),
}


@pytest.mark.parametrize(("consumer", "produced"), [*itertools.product(LAYOUTS, LAYOUTS)], ids=repr)
def test_accepts_is_directional_and_complete(consumer, produced):
    assert consumer.accepts(produced) is ((consumer, produced) in ACCEPTED)


def test_alignment_is_a_multiple_not_a_minimum():
    assert GroupedContiguous(4).accepts(GroupedContiguous(12))
    assert not GroupedContiguous(12).accepts(GroupedContiguous(4))
    assert not GroupedContiguous(4).accepts(GroupedContiguous(6))


def test_only_token_layouts_carry_routing():
    assert [layout.has_routing for layout in LAYOUTS] == [True, True, False, False, False, False, False]


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_repr_evaluates_and_values_hash(layout):
    again = eval(repr(layout))  # noqa: S307
    assert again == layout
    assert hash(again) == hash(layout)
    assert [other for other in LAYOUTS if other == layout] == [layout]


@pytest.mark.parametrize("alignment", [0, -4, True, 4.0, "4", None, 2**63], ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_alignment_is_refused_by_name(alignment):
    with pytest.raises(LayoutError, match=r"GroupedContiguous\.alignment"):
        GroupedContiguous(alignment)


@pytest.mark.usefixtures("unchecked")
def test_an_alignment_of_numpy_is_stored_as_an_int():
    assert repr(GroupedContiguous(np.int64(8))) == "GroupedContiguous(alignment=8)"


def test_the_abstract_layout_is_not_a_layout():
    with pytest.raises(TypeError):
        Layout()
