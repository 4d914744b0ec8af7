"""Reference under every named scheme: numbers against the oracle, scales from live rows, NaN, zeros, gradients."""

import dataclasses

import numpy as np
import pytest
import torch

from moesaic import (
    FP8,
    INT8,
    NVFP4,
    SCHEMES,
    BatchedBatch,
    BatchedExperts,
    ExpertWeights,
    GroupedBatch,
    GroupedContiguous,
    Machine,
    PaddedStandard,
    PaddedStandardBatch,
    PerGroup,
    PerTensor,
    Plain,
    Problem,
    Quantized,
    ReasonCode,
    Reference,
    ReLU2,
    Routing,
    Scheme,
    StandardBatch,
    SwiGLU,
    bind,
)
from moesaic.errors import GradientError
from moesaic.quant.schemes import FP8_BLOCK, MXFP4_MXFP8, NVFP4_NVFP4
from tests.backends import example, feeding
from tests.backends.peak_memory import peak_bytes
from tests.quant import layer_oracle
from tests.tolerance import assert_close

CPU = Machine.current("cpu")
TENSOR_WIDE = [s for s in SCHEMES if s.inputs in (FP8(PerTensor()), NVFP4())]

each_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=repr)


def layer(case, seed=0):
    """(bound layer, the same as the oracle reads it) with weights whose experts differ in size."""
    plain = example.weights(dataclasses.replace(case, scheme=Scheme(Plain(), Plain())), seed)
    for e in range(case.num_experts):
        plain.gate_up.data[e] *= 1 + e / 2
    oracle = example.as_oracle(case, plain)
    parts = 2 if case.activation.gated else 1
    oracle["gate_up"] = layer_oracle.read_weights(oracle["gate_up"], case.scheme.weights, parts)
    oracle["down"] = layer_oracle.read_weights(oracle["down"], case.scheme.weights, 1)
    return bind(case, plain.quantize(case.scheme.weights), backends=(Reference(),)), oracle


def check_tokens(case, count=9):
    """Compare in float64, where no code can differ by a rounding of the sums before it."""
    experts, oracle = layer(case)
    rows, routing = example.rows(case, count), example.routing(case, count)
    # In float64 the rows are those of float32, as the formats read them.
    rows = rows.float().double()
    expected = layer_oracle.tokens(
        rows.numpy(), routing.topk_ids.numpy(), routing.topk_weights.numpy(), oracle, case.scheme.inputs
    )
    assert_close(experts(StandardBatch(rows, routing)), expected, torch.float64)


@pytest.mark.parametrize(
    "changes",
    [{}, {"weight_on_input": True}, {"bias": True, "activation": ReLU2()}, {"activation": SwiGLU(1.702, 1.0, 7.0)}],
    ids=str,
)
@each_scheme
def test_a_scheme_is_what_the_oracle_computes(scheme, changes):
    check_tokens(example.problem(dtype=torch.float64, scheme=scheme, **changes))


@each_scheme
def test_short_last_blocks_and_a_boundary_within_a_block(scheme):
    """I = 192 is a block of 128 and one of 64; H = 160 one of 128 and one of 32 (fault F56)."""
    sizes = {"hidden_size": 160, "intermediate_size": 192, "num_experts": 3, "top_k": 2}
    check_tokens(example.problem(dtype=torch.float64, scheme=scheme, **sizes), count=3)


@pytest.mark.parametrize("layout", [GroupedContiguous(8), BatchedExperts()], ids=repr)
@each_scheme
def test_rows_by_expert_are_what_the_oracle_computes(scheme, layout):
    case = example.problem(dtype=torch.float64, scheme=scheme, layout=layout)
    experts, oracle = layer(case)
    batch, _, live = feeding.feed(case, example.weights(case), poison=float("nan"))
    owner = np.repeat(np.arange(len(feeding.COUNTS)), feeding.COUNTS)
    with torch.no_grad():
        batch.rows.copy_(batch.rows.float())
        expected = layer_oracle.expert_rows(batch.rows.numpy()[live], owner, oracle, scheme.inputs)
        assert_close(experts(batch)[torch.tensor(live)], expected, torch.float64)


