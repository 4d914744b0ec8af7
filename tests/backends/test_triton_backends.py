"""TritonGrouped and HopperGrouped without a GPU: what they declare, keep of the weights, and state of their memory."""

import dataclasses

import pytest
import torch

from moesaic import (
    ACTIVATIONS,
    BACKENDS,
    FP8,
    Accepts,
    BatchedExperts,
    ExpertWeights,
    GroupedContiguous,
    HopperGrouped,
    OutputNorm,
    PaddedStandard,
    PerTensor,
    Plain,
    ReasonCode,
    Scheme,
    Standard,
    SwiGLU,
    TritonGrouped,
    known_machine,
    resolve,
)
from moesaic.models import MODELS, known_model
from moesaic.tuning import Always, CostModel, Product, Tuned
from tests.backends import example, generated

TRITON, HOPPER = TritonGrouped(), HopperGrouped()
both = pytest.mark.parametrize("backend", [TRITON, HOPPER], ids=lambda backend: backend.name)
QWEN3 = known_model("qwen3-30b-a3b").problem
H200 = known_machine("h200")


def codes(backend, problem=QWEN3, machine=H200):
    return [reason.code for reason in backend.reasons_against(problem, machine)]


def card(architecture):
    return dataclasses.replace(H200, architecture=architecture)


@pytest.mark.parametrize(
    ("architecture", "triton", "hopper"),
    [
        ("sm_75", False, False),
        ("sm_80", True, False),
        ("sm_89", True, False),
        ("sm_90", True, True),
        ("sm_100", True, False),
        ("sm_120", True, False),
    ],
)
def test_where_they_run(architecture, triton, hopper):
    for backend, runs in ((TRITON, triton), (HOPPER, hopper)):
        assert codes(backend, machine=card(architecture)) == ([] if runs else [ReasonCode.ARCHITECTURE])


@both
def test_a_cpu_is_declined(backend):
    machine = dataclasses.replace(known_machine("cpu-amx"), packages=H200.packages)
    assert codes(backend, machine=machine) == [ReasonCode.DEVICE]


@both
@pytest.mark.parametrize(
    ("packages", "found"),
    [((), [ReasonCode.PACKAGE]), ((("triton", "3.5.1"),), [ReasonCode.PACKAGE]), ((("triton", "3.6.0"),), [])],
    ids=str,
)
def test_triton_has_to_be_there_and_new_enough(backend, packages, found):
    assert codes(backend, machine=dataclasses.replace(H200, packages=packages)) == found


@both
@pytest.mark.parametrize(
    ("code", "changes"),
    [
        (ReasonCode.HIDDEN_SIZE, {"hidden_size": 2052}),
        (ReasonCode.INTERMEDIATE_SIZE, {"intermediate_size": 772}),
        (ReasonCode.DTYPE, {"dtype": torch.float64}),
        (ReasonCode.SCHEME, {"scheme": Scheme(FP8(PerTensor()), Plain())}),
        (ReasonCode.OUTPUT_NORM, {"output_norm": OutputNorm()}),
        (ReasonCode.GRADIENT, {"differentiable": True}),
        (ReasonCode.NUM_EXPERTS, {"num_experts": 4097, "intermediate_size": 8}),
    ],
    ids=str,
)
def test_what_is_not_served(backend, code, changes):
    assert codes(backend, dataclasses.replace(QWEN3, **changes)) == [code]


@both
@pytest.mark.parametrize("flag", ["bias", "weight_on_input", "inactive_slots", "duplicate_ids", "graph_capture"])
def test_what_is_served(backend, flag):
    assert codes(backend, dataclasses.replace(QWEN3, **{flag: True, "deterministic": True})) == []


def test_layouts():
    everywhere = (Standard(), PaddedStandard(), GroupedContiguous(64), GroupedContiguous(128))
    for layout in everywhere:
        assert codes(TRITON, dataclasses.replace(QWEN3, layout=layout)) == []
        assert codes(HOPPER, dataclasses.replace(QWEN3, layout=layout)) == []
    for layout in (GroupedContiguous(1), GroupedContiguous(48), BatchedExperts()):
        assert codes(TRITON, dataclasses.replace(QWEN3, layout=layout)) == []
        assert codes(HOPPER, dataclasses.replace(QWEN3, layout=layout)) == [ReasonCode.LAYOUT]


