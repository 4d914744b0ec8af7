"""Cases, contents and batches: values that repeat, poison that lies where nobody defined anything."""

import dataclasses
import math

import pytest
import torch

from moesaic import ACTIVATIONS, BACKENDS, MoesaicError, Reference, Standard
from moesaic.conformance import Case, base_case, cases_of
from moesaic.conformance.contents import contents_of, empty_expert, weights_of
from moesaic.conformance.feeding import CALM, NAN, Poison, feed, garbage_ids
from moesaic.conformance.moved import moved, moved_per_expert
from moesaic.conformance.unlisted import UnlistedActivation, UnlistedFormat
from moesaic.parsing import parse
from moesaic.vocabulary import VOCABULARY

KINDS = {kind.__name__: kind for kind in (*VOCABULARY, UnlistedActivation, UnlistedFormat, Case)}
ALL = tuple(dict.fromkeys(case for b in (Reference(), *BACKENDS) for case in cases_of(b)))
SMALL = [case for case in ALL if not case.is_large][::5]


def keep(values):
    return values


def test_a_case_is_read_back_from_its_repr():
    for case in ALL:
        assert parse(repr(case), KINDS) == case
        assert hash(parse(repr(case), KINDS)) == hash(case)


def test_every_case_is_served_by_its_problem_and_sizes_are_those_of_models():
    assert {case.problem.hidden_size for case in ALL} >= {65, 704, 1408, 1856, 2880}
    assert max(case.problem.num_experts for case in ALL) >= 896
    assert max(case.problem.top_k for case in ALL) == 22
    assert {case.padding for case in ALL} >= {0.0, 0.25, 1.0}


def test_contents_repeat_and_one_expert_has_no_row():
    for case in SMALL[::3]:
        first, second = contents_of(case), contents_of(case)
        assert torch.equal(first.hidden_states, second.hidden_states)
        assert torch.equal(first.ids, second.ids)
        assert torch.equal(weights_of(case).down.data.view(torch.uint8), weights_of(case).down.data.view(torch.uint8))
        assert not (first.ids == empty_expert(case)).any()
        assert (first.ids < case.problem.num_experts).all()


@pytest.mark.parametrize("value", [math.nan, 1e4, math.inf])
def test_poison_lies_in_undefined_memory_only(value):
    for case in SMALL:
        contents = contents_of(case)
        calm, poisoned = feed(case, contents, CALM, keep), feed(case, contents, Poison(value, rotation=1), keep)
        assert torch.equal(calm.live, poisoned.live)
        assert torch.equal(calm.batch.rows[calm.live], poisoned.batch.rows[poisoned.live])
        if case.fed != Standard():
            dead = poisoned.batch.rows[~poisoned.live]
            assert torch.equal(dead.nan_to_num(), torch.full_like(dead, value).nan_to_num())


def test_garbage_ids_name_no_expert():
    for experts in (1, 5, 896):
        assert not any(0 <= garbage < experts for garbage in garbage_ids(experts))
        assert len(garbage_ids(experts)) == 7
    ids = NAN.ids(20, 5)
    assert ids.dtype == torch.int32
    assert set(ids.tolist()) == set(garbage_ids(5))


@pytest.mark.parametrize("kind", ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_a_moved_constant_changes_the_answer(kind):
    rows = 3 * torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    for field in dataclasses.fields(kind):
        changed = kind(**{field.name: moved(kind, field.name)})
        assert changed != kind()
        assert not torch.allclose(changed(rows), kind()(rows), rtol=1e-4, atol=1e-4)
        if field.metadata.get("constant"):
            assert len(set(moved_per_expert(kind, field.name, 5))) == 5


@pytest.mark.parametrize(
    "fields", [{"skew": -1.0}, {"padding": 1.5}, {"num_tokens": -1}, {"seed": 0.5}, {"fed": "Standard()"}], ids=str
)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_field_is_an_error(fields):
    with pytest.raises(MoesaicError):
        dataclasses.replace(base_case(Reference.capabilities), **fields)
