"""TritonQuantized without a GPU: what it declines, gives back, and when it reads weights back."""

from dataclasses import replace
from unittest import mock

import pytest
import torch

from moesaic import (
    FP8,
    INT4,
    INT8,
    MXFP8,
    NVFP4,
    ExpertWeights,
    PerBlock,
    PerGroup,
    PerRow,
    Plain,
    Problem,
    ReasonCode,
    Routing,
    Scheme,
    StandardBatch,
    SwiGLU,
    TritonQuantized,
    known_machine,
)
from moesaic.errors import WeightsError
from moesaic.quant.schemes import FP8_BLOCK, FP8_ROW, INT8_ROW, MXFP4_MXFP8, UNQUANTIZED

pytest.importorskip("triton")
from moesaic.backends import triton_quantized
from moesaic.backends.stored_weights import StoredWeights

BACKEND = TritonQuantized()
PROBLEM = Problem(
    num_experts=5,
    top_k=3,
    hidden_size=144,
    intermediate_size=80,
    activation=SwiGLU(),
    dtype=torch.bfloat16,
    scheme=FP8_BLOCK,
)


def weights(problem):
    generator = torch.Generator().manual_seed(0)
    gate_up = torch.randn(5, problem.width, problem.hidden_size, generator=generator)
    down = torch.randn(5, problem.hidden_size, problem.intermediate_size, generator=generator)
    return ExpertWeights.plain(gate_up, down).quantize(problem.scheme.weights)


@pytest.mark.parametrize(
    "scheme",
    [
        UNQUANTIZED,
        Scheme(Plain(), FP8(PerRow())),
        Scheme(INT4(PerGroup(48)), Plain()),
        Scheme(FP8(PerBlock(128, 96)), Plain()),
        Scheme(FP8(PerRow()), FP8(PerGroup(96))),
        Scheme(FP8(PerRow()), FP8(PerBlock())),
        Scheme(FP8(PerRow()), INT4(PerGroup(32))),
    ],
    ids=repr,
)
def test_formats_that_no_kernel_reads_are_declined_by_name(scheme):
    [reason] = BACKEND.reasons_against(replace(PROBLEM, scheme=scheme), known_machine("h200"))
    assert reason.code is ReasonCode.SCHEME
    assert repr(scheme) in str(reason)


@pytest.mark.parametrize(
    "scheme",
    [
        Scheme(FP8(PerRow(), scale=torch.bfloat16), Plain()),
        Scheme(INT4(PerGroup(128), zero_point=True, scale=torch.float16), Plain()),
        Scheme(INT8(PerGroup(256)), FP8(PerGroup(64))),
        Scheme(FP8(PerBlock(64, 32), scale=torch.bfloat16), NVFP4()),
    ],
    ids=repr,
)
def test_scales_of_any_dtype_are_served_on_every_architecture(scheme):
    for machine in ("a100", "h200", "b200"):
        assert BACKEND.reasons_against(replace(PROBLEM, scheme=scheme), known_machine(machine)) == ()


def test_a_format_that_slipped_through_is_an_error_before_anything_is_packed():
    stored = weights(replace(PROBLEM, scheme=Scheme(INT4(PerGroup(48)), Plain())))
    with pytest.raises(WeightsError, match=r"no Triton kernel reads INT4\(granularity=PerGroup\(columns=48\)"):
        StoredWeights.of(stored, PROBLEM)


def called(backend, problem, tokens, capability):
    """Which form computes a call on a GPU of that capability."""
    stored = weights(problem)
    batch = StandardBatch(
        torch.zeros(tokens, problem.hidden_size, dtype=problem.dtype),
        Routing(torch.zeros(tokens, problem.top_k, dtype=torch.int32), torch.ones(tokens, problem.top_k)),
    )
    forms = {"tokens": torch.zeros(1), "expanded_tokens": torch.ones(1)}
    with (
        mock.patch.object(torch.cuda, "get_device_capability", return_value=capability),
        mock.patch("moesaic.kernels.stored_experts.fast_codes", return_value=capability >= (8, 9)),
        mock.patch.object(torch.cuda, "device"),
        mock.patch.multiple(triton_quantized, **{name: mock.Mock(return_value=told) for name, told in forms.items()}),
    ):
        answer = backend.run(batch, StoredWeights.of(stored, problem), problem)
    return next(name for name, told in forms.items() if told is answer)


@pytest.mark.parametrize(
    ("scheme", "form"),
    [
        (Scheme(MXFP8(), Plain()), "expanded_tokens"),
        (FP8_BLOCK, "expanded_tokens"),
        (MXFP4_MXFP8, "expanded_tokens"),
        (Scheme(FP8(PerRow()), Plain()), "expanded_tokens"),
        (Scheme(FP8(PerRow()), MXFP8()), "expanded_tokens"),
        (FP8_ROW, "tokens"),
        (INT8_ROW, "tokens"),
    ],
    ids=repr,
)
def test_many_rows_are_read_back_unless_codes_meet_codes_with_one_scale(scheme, form):
    problem = replace(PROBLEM, scheme=scheme)
    enough = -(-512 * problem.num_experts // problem.top_k)
    assert called(BACKEND, problem, enough, (9, 0)) == form
    assert called(BACKEND, problem, enough - 1, (9, 0)) == "tokens"
    assert called(BACKEND, problem, enough, (8, 0)) == "tokens"
    assert called(BACKEND, problem, enough, (10, 0)) == "tokens"
    assert called(TritonQuantized(expand_rows=0), problem, 2, (9, 0)) == form


def test_the_workspace_holds_all_weights_once_they_are_read_back():
    enough = -(-512 * PROBLEM.num_experts // PROBLEM.top_k)
    few, many = BACKEND.workspace(PROBLEM, enough - 1), BACKEND.workspace(PROBLEM, enough)
    assert many - few > PROBLEM.num_experts * PROBLEM.num_weights
    counts = [BACKEND.workspace(PROBLEM, rows) for rows in range(1, 3000, 7)]
    assert counts == sorted(counts)
