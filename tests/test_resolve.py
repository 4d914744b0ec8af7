"""resolve: a pure decision that lists every backend with all its reasons, and faults that are not hidden."""

import dataclasses
import operator

import pytest
import torch

from moesaic import (
    BACKENDS,
    KNOWN_MACHINES,
    Accepts,
    Backend,
    ExpertWeights,
    Machine,
    Problem,
    Reason,
    ReasonCode,
    Reference,
    Resolution,
    SwiGLU,
    TorchGrouped,
    bind,
    known_machine,
    resolve,
)
from moesaic.errors import BackendError, MoesaicError, NoBackendError

PROBLEM = Problem(num_experts=4, top_k=2, hidden_size=40, intermediate_size=24, activation=SwiGLU())
CPU = known_machine("cpu-amx")
ANY = Reference.capabilities


class Stub(Backend[None]):
    """Abstract: what a backend needs beside its declaration."""

    def prepare(self, weights, problem):
        return None

    def canonical(self, prepared, problem):
        raise NotImplementedError

    def tensors(self, prepared):
        return ()

    def run(self, batch, prepared, problem):
        raise NotImplementedError

    def workspace(self, problem, num_rows):
        return 0


def stub(name, can=ANY, **methods):
    return type(name, (Stub,), {"name": name, "capabilities": can, **methods})()


def without(**changes):
    return dataclasses.replace(ANY, **changes)


def test_the_first_eligible_backend_runs_and_the_order_is_kept():
    first, second, third = stub("first", without(targets=())), stub("second"), stub("third")
    found = resolve(PROBLEM, CPU, (first, second, third))
    assert [verdict.backend for verdict in found.verdicts] == [first, second, third]
    assert [verdict.eligible for verdict in found.verdicts] == [False, True, True]
    assert found.eligible == (second, third)
    assert found.backend is second
    assert resolve(PROBLEM, CPU, (third, second)).backend is third


def test_every_backend_gives_all_its_reasons():
    problem = dataclasses.replace(PROBLEM, bias=True, dtype=torch.float32, weight_on_input=True)
    narrow = stub("narrow", without(dtypes=(torch.bfloat16,), bias=False, weight_on_input=False))
    found = resolve(problem, CPU, (narrow, stub("wide"), stub("none", without(activations=(), any_activation=False))))
    assert [[reason.code for reason in verdict.reasons] for verdict in found.verdicts] == [
        [ReasonCode.DTYPE, ReasonCode.BIAS, ReasonCode.WEIGHT_ON_INPUT],
        [],
        [ReasonCode.ACTIVATION],
    ]


def test_a_problem_that_nobody_serves_is_one_error_with_everything():
    backends = (stub("one", without(bias=False, targets=())), stub("two", without(max_top_k=1)))
    problem = dataclasses.replace(PROBLEM, bias=True)
    found = resolve(problem, CPU, backends)  # asking is no error
    with pytest.raises(NoBackendError) as raised:
        operator.attrgetter("backend")(found)
    message = str(raised.value)
    assert repr(problem) in message
    assert repr(CPU) in message
    assert "one: declined" in message
    assert "two: declined" in message
    for verdict in found.verdicts:
        assert verdict.reasons
        assert all(str(reason) in message for reason in verdict.reasons)
    assert isinstance(raised.value, MoesaicError)
    assert isinstance(raised.value, ValueError)


def test_no_backends_at_all_is_the_same_error():
    with pytest.raises(NoBackendError):
        operator.attrgetter("backend")(resolve(PROBLEM, CPU, ()))


def test_the_text_lists_eligible_and_declined():
    text = str(resolve(PROBLEM, CPU, (stub("good"), stub("bad", without(max_experts=2)))))
    assert "good: eligible" in text
    assert "bad: declined\n  - num_experts: needs at most 2, got 4" in text


def test_a_decision_is_a_value_and_pure():
    backends = (TorchGrouped(), Reference())
    one, again = resolve(PROBLEM, CPU, backends), resolve(PROBLEM, CPU, list(backends))
    assert one == again
    assert hash(one) == hash(again)
    assert isinstance(one, Resolution)


