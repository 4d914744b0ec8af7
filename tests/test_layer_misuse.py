"""What newcomers do to a layer: wrong kinds of things, copies, a router of another size, a backend that errs."""

import copy
import dataclasses
import pickle

import pytest
import torch

from moesaic import BACKENDS, Cpu, ExpertWeights, Local, MoE, Reference, Routing, StandardBatch, bind, resolve
from moesaic.errors import (
    BackendError,
    BatchError,
    GradientError,
    MachineError,
    ProblemError,
    RouterError,
    WeightsError,
)
from moesaic.routers import SoftmaxTopK
from tests.backends import example

CASE = example.problem()


def tokens(num_tokens, case=CASE):
    return StandardBatch(example.rows(case, num_tokens), example.routing(case, num_tokens))


@pytest.mark.parametrize(
    ("backend", "dtype"), example.subjects_and([torch.float32, torch.bfloat16]), ids=example.subject_id
)
def test_bound_experts_are_copied_and_pickled_through_their_canonical_weights(backend, dtype):
    case = dataclasses.replace(CASE, dtype=dtype, bias=True)
    experts = bind(case, example.weights(case), backends=(backend,))
    batch = tokens(7, case)
    with torch.no_grad():
        expected = experts(batch)
        for again in (copy.deepcopy(experts), pickle.loads(pickle.dumps(experts))):  # noqa: S301 - our own bytes
            assert again.backend == experts.backend
            assert torch.equal(again(batch), expected)


def test_a_router_for_experts_that_nobody_holds_is_refused():
    experts = bind(CASE, example.weights(CASE))
    with pytest.raises(RouterError, match="is for 6 experts, but Local reaches 5"):
        MoE(SoftmaxTopK(6, 2), Local(), experts)
    with pytest.raises(RouterError, match=r"chooses 4 experts a token.*top_k=3"):
        MoE(SoftmaxTopK(5, 4), Local(), experts)
    assert "SoftmaxTopK" in repr(MoE(SoftmaxTopK(5, 3), Local(), experts))


@pytest.mark.parametrize("wrong", [torch.zeros(3, 71), torch.zeros(3, 72, dtype=torch.float64)], ids=str)
def test_a_backend_that_returns_something_else_is_named(monkeypatch, wrong):
    experts = bind(CASE, example.weights(CASE), backends=(Reference(),))
    monkeypatch.setattr(Reference, "run", lambda *_: wrong)
    with pytest.raises(BackendError, match="the backend reference returned"):
        experts(tokens(3))


def test_things_of_the_wrong_kind_are_named(unchecked):
    weights, experts = example.weights(CASE), bind(CASE, example.weights(CASE))
    for call, error, words in (
        (lambda: bind(weights, CASE), ProblemError, "bind.problem"),
        (lambda: bind(CASE, (1, 2)), WeightsError, "ExpertWeights.plain"),
        (lambda: bind(CASE, weights, backends=Reference()), BackendError, "a sequence of backends"),
        (lambda: bind(CASE, weights, backends="cpu"), BackendError, "a sequence of backends"),
        (lambda: bind(CASE, weights, backends=(Reference,)), BackendError, "give an instance"),
        (lambda: resolve(CASE, "h200", BACKENDS), MachineError, "known_machine"),
        (lambda: MoE(experts, Local(), SoftmaxTopK(5, 2)), RouterError, "MoE.router"),
        (lambda: MoE(SoftmaxTopK, Local(), experts), RouterError, "MoE.router"),
        (lambda: MoE(SoftmaxTopK(5, 2), Local, experts), ProblemError, "Local()"),
        (lambda: experts(torch.zeros(3, 72)), BatchError, "StandardBatch"),
        (lambda: ExpertWeights.plain([1], torch.zeros(1)), WeightsError, "gate_up is a list"),
        (lambda: Routing([[0]], torch.zeros(1, 1)), BatchError, "topk_ids is a list"),
        (lambda: StandardBatch([[0.0]], example.routing(CASE, 1)), BatchError, "hidden_states is a list"),
    ):
        with pytest.raises(error, match=words.replace("(", "\\(").replace(")", "\\)")):
            call()


def test_a_weight_that_becomes_trainable_after_binding_is_noticed():
    given = example.weights(CASE)
    experts = bind(CASE, given, backends=(Cpu(),))
    experts(tokens(3))
    given.down.data.requires_grad_()
    with pytest.raises(GradientError, match="differentiable=True"):
        experts(tokens(3))
    with torch.no_grad():
        experts(tokens(3))
