"""bind, Experts and MoE: what is refused, what flows through, and that calls neither meet nor touch their inputs."""

import copy
import dataclasses
import threading
from typing import ClassVar

import numpy as np
import pytest
import torch

from moesaic import (
    Backend,
    BatchedBatch,
    BatchedExperts,
    Capabilities,
    Dispatcher,
    ExpertWeights,
    GroupedBatch,
    GroupedContiguous,
    Local,
    MoE,
    PaddedStandard,
    PaddedStandardBatch,
    Reference,
    Router,
    Routing,
    Standard,
    StandardBatch,
    SwiGLU,
    TorchGrouped,
    bind,
    known_machine,
)
from moesaic.errors import (
    BatchError,
    GradientError,
    NoBackendError,
    ProblemError,
    WeightsError,
)
from tests.backends import example, feeding, numpy_oracle
from tests.tolerance import assert_close

LAYOUTS = (Standard(), PaddedStandard(), GroupedContiguous(4), BatchedExperts())
CASE = example.problem()
every_backend = pytest.mark.parametrize("backend", example.SUBJECTS, ids=lambda backend: backend.name)


@dataclasses.dataclass(frozen=True)
class Frozen(Backend[ExpertWeights]):
    """The reference, declared without gradients and without fewer slots than it has."""

    name: ClassVar[str] = "frozen"
    capabilities: ClassVar[Capabilities] = dataclasses.replace(Reference.capabilities, differentiable=False)

    def prepare(self, weights, problem):
        return weights

    def canonical(self, prepared, problem):
        return prepared

    def tensors(self, prepared):
        return prepared.tensors

    def run(self, batch, prepared, problem):
        return Reference().run(batch, prepared, problem)

    def workspace(self, problem, num_rows):
        return 0


class TopTwo(Router):
    """Softmax over all, the two best."""

    def __call__(self, logits, token_ids=None):
        weights, ids = torch.softmax(logits.float(), dim=-1).topk(2)
        return Routing(ids, weights)


class WithIdentity(TopTwo):
    """The same, and 0.3 of the hidden state."""

    def __call__(self, logits, token_ids=None):
        routing = super().__call__(logits)
        return Routing(routing.topk_ids, routing.topk_weights, torch.full((len(logits),), 0.3))


@dataclasses.dataclass(frozen=True)
class Elsewhere(Dispatcher[None]):
    """Produces another layout than the experts were bound with."""

    layout = PaddedStandard()
    synchronises = False

    def num_experts(self, num_local):
        return num_local

    def dispatch(self, hidden_states, routing):
        raise NotImplementedError

    def combine(self, rows, receipt):
        raise NotImplementedError


def tokens(num_tokens, case=CASE):
    return StandardBatch(example.rows(case, num_tokens), example.routing(case, num_tokens))


def routing(num_tokens=3, top_k=3):
    return Routing(torch.zeros(num_tokens, top_k, dtype=torch.int32), torch.ones(num_tokens, top_k))


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


# bind


def test_weights_that_do_not_fit_are_refused_before_a_backend_is_asked():
    weights = example.weights(dataclasses.replace(CASE, intermediate_size=48))
    with pytest.raises(WeightsError, match=r"gate_up is \(5, 96, 72\).*\(5, 80, 72\)"):
        bind(CASE, weights, backends=())


def test_nobody_serving_is_an_error_with_the_reasons():
    case = example.problem(hidden_size=73)
    with pytest.raises(NoBackendError, match=r"torch_grouped: declined\n  - hidden_size"):
        bind(case, example.weights(case), backends=(TorchGrouped(),))


def test_weights_on_another_device_than_the_machine_are_refused():
    with pytest.raises(WeightsError, match=r"weights are on cpu, but the machine is a cuda device"):
        bind(CASE, example.weights(CASE), machine=known_machine("h200"))
    assert bind(CASE, example.weights(CASE), machine=known_machine("cpu-avx2")).resolution.machine.name


def test_a_bound_layer_says_what_it_is():
    experts = bind(CASE, example.weights(CASE))
    assert repr(experts) == f"Experts({experts.backend!r}, {CASE!r})"
    assert experts.resolution.backend is experts.backend
    assert experts.workspace(1) > 0


