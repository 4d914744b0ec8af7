"""CpuQuantized where torch's kernels run, which the kit's own sizes do not reach: the contract is tried there too."""

from dataclasses import replace

import pytest
import torch

from moesaic import (
    FP8,
    INT4,
    INT8,
    NVFP4,
    BatchedExperts,
    CpuQuantized,
    ExpertWeights,
    GeGLU,
    GroupedContiguous,
    Machine,
    PaddedStandard,
    PerBlock,
    PerGroup,
    PerRow,
    Plain,
    Scheme,
    Standard,
    SwiGLU,
)
from moesaic.backends.cpu_dequantized import DequantizedProjection, is_vectorized
from moesaic.backends.cpu_int4 import FEW_ROWS, Int4Projection
from moesaic.backends.cpu_int8 import Int8Projection
from moesaic.conformance import Case, base_case, conform
from tests.quant.examples import values

BF16 = torch.bfloat16
FORMATS = {
    "int4 g32": INT4(PerGroup(32)),
    "int4 g64, bf16 scales": INT4(PerGroup(64), scale=BF16),
    "int4 g32, zero points": INT4(PerGroup(32), zero_point=True),
    "int4 g64, zero points, fp16 scales": INT4(PerGroup(64), zero_point=True, scale=torch.float16),
    "int8 row": INT8(PerRow()),
}
needs_kernels = pytest.mark.skipif(not is_vectorized(), reason="torch has no kernels of few bits on this processor")


def cases_for(stored):
    """H = 192, I = 64, so that every projection of every expert is a kernel's; few rows, then more than it takes."""
    sizes = {"hidden_size": 192, "intermediate_size": 64, "dtype": BF16, "scheme": Scheme(stored, Plain())}
    base = base_case(CpuQuantized.capabilities).changed(**sizes)
    for layout in (Standard(), PaddedStandard(), GroupedContiguous(8), BatchedExperts()):
        yield base.in_layout(layout).changed(bias=True, activation=SwiGLU(alpha=1.702, beta=1.0, limit=7.0))
    yield replace(base.changed(activation=GeGLU()), skew=40.0, num_tokens=FEW_ROWS + 34)
    yield replace(base.changed(weight_on_input=True), num_tokens=1)


@needs_kernels
@pytest.mark.parametrize("stored", FORMATS.values(), ids=FORMATS)
def test_every_promise_is_kept_on_the_kernels(stored):
    report = conform(CpuQuantized(), Machine.current("cpu"), cases=[*cases_for(stored)])
    assert report.faults == ()
    assert report.counts["passed"] > 80
    case: Case = next(cases_for(stored))
    experts = CpuQuantized().prepare(weights_of(case), case.problem)
    kind = Int8Projection if isinstance(stored, INT8) else Int4Projection
    assert {type(p) for p in (*experts.gate_up, *experts.down)} == {kind}


def weights_of(case):
    problem = case.problem
    shape = problem.num_experts, problem.width, problem.hidden_size
    plain = ExpertWeights.plain(
        values(*shape, dtype=BF16), values(shape[0], shape[2], problem.intermediate_size, seed=1, dtype=BF16)
    )
    return plain.quantize(problem.scheme.weights)


def quantized(stored, rows, columns, seed=0):
    return stored.quantize(values(rows, columns, seed=seed, dtype=BF16))


@needs_kernels
@pytest.mark.parametrize("stored", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (128, 320), (1024, 128), (192, 2880 // 64 * 64)])
def test_a_kernel_computes_what_the_format_means_and_gives_every_bit_back(stored, rows, columns):
    weight = quantized(stored, rows, columns)
    found = Int8Projection.of(weight) if isinstance(stored, INT8) else Int4Projection.of(weight, BF16)
    again = found.stored()
    assert again.format == weight.format
    for a, b in zip(again.tensors, weight.tensors, strict=True):
        assert torch.equal(a, b)
    for count in (1, 2, 3, 5, 16, 17, FEW_ROWS, FEW_ROWS + 1):
        x = values(count, columns, seed=count, dtype=BF16)
        wanted = x.double() @ weight.dequantize(torch.float64).T
        error = (found(x).double() - wanted).pow(2).mean().sqrt() / wanted.std()
        # One rounding of the product is 1.7e-3, of the scales 1.6e-3; an offset is up to eight steps and rounded too.
        offsets = isinstance(stored, INT4) and stored.zero_point
        assert error < (6.5e-3 if offsets else 3.5e-3), count


@needs_kernels
@pytest.mark.parametrize(
    ("stored", "rows", "columns", "dtype"),
    [
        (INT4(PerGroup(32)), 64, 48, BF16),  # a short last group
        (INT4(PerGroup(32)), 72, 64, BF16),  # no multiple of a block
        (INT4(PerGroup(16)), 64, 64, BF16),
        (INT4(PerRow()), 64, 64, BF16),
        (INT4(PerGroup(32)), 64, 64, torch.float16),
        (INT8(PerRow()), 64, 72, BF16),  # where torch's kernel reads past the end
        (INT8(PerRow()), 42, 64, BF16),
        (INT8(PerRow()), 64, 64, torch.float32),
        (INT8(PerGroup(32)), 64, 64, BF16),
        (FP8(PerBlock()), 64, 64, BF16),
        (NVFP4(), 64, 64, BF16),
    ],
)
def test_what_no_kernel_takes_is_read_back(stored, rows, columns, dtype):
    weight = quantized(stored, rows, columns)
    assert not Int8Projection.takes(weight, dtype)
    assert Int4Projection.of(weight, dtype) is None
    x = values(5, columns, seed=1, dtype=dtype)
    assert torch.equal(DequantizedProjection(weight)(x), x @ weight.dequantize(dtype).T)


@needs_kernels
def test_an_unknown_packing_is_not_used(monkeypatch):
    weight = quantized(INT4(PerGroup(32)), 64, 64)
    monkeypatch.setattr("moesaic.backends.cpu_int4.BLOCKS", (16,))
    assert Int4Projection.of(weight, BF16) is None


def test_packed_weights_are_held_once():
    case = next(cases_for(INT4(PerGroup(64), scale=BF16)))
    weights = weights_of(case)
    held = sum(
        t.numel() * t.element_size() for t in CpuQuantized().tensors(CpuQuantized().prepare(weights, case.problem))
    )
    assert held < 1.2 * weights.num_bytes