@both
def test_every_activation_is_served_with_every_constant(backend):
    declared = backend.capabilities.activations
    assert {(a.activation, *sorted(a.scalar), *sorted(a.per_expert)) for a in declared} == {
        (a.activation, *sorted(a.scalar), *sorted(a.per_expert)) for a in map(Accepts.everything, ACTIVATIONS)
    }
    for activation in generated.activations(backend):
        assert codes(backend, dataclasses.replace(QWEN3, num_experts=5, top_k=2, activation=activation)) == []


def test_every_declared_activation_has_an_expression():
    pytest.importorskip("triton")
    from moesaic.kernels.activation_expressions import EXPRESSIONS  # noqa: PLC0415

    assert {accepts.activation for accepts in TRITON.capabilities.activations} == set(EXPRESSIONS)


def test_every_known_model_runs_on_them():
    for model in MODELS:
        problem = dataclasses.replace(model.problem, output_norm=None)
        assert resolve(problem, H200, BACKENDS).backend == HOPPER
        assert resolve(problem, card("sm_80"), BACKENDS).backend == TRITON


RULES = (Tuned(), CostModel(products=False), Always(Product()), Always(Product(gather=False)))


@pytest.mark.parametrize("backend", [TRITON, *map(HopperGrouped, RULES)], ids=repr)
@pytest.mark.parametrize("layout", [Standard(), PaddedStandard(), GroupedContiguous(64), BatchedExperts()], ids=str)
@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "gpt-oss-20b", "mixtral-8x7b"])
def test_stated_memory_grows_with_rows_and_holds_what_cannot_be_avoided(backend, layout, model):
    problem = dataclasses.replace(known_model(model).problem, layout=layout)
    stated = [backend.workspace(problem, rows) for rows in (*range(1, 400), *range(400, 20000, 111))]
    assert stated == sorted(stated)
    for rows in (1, 64, 500, 4096):  # as the conformance kit has it
        assert backend.workspace(problem, 2 * rows) <= 2 * backend.workspace(problem, rows) + 2**16
    pairs = 4096 * (problem.top_k if layout.has_routing else 1)
    held = pairs * problem.intermediate_size + 4096 * problem.hidden_size
    assert backend.workspace(problem, 4096) > held * problem.dtype.itemsize


@pytest.fixture
def case():
    return example.problem(dtype=torch.bfloat16, bias=True, activation=SwiGLU(limit=(1.0, 2.0, 3.0, 4.0, 5.0)))


@both
def test_dense_weights_are_used_as_they_are(backend, case):
    pytest.importorskip("triton")
    given = example.weights(case)
    prepared = backend.prepare(given, case)
    held = backend.tensors(prepared)
    assert [t.data_ptr() for t in held[:4]] == [t.data_ptr() for t in given.tensors]
    assert [t.tolist() for t in held[4:]] == [[1.0, 2.0, 3.0, 4.0, 5.0]]  # the activation's constants for each expert


@both
@pytest.mark.parametrize("view", ["transposed", "sliced", "shifted"])
def test_other_weights_are_copied_and_come_back_bit_for_bit(backend, case, view):
    pytest.importorskip("triton")
    plain = example.weights(case)
    viewed = {name: VIEWS[view](getattr(plain, name).data) for name in ("gate_up", "down")}
    biases = {name: VIEWS[view](getattr(plain, name)) for name in ("gate_up_bias", "down_bias")}
    given = ExpertWeights.plain(**viewed, **biases)
    before = [t.clone() for t in given.tensors]
    prepared = backend.prepare(given, case)
    for values in (prepared.weights.gate_up, prepared.weights.down):
        assert values.is_contiguous()
        assert values.data_ptr() % 16 == 0
    canonical = backend.canonical(prepared, case)
    canonical.check(case)
    for back, same, first in zip(canonical.tensors, given.tensors, before, strict=True):
        assert torch.equal(back, first)
        assert torch.equal(same, first)
    assert prepared.weights.gate_up.data_ptr() != given.gate_up.data.data_ptr()


VIEWS = {
    "transposed": lambda t: t.mT.contiguous().mT if t.dim() == 3 else t.T.contiguous().T,
    "sliced": lambda t: torch.nn.functional.pad(t, (1, 2))[..., 1:-2],
    "shifted": lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape),
}


@both
def test_parameters_are_held_without_their_gradients(backend, case):
    pytest.importorskip("triton")
    given = example.weights(case)
    for t in given.tensors:
        t.requires_grad_()
    assert not any(t.requires_grad for t in backend.tensors(backend.prepare(given, case)))