@every_backend
def test_binding_changes_no_weight_and_gives_them_back(backend):
    case = example.problem(backend=backend, bias=True)
    weights = example.weights(case)
    before = [tensor.clone() for tensor in weights.tensors]
    experts = bind(case, weights, backends=(backend,))
    experts(tokens(7, case))
    for got, was, now in zip(experts.canonical().tensors, before, weights.tensors, strict=True):
        assert torch.equal(got, was)
        assert torch.equal(now, was)


# Experts


@pytest.mark.parametrize(
    ("layout", "batch", "says"),
    [
        (Standard(), PaddedStandardBatch(torch.ones(3, 72), routing()), r"PaddedStandard\(\).*layout=Standard\(\)"),
        (Standard(), GroupedBatch(torch.ones(3, 72), i32(*[0] * 5), i32(*[0] * 5)), "GroupedContiguous.*Standard"),
        (GroupedContiguous(4), GroupedBatch(torch.ones(4, 72), i32(*[0] * 5), i32(*[0] * 5), 2), "alignment=2.*=4"),
        (BatchedExperts(), StandardBatch(torch.ones(3, 72), routing()), r"Standard\(\).*layout=BatchedExperts\(\)"),
        (Standard(), StandardBatch(torch.ones(3, 80), routing()), "80 columns.*hidden_size=72"),
        (Standard(), StandardBatch(torch.ones(3, 72).double(), routing()), "torch.float64.*dtype=torch.float32"),
        (Standard(), StandardBatch(torch.ones(3, 72).bfloat16(), routing()), "torch.bfloat16.*dtype=torch.float32"),
        (Standard(), StandardBatch(torch.ones(3, 72), routing(top_k=4)), "4 slots a token.*top_k=3"),
        (
            GroupedContiguous(),
            GroupedBatch(torch.ones(4, 72), i32(0, 0), i32(0, 0)),
            "counts has 2 entries.* 5 experts",
        ),
        (BatchedExperts(), BatchedBatch(torch.ones(6, 4, 72), i32(*[0] * 6)), "counts has 6 entries.* 5 experts"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_batch_of_another_problem_is_refused(layout, batch, says):
    case = example.problem(layout=layout)
    with pytest.raises(BatchError, match=says):
        bind(case, example.weights(case))(batch)


def test_rows_on_another_device_are_refused():
    meta = Routing(torch.zeros(3, 3, dtype=torch.int32, device="meta"), torch.ones(3, 3, device="meta"))
    with pytest.raises(BatchError, match=r"rows are on meta.*weights were bound on cpu"):
        bind(CASE, example.weights(CASE))(StandardBatch(torch.ones(3, 72, device="meta"), meta))


@every_backend
def test_a_batch_that_promises_more_than_asked_is_served(backend):
    """Standard rows to PaddedStandard experts, and rows aligned to 12 to experts that need 4."""
    case = example.problem(backend=backend)
    padded, grouped = (dataclasses.replace(case, layout=layout) for layout in (PaddedStandard(), GroupedContiguous(4)))
    weights = example.weights(case)
    one = bind(padded, weights, backends=(backend,))(tokens(7, case))
    assert torch.equal(one, bind(case, weights, backends=(backend,))(tokens(7, case)))
    rows = example.rows(case, 24)
    batch = GroupedBatch(rows, i32(0, 0, 12, 12, 12), i32(0, 5, 0, 0, 7), alignment=12)
    looser = GroupedBatch(rows, batch.offsets, batch.counts, alignment=4)
    experts = bind(grouped, weights, backends=(backend,))
    assert torch.equal(experts(batch)[12:19], experts(looser)[12:19])


@every_backend
@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_inputs_are_unchanged_never_shared_and_calls_repeat(backend, layout):
    case = example.problem(backend=backend, layout=layout, bias=True)
    given = example.weights(case)
    batch, _, defined = feeding.feed(case, given, 1e4)
    live = torch.from_numpy(defined)
    held = [*vars(batch).values(), *vars(getattr(batch, "routing", batch)).values(), *given.tensors]
    inputs = [value for value in held if isinstance(value, torch.Tensor)]
    before = copy.deepcopy(inputs)
    experts = bind(case, given, backends=(backend,))
    first, second = experts(batch), experts(batch)
    assert torch.equal(first[live], second[live])
    assert all(torch.equal(was, now) or was.isnan().any() for was, now in zip(before, inputs, strict=True))
    storages = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    assert first.untyped_storage().data_ptr() not in {*storages, second.untyped_storage().data_ptr()}


@every_backend
@pytest.mark.parametrize("ids", [[[0, 2**32 + 1]], [[-(2**40), 0]], [[0, 2**63 - 1]], [[2**32, 0]]], ids=str)
def test_an_int64_id_far_out_of_range_adds_nothing(backend, ids):
    case = example.problem(backend=backend)
    experts = bind(case, example.weights(case), backends=(backend,))
    rows, weights = example.rows(case, 1), torch.tensor([[0.5, 0.5]])
    alone = StandardBatch(rows, Routing(torch.tensor([[0]]), torch.tensor([[0.5]])))
    torch.testing.assert_close(experts(StandardBatch(rows, Routing(torch.tensor(ids), weights))), experts(alone))


@every_backend
def test_no_tokens_and_no_slots(backend):
    case = example.problem(backend=backend)
    experts = bind(case, example.weights(case), backends=(backend,))
    assert experts(tokens(0, case)).shape == (0, 72)
    rows = torch.ones(2, 72, dtype=case.dtype)
    assert torch.equal(experts(StandardBatch(rows, routing(2, 0))), torch.zeros_like(rows))


def leaf(*shape):
    return torch.ones(*shape).requires_grad_()


@pytest.mark.parametrize("which", ["rows", "topk_weights", "weights"])
def test_gradients_asked_of_a_backend_without_them_are_an_error(which):
    weights = ExpertWeights.plain(torch.ones(5, 80, 72), torch.ones(5, 72, 40))
    if which == "weights":
        weights = ExpertWeights.plain(leaf(5, 80, 72), torch.ones(5, 72, 40))
    experts = bind(CASE, weights, backends=(Frozen(),))
    rows = leaf(3, 72) if which == "rows" else torch.ones(3, 72)
    router_weights = leaf(3, 3) if which == "topk_weights" else torch.ones(3, 3)
    batch = StandardBatch(rows, Routing(torch.zeros(3, 3, dtype=torch.int32), router_weights))
    with pytest.raises(GradientError, match=r"frozen computes no gradients.*no_grad"):
        experts(batch)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert not experts(batch).requires_grad


@pytest.mark.parametrize("backend", [TorchGrouped(), Reference()], ids=lambda backend: backend.name)
def test_gradients_reach_rows_router_and_weights(backend):
    case = example.problem(differentiable=True)
    gate_up, down = leaf(5, 80, 72), leaf(5, 72, 40)
    experts = bind(case, ExpertWeights.plain(gate_up, down), backends=(backend,))
    rows, weights = leaf(2, 72), leaf(2, 2)
    experts(StandardBatch(rows, Routing(torch.tensor([[0, 1], [4, -1]]), weights))).sum().backward()
    assert weights.grad.abs().gt(0).tolist() == [[True, True], [True, False]]
    assert rows.grad.abs().sum() > 0
    for tensor in (gate_up, down):
        assert [expert.abs().sum().item() > 0 for expert in tensor.grad] == [True, True, False, False, True]


@every_backend
def test_layers_in_threads_do_not_meet(backend):
    cases = [
        example.problem(backend=backend),
        example.problem(backend=backend, activation=SwiGLU(limit=0.5), bias=True),
    ]
    layers = [bind(case, example.weights(case, seed=i), backends=(backend,)) for i, case in enumerate(cases)]
    batches = [tokens(5 + i, cases[0]) for i in range(8)]
    wanted = [[layer(batch) for batch in batches] for layer in layers]
    failures, barrier = [], threading.Barrier(4)

    def call(which):
        barrier.wait()
        for _ in range(5):
            for batch, expected in zip(batches, wanted[which % 2], strict=True):
                if not torch.equal(layers[which % 2](batch), expected):
                    failures.append(which)

    threads = [threading.Thread(target=call, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# MoE


def expected(hidden, logits, given, case=CASE):
    """Softmax, two best and the experts, in float64."""
    p = np.exp(logits.double().numpy())
    p /= p.sum(-1, keepdims=True)
    ids = np.argsort(-p, axis=-1, kind="stable")[:, :2]
    oracle = example.as_oracle(case, given)
    return numpy_oracle.tokens(hidden.double().numpy(), ids, np.take_along_axis(p, ids, -1), oracle)


@pytest.fixture
def layer():
    given = example.weights(CASE)
    generator = torch.Generator().manual_seed(5)
    hidden, logits = torch.randn(7, 72, generator=generator), torch.randn(7, 5, generator=generator)
    return bind(CASE, given), hidden, logits, expected(hidden, logits, given)


def test_a_layer_is_router_experts_and_sum(layer):
    experts, hidden, logits, wanted = layer
    assert_close(MoE(TopTwo(), Local(), experts)(hidden, logits), wanted, torch.float32)


def test_the_shared_expert_is_added_and_sees_the_same_input(layer):
    experts, hidden, logits, wanted = layer
    shared = torch.nn.Linear(72, 72, bias=False)
    moe = MoE(TopTwo(), Local(), experts, shared=shared)
    with torch.no_grad():
        got = moe(hidden, logits)
    assert_close(got, wanted + hidden.double().numpy() @ shared.weight.detach().double().numpy().T, torch.float32)
    assert list(moe.parameters()) == [shared.weight]
    assert list(MoE(TopTwo(), Local(), experts, shared=torch.relu).parameters()) == []


def test_identity_weights_add_the_hidden_state(layer):
    experts, hidden, logits, wanted = layer
    got = MoE(WithIdentity(), Local(), experts)(hidden, logits)
    assert_close(got, wanted + 0.3 * hidden.double().numpy(), torch.float32)


def test_leading_dimensions_come_back(layer):
    experts, hidden, logits, _ = layer
    moe = MoE(WithIdentity(), Local(), experts, shared=torch.sin)
    flat = moe(hidden[:6], logits[:6])
    assert torch.equal(moe(hidden[:6].view(2, 3, 72), logits[:6].view(2, 3, 5)), flat.view(2, 3, 72))
    torch.testing.assert_close(moe(hidden[0], logits[0]), flat[0])
    assert moe(hidden[:0].view(2, 0, 72), logits[:0].view(2, 0, 5)).shape == (2, 0, 72)


def test_nothing_of_the_input_is_changed_or_shared(layer):
    experts, hidden, logits, _ = layer
    before = hidden.clone(), logits.clone()
    for shared in (None, torch.zeros_like):
        got = MoE(WithIdentity(), Local(), experts, shared=shared)(hidden, logits)
        assert got.untyped_storage().data_ptr() != hidden.untyped_storage().data_ptr()
    assert torch.equal(hidden, before[0])
    assert torch.equal(logits, before[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_output_has_the_dtype_of_the_hidden_states(dtype):
    case = example.problem(dtype=dtype)
    experts = bind(case, example.weights(case))
    moe = MoE(WithIdentity(), Local(), experts, shared=lambda rows: rows.float())
    assert moe(example.rows(case, 3), torch.randn(3, 5)).dtype == dtype


def test_float64_loses_nothing_to_the_identity():
    case = example.problem(dtype=torch.float64)
    experts = bind(case, example.weights(case), backends=(Reference(),))
    hidden, logits = example.rows(case, 3), torch.randn(3, 5)
    plain = MoE(TopTwo(), Local(), experts)(hidden, logits)
    got = MoE(WithIdentity(), Local(), experts)(hidden, logits)
    torch.testing.assert_close(got, plain + torch.tensor(0.3).double() * hidden, rtol=1e-13, atol=1e-13)


def test_a_dispatcher_of_another_layout_is_refused(layer):
    with pytest.raises(ProblemError, match=r"Elsewhere.*PaddedStandard.*layout=Standard"):
        MoE(TopTwo(), Elsewhere(), layer[0])


@pytest.mark.usefixtures("unchecked")
def test_logits_for_another_number_of_tokens_are_refused(layer):
    experts, hidden, logits, _ = layer
    with pytest.raises(BatchError, match="7 rows, but the routing is for 6 tokens"):
        MoE(TopTwo(), Local(), experts)(hidden, logits[:6].clone())