def test_nothing_is_probed(monkeypatch):
    def refuse(*args, **kwargs):
        pytest.fail("a choice asked the machine")

    monkeypatch.setattr(torch.cuda, "is_available", refuse)
    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    monkeypatch.setattr(Machine, "current", refuse)
    for _, machine in KNOWN_MACHINES:
        assert len(resolve(PROBLEM, machine, BACKENDS).verdicts) == len(BACKENDS)


def test_two_backends_of_one_name_are_refused():
    with pytest.raises(BackendError, match="2 backends are called 'twin'"):
        resolve(PROBLEM, CPU, (stub("twin"), stub("other"), stub("twin")))


@pytest.mark.parametrize("left_out", ["name", "capabilities"])
def test_a_declaration_is_never_inherited(left_out):
    parent = type("Parent", (Stub,), {"name": "parent", "capabilities": ANY})
    declared = {"name": "child", "capabilities": ANY}
    del declared[left_out]
    child = type("Child", (parent,), declared)
    for backends in ((child(),), (parent(), child()), (stub("x"), child())):
        with pytest.raises(BackendError, match=f"Child does not declare its own {left_out}"):
            resolve(PROBLEM, CPU, backends)


@pytest.mark.parametrize("left_out", ["name", "capabilities"])
def test_a_missing_declaration_is_the_same_error(left_out):
    declared = {"name": "bare", "capabilities": ANY}
    del declared[left_out]
    with pytest.raises(BackendError, match=f"Bare does not declare its own {left_out}"):
        resolve(PROBLEM, CPU, (type("Bare", (Stub,), declared)(),))


@pytest.mark.parametrize("fault", [ValueError("a fault"), ZeroDivisionError("a fault"), NotImplementedError()])
@pytest.mark.parametrize("method", ["reasons_against", "further_reasons"])
def test_an_exception_in_a_judgement_propagates_with_the_name(fault, method):
    def broken(self, problem, machine):
        raise fault

    with pytest.raises(type(fault)) as raised:
        resolve(PROBLEM, CPU, (stub("good"), stub("broken", **{method: broken})))
    assert raised.value is fault
    assert any("broken" in note and repr(PROBLEM) in note for note in fault.__notes__)


@pytest.mark.usefixtures("unchecked")
def test_a_forgotten_return_is_not_a_yes():
    with pytest.raises(TypeError) as raised:
        resolve(PROBLEM, CPU, (stub("silent", reasons_against=lambda self, problem, machine: None),))
    assert any("silent" in note for note in raised.value.__notes__)


def test_further_reasons_stand_beside_the_declaration():
    reason = Reason(ReasonCode.HIDDEN_SIZE, "a multiple of 3", "40")
    backend = stub("odd", without(bias=False), further_reasons=lambda self, problem, machine: (reason,))
    found = resolve(dataclasses.replace(PROBLEM, bias=True), CPU, (backend,)).verdicts[0]
    assert [r.code for r in found.reasons] == [ReasonCode.BIAS, ReasonCode.HIDDEN_SIZE]
    assert found.reasons[-1] is reason


def test_an_explicit_backend_runs_or_fails_with_its_own_reasons():
    weights = ExpertWeights.plain(torch.ones(4, 48, 40, dtype=torch.bfloat16), torch.ones(4, 40, 24).bfloat16())
    assert bind(PROBLEM, weights, backends=(Reference(),)).backend == Reference()
    only = stub("only", without(activations=(Accepts(SwiGLU),)))
    assert bind(PROBLEM, weights, backends=(only,)).backend is only
    asked = dataclasses.replace(PROBLEM, graph_capture=True)
    with pytest.raises(NoBackendError, match=r"reference: declined\n  - graph_capture") as raised:
        bind(asked, weights, backends=(Reference(),))
    assert "torch_grouped" not in str(raised.value)


def test_the_oracle_is_never_chosen_by_itself():
    assert not any(isinstance(backend, Reference) for backend in BACKENDS)
    names = [backend.name for backend in (*BACKENDS, Reference())]
    assert len(set(names)) == len(names)
