"""CpuJit beyond what every backend is tested for: what it needs, unknown packings, both sides of its limit."""

import numpy as np
import pytest
import torch

from moesaic import CpuJit, Machine, Requires, StandardBatch, bind
from moesaic.backends.capabilities import ReasonCode
from tests.backends import example, numpy_oracle
from tests.tolerance import assert_close

needs_avx512_bf16 = pytest.mark.skipif(
    "avx512_bf16" not in Machine.current("cpu").features, reason="this processor has no AVX512-BF16"
)


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_it_says_what_it_needs():
    bare = Machine(device="cpu", name="old", architecture="x86_64", processors=2, memory_bytes=2**34)
    reasons = CpuJit().reasons_against(example.problem(), bare)
    assert [r.code for r in reasons] == [ReasonCode.FEATURE, ReasonCode.PACKAGE, ReasonCode.DTYPE]
    assert CpuJit.capabilities.requires == (Requires("numba", (0, 62)),)


@needs_avx512_bf16
def test_a_packing_that_the_kernel_does_not_know_is_left_to_onednn(monkeypatch):
    monkeypatch.setattr("moesaic.backends.cpu_packed.BLOCK_COLUMNS", ())
    case = example.problem(dtype=torch.bfloat16, bias=True, hidden_size=65, intermediate_size=33)
    given, rows, routing = example.weights(case), example.rows(case, 19), example.routing(case, 19)
    experts = bind(case, given, backends=(CpuJit(),))
    weights = routing.topk_weights.double().numpy()
    wanted = numpy_oracle.tokens(
        rows.double().numpy(), routing.topk_ids.numpy(), weights, example.as_oracle(case, given)
    )
    assert_close(experts(StandardBatch(rows, routing)), wanted, case.dtype)


@needs_avx512_bf16
@pytest.mark.parametrize("num_tokens", [1, 682, 683, 700])
def test_both_sides_of_the_most_slots(num_tokens):
    case = example.problem(dtype=torch.bfloat16, hidden_size=40, intermediate_size=24)
    given, rows = example.weights(case), example.rows(case, num_tokens)
    routing = example.routing(case, num_tokens)
    got = bind(case, given, backends=(CpuJit(),))(StandardBatch(rows, routing))
    some = np.arange(0, num_tokens, 37)
    wanted = numpy_oracle.tokens(
        rows.double().numpy()[some],
        routing.topk_ids.numpy()[some],
        routing.topk_weights.double().numpy()[some],
        example.as_oracle(case, given),
    )
    assert_close(got[some], wanted, case.dtype)


@needs_avx512_bf16
def test_float32_between_the_products_keeps_it_closer_than_cpu():
    """The kernel's first product is not rounded before the activation, so it may only be nearer to the oracle."""
    from moesaic import Cpu  # noqa: PLC0415

    case = example.problem(dtype=torch.bfloat16)
    given, rows, routing = example.weights(case), example.rows(case, 50), example.routing(case, 50)
    oracle = example.as_oracle(case, given)
    wanted = numpy_oracle.tokens(
        rows.double().numpy(), routing.topk_ids.numpy(), routing.topk_weights.double().numpy(), oracle
    )
    errors = [
        np.square(bind(case, given, backends=(b,))(StandardBatch(rows, routing)).double().numpy() - wanted).mean()
        for b in (CpuJit(), Cpu())
    ]
    assert errors[0] < errors[1]
