"""CpuJitQuantized beyond what every backend is tested for: formats, sizes, what comes back, and without its kernel."""

import os

import numpy as np
import pytest
import torch

from moesaic import (
    FP8,
    INT4,
    INT8,
    MXFP4,
    NVFP4,
    CpuJitQuantized,
    GroupedContiguous,
    Machine,
    PaddedStandard,
    PerGroup,
    PerRow,
    Plain,
    Requires,
    Scheme,
    StandardBatch,
    SwiGLU,
    bind,
)
from moesaic.backends.capabilities import ReasonCode
from moesaic.backends.cpu_codebook import MANY_ROWS
from moesaic.conformance import base_case, conform
from tests.backends import example, numpy_oracle
from tests.tolerance import assert_close

BF16 = torch.bfloat16
needs_avx512_bf16 = pytest.mark.skipif(
    "avx512_bf16" not in Machine.current("cpu").features, reason="this processor has no AVX512-BF16"
)
FORMATS = {
    "int4 g32": INT4(PerGroup(32)),
    "int4 g128, bf16": INT4(PerGroup(128), scale=BF16),
    "int4 g10": INT4(PerGroup(10)),
    "int4 row": INT4(PerRow()),
    "int4 g64, zero points": INT4(PerGroup(64), zero_point=True),
    "int4 g32, zero points, fp16": INT4(PerGroup(32), zero_point=True, scale=torch.float16),
    "mxfp4": MXFP4(),
    "nvfp4": NVFP4(),
}
every_format = pytest.mark.parametrize("stored", FORMATS.values(), ids=FORMATS)


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def layer(stored, **changes):
    """A problem, its weights, and the oracle of what they mean."""
    sizes = {"hidden_size": 90, "intermediate_size": 88, "bias": True, "dtype": BF16}
    case = example.problem(scheme=Scheme(stored, Plain()), **{**sizes, **changes})
    given = example.weights(case).quantize(stored)
    return case, given, example.as_oracle(case, given.dequantize(torch.float64))


def test_it_says_what_it_needs():
    bare = Machine(device="cpu", name="old", architecture="x86_64", processors=2, memory_bytes=2**34)
    reasons = CpuJitQuantized().reasons_against(example.problem(), bare)
    codes = [ReasonCode.FEATURE, ReasonCode.PACKAGE, ReasonCode.DTYPE, ReasonCode.SCHEME]
    assert [r.code for r in reasons] == codes
    assert CpuJitQuantized.capabilities.requires == (Requires("numba", (0, 62)),)


@pytest.mark.parametrize("weights", [INT4(PerGroup(9)), INT8(PerRow()), FP8(PerRow()), Plain()], ids=repr)
def test_it_declines_what_its_kernel_does_not_read(weights):
    case = example.problem(dtype=BF16, scheme=Scheme(weights, Plain()))
    found = CpuJitQuantized().reasons_against(case, Machine.current("cpu"))
    assert ReasonCode.SCHEME in [r.code for r in found]
    rounded = example.problem(dtype=BF16, scheme=Scheme(MXFP4(), FP8(PerRow())))
    assert ReasonCode.SCHEME in [r.code for r in CpuJitQuantized().reasons_against(rounded, Machine.current("cpu"))]


@needs_avx512_bf16
@every_format
@pytest.mark.parametrize("num_tokens", [1, 2, 19])
def test_rows_are_what_the_stored_weights_mean(stored, num_tokens):
    case, given, oracle = layer(stored)
    rows, routing = example.rows(case, num_tokens), example.routing(case, num_tokens)
    weights = routing.topk_weights.double().numpy()
    wanted = numpy_oracle.tokens(rows.double().numpy(), routing.topk_ids.numpy(), weights, oracle)
    got = bind(case, given, backends=(CpuJitQuantized(),))(StandardBatch(rows, routing))
    assert_close(got, wanted, BF16)


@needs_avx512_bf16
@every_format
def test_every_bit_comes_back_and_is_held_once(stored):
    case, given, _ = layer(stored, hidden_size=256, intermediate_size=192)
    experts = bind(case, given, backends=(CpuJitQuantized(),))
    again = experts.canonical()
    assert (again.gate_up.format, again.gate_up.parts) == (stored, 2)
    for a, b in zip(again.tensors, given.tensors, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    assert sum(t.numel() * t.element_size() for t in experts.tensors) < 1.15 * given.num_bytes


@needs_avx512_bf16
@pytest.mark.parametrize("stored", [MXFP4(), NVFP4()], ids=repr)
def test_scales_of_any_bits_come_back(stored):
    case, given, _ = layer(stored)
    for projection in (given.gate_up, given.down):
        scale = projection.scales["scale"].view(torch.uint8)
        scale.copy_(torch.arange(scale.numel()).remainder(256).view(scale.shape))
    again = bind(case, given, backends=(CpuJitQuantized(),)).canonical()
    for a, b in zip(again.tensors, given.tensors, strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@needs_avx512_bf16
@pytest.mark.parametrize("stored", [INT4(PerGroup(32), zero_point=True), NVFP4()], ids=repr)
def test_an_expert_of_many_rows_is_read_back(stored):
    case, given, oracle = layer(stored, top_k=1)
    num_tokens = MANY_ROWS + 40
    rows, routing = example.rows(case, num_tokens), example.routing(case, num_tokens)
    routing.topk_ids[:, 0] = 3  # more than the kernel takes
    routing.topk_ids[:30, 0] = torch.arange(30) % 2
    experts = bind(case, given, backends=(CpuJitQuantized(),))
    some = np.arange(0, num_tokens, 29)
    weights = routing.topk_weights.double().numpy()[some]
    wanted = numpy_oracle.tokens(rows.double().numpy()[some], routing.topk_ids.numpy()[some], weights, oracle)
    assert_close(experts(StandardBatch(rows, routing))[some], wanted, BF16)


@needs_avx512_bf16
def test_without_numba_and_in_a_forked_child_it_reads_back(monkeypatch):
    case, given, oracle = layer(MXFP4())
    rows, routing = example.rows(case, 7), example.routing(case, 7)
    weights = routing.topk_weights.double().numpy()
    wanted = numpy_oracle.tokens(rows.double().numpy(), routing.topk_ids.numpy(), weights, oracle)
    forked = bind(case, given, backends=(CpuJitQuantized(),))
    monkeypatch.setattr("moesaic.backends.codebook_weights.is_usable", lambda: False)
    useless = bind(case, given, backends=(CpuJitQuantized(),))
    monkeypatch.setattr("moesaic.kernels.codebook_product.codebook_product", None)  # so that a call would raise
    assert_close(useless(StandardBatch(rows, routing)), wanted, BF16)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert_close(forked(StandardBatch(rows, routing)), wanted, BF16)


@needs_avx512_bf16
def test_every_promise_is_kept_where_blocks_are_full():
    """The kit's own sizes fill no block of 64 columns; here the second projection has none but full ones."""
    stored = INT4(PerGroup(32), zero_point=True, scale=BF16)
    sizes = {"hidden_size": 192, "intermediate_size": 64, "dtype": BF16, "scheme": Scheme(stored, Plain())}
    base = base_case(CpuJitQuantized.capabilities).changed(**sizes)
    layouts = PaddedStandard(), GroupedContiguous(8)
    swiglu = SwiGLU(alpha=1.702, beta=1.0, limit=7.0)
    cases = [base.in_layout(layout).changed(bias=True, activation=swiglu) for layout in layouts]
    report = conform(CpuJitQuantized(), Machine.current("cpu"), cases=cases)
    assert report.faults == ()
    assert report.counts["passed"] > 40
