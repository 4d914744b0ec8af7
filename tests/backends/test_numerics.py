"""Every claim of every backend against the numpy oracle; the kit tries undefined memory (tests/cli/test_conform.py)."""

import dataclasses

import pytest
import torch

from moesaic import Machine, bind
from tests.backends import example, feeding, generated
from tests.tolerance import assert_close

SUBJECTS = example.SUBJECTS
CLAIMS = [(b, p) for b in SUBJECTS for p in generated.problems(b)]
CPU = Machine.current("cpu")


def claim_id(value):
    return value.name if value in SUBJECTS else generated.identify(value)


@pytest.mark.parametrize(("backend", "case"), CLAIMS, ids=claim_id)
def test_claim_equals_the_oracle(backend, case):
    assert backend.reasons_against(case, CPU) == ()
    given = example.weights(case)
    batch, expected, live = feeding.feed(case, given, poison=float("nan"))
    with torch.no_grad():
        got = bind(case, given, backends=(backend,))(batch)
    assert tuple(got.shape) == tuple(batch.rows.shape)
    assert_close(got[torch.tensor(live)], expected[live], case.dtype)


@pytest.mark.parametrize("backend", SUBJECTS, ids=lambda b: b.name)
def test_every_declared_activation_and_layout_is_among_the_claims(backend):
    claimed = [p for b, p in CLAIMS if b is backend]
    assert {type(p.activation) for p in claimed} == {a.activation for a in backend.capabilities.activations}
    assert {p.dtype for p in claimed} == set(backend.capabilities.dtypes)
    assert {p.layout for p in claimed} == set(generated.produced_layouts(backend))


@pytest.mark.parametrize("backend", SUBJECTS, ids=lambda b: b.name)
def test_canonical_weights_come_back_bit_for_bit(backend):
    for dtype in backend.capabilities.dtypes:
        case = dataclasses.replace(example.problem(dtype=dtype, bias=True), hidden_size=80)
        given = example.weights(case)
        before = [t.clone() for t in given.tensors]
        experts = bind(case, given, backends=(backend,))
        returned = experts.canonical()
        returned.check(case)
        for original, kept, again in zip(before, given.tensors, returned.tensors, strict=True):
            assert torch.equal(original, kept)
            assert torch.equal(original, again)