@pytest.mark.parametrize("layout", [PaddedStandard(), GroupedContiguous(8), BatchedExperts()], ids=repr)
@each_scheme
def test_undefined_rows_change_no_bit(scheme, layout):
    """A large finite number shows a scale taken from undefined rows, which a NaN would not (fault F19)."""
    case = example.problem(scheme=scheme, layout=layout)
    experts, _ = layer(case)
    batch, _, live = feeding.feed(case, example.weights(case), poison=0.0)
    outputs, live = [experts(batch)[live]], torch.tensor(live)
    for poison in (float("nan"), 1e4, float("inf"), 1e30):
        batch.rows[~live] = poison
        outputs.append(experts(batch)[live])
    assert bool(outputs[0].isfinite().all())
    assert all(torch.equal(output, outputs[0]) for output in outputs[1:])


@pytest.mark.parametrize("scheme", TENSOR_WIDE, ids=repr)
def test_two_live_rows_of_four_are_the_batch_of_two(scheme):
    case = example.problem(scheme=scheme, layout=PaddedStandard())
    experts, _ = layer(case)
    rows, ids = example.rows(case, 4), torch.tensor([[0, 1, 3]] * 2 + [[-1, 7, -5]] * 2, dtype=torch.int32)
    p = torch.full((4, 3), 0.5)
    wanted = experts(PaddedStandardBatch(rows[:2], Routing(ids[:2], p[:2])))
    for poison in (1e4, float("nan")):
        rows[2:] = poison
        assert torch.equal(experts(PaddedStandardBatch(rows, Routing(ids, p)))[:2], wanted)


def test_one_scale_for_the_tensor_sees_the_rows_of_all_experts():
    """A large row at one expert makes the steps of a small row at another coarse; a scale for each row does not."""
    row = example.rows(example.problem(), 1)[0] * 1e-5
    for scheme, is_coarse in ((Scheme(Plain(), INT8(PerTensor())), True), (Scheme(Plain(), INT8(PerGroup(8))), False)):
        experts, _ = layer(example.problem(scheme=scheme))
        routing = Routing(torch.tensor([[0], [1]], dtype=torch.int32), torch.ones(2, 1))
        alone = experts(StandardBatch(torch.stack([row, row]), routing))[0]
        beside = experts(StandardBatch(torch.stack([row, row * 1e6]), routing))[0]
        assert torch.equal(alone, beside) is not is_coarse


@pytest.mark.parametrize("number", [float("nan"), float("inf")], ids=str)
@each_scheme
def test_a_number_that_is_not_finite_reaches_its_row_and_no_other(scheme, number):
    case = example.problem(scheme=scheme)
    experts, _ = layer(case)
    rows, routing = example.rows(case, 6), example.routing(case, 6, garbage=False)
    rows[2, 5] = 0
    wanted = experts(StandardBatch(rows, routing))
    struck = rows.clone()
    struck[2, 5] = number
    got = experts(StandardBatch(struck, routing))
    others = torch.tensor([0, 1, 3, 4, 5])
    assert not bool(got[2].isfinite().all())
    assert bool(got[others].isfinite().all())
    if scheme not in TENSOR_WIDE:  # there the struck row no longer takes part in the scale of the activation's output
        assert torch.equal(got[others], wanted[others])


@each_scheme
def test_a_zero_token_and_a_zero_expert_give_zeros(scheme):
    case = example.problem(scheme=scheme)
    plain = example.weights(dataclasses.replace(case, scheme=Scheme(Plain(), Plain())))
    plain.gate_up.data[1], plain.down.data[1] = 0, 0
    experts = bind(case, plain.quantize(scheme.weights), backends=(Reference(),))
    rows = example.rows(case, 3)
    rows[0] = 0
    got = experts(StandardBatch(rows, Routing(torch.tensor([[0], [1], [3]], dtype=torch.int32), torch.ones(3, 1))))
    assert not bool(got[:2].any())
    assert bool(got[2].any())


@pytest.mark.parametrize("layout", [GroupedContiguous(), BatchedExperts()], ids=repr)
def test_no_live_rows(layout):
    case = example.problem(scheme=Scheme(FP8(PerTensor()), FP8(PerTensor())), layout=layout)
    experts, _ = layer(case)
    counts = torch.zeros(5, dtype=torch.int32)
    poison = torch.full((5, 2, 72) if layout == BatchedExperts() else (10, 72), float("nan"))
    batch = BatchedBatch(poison, counts) if layout == BatchedExperts() else GroupedBatch(poison, counts, counts, 1)
    assert not bool(experts(batch).any())


def test_the_clamp_sees_the_value_and_not_the_code():
    """Codes 16 and 2 with scale .5 are 8 and 1; the limit 7 then gives 6.9936 (fault F54)."""
    case = Problem(
        num_experts=1,
        top_k=1,
        hidden_size=1,
        intermediate_size=1,
        activation=SwiGLU(limit=7.0),
        dtype=torch.float32,
        scheme=Scheme(FP8(PerTensor()), Plain()),
    )
    data = torch.tensor([[[16.0], [2.0]]]).to(torch.float8_e4m3fn)
    gate_up = Quantized(FP8(PerTensor()), data, {"scale": torch.full((1, 2, 1), 0.5)}, parts=2)
    down = Quantized(FP8(PerTensor()), torch.ones(1, 1, 1).to(torch.float8_e4m3fn), {"scale": torch.ones(1, 1, 1)})
    experts = bind(case, ExpertWeights(gate_up, down), backends=(Reference(),))
    got = experts(StandardBatch(torch.ones(1, 1), Routing(torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1))))
    assert got.item() == pytest.approx(6.9936, abs=1e-4)


@each_scheme
def test_rounded_inputs_have_no_gradient_and_that_is_said(scheme):
    case = dataclasses.replace(example.problem(scheme=scheme), differentiable=True)
    rounded = not isinstance(scheme.inputs, Plain)
    assert [r.code for r in Reference().reasons_against(case, CPU)] == [ReasonCode.GRADIENT] * rounded
    experts, _ = layer(example.problem(scheme=scheme))
    rows = example.rows(case, 3).requires_grad_()
    batch = StandardBatch(rows, example.routing(case, 3))
    if rounded:
        with pytest.raises(GradientError, match="has no gradient"):
            experts(batch)
        with torch.no_grad():
            assert bool(experts(batch).isfinite().all())
    else:
        experts(batch).sum().backward()
        assert bool(rows.grad.any())


@pytest.mark.parametrize("scheme", [FP8_BLOCK, MXFP4_MXFP8, NVFP4_NVFP4], ids=repr)
def test_a_call_stays_inside_the_workspace_it_states(scheme):
    case = example.problem(dtype=torch.bfloat16, scheme=scheme, hidden_size=256, intermediate_size=192)
    experts, _ = layer(case)
    batch = StandardBatch(example.rows(case, 19), example.routing(case, 19))
    with torch.no_grad():
        experts(batch)
        used = peak_bytes(lambda: experts(batch))
    assert used <= experts.workspace(19) <= 12 * used


@each_scheme
def test_canonical_weights_come_back_as_they_were(scheme):
    case = example.problem(scheme=scheme)
    given = example.weights(dataclasses.replace(case, scheme=Scheme(Plain(), Plain()))).quantize(scheme.weights)
    returned = bind(case, given, backends=(Reference(),)).canonical()
    returned.check(case)
    assert all(a is b for a, b in zip(returned.tensors, given.tensors, strict=True))
