"""TritonQuantized without a GPU: what it declines, gives back, and when it reads weights back."""

from dataclasses import replace
from unittest import mock

import pytest
import torch

from moesaic import (
    FP8,
    INT4,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    ExpertWeights,
    GroupedBatch,
    GroupedContiguous,
    PerBlock,
    PerGroup,
    PerRow,
    PerTensor,
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
from moesaic.errors import TuningError, WeightsError
from moesaic.quant.schemes import FP8_BLOCK, FP8_ROW, FP8_TENSOR, INT8_ROW, MXFP4_MXFP8, UNQUANTIZED

pytest.importorskip("triton")
from moesaic.backends import triton_quantized
from moesaic.backends.stored_weights import StoredWeights
from moesaic.backends.when_products import least_rows

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
    forms = {
        "tokens": torch.zeros(1),
        "expanded_tokens": torch.ones(1),
        "coded_tokens": torch.ones(2),
        "nibble_tokens": torch.ones(3),
    }
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
        (Scheme(FP8(PerBlock()), FP8(PerTensor())), "expanded_tokens"),
        (Scheme(INT4(PerGroup(128), zero_point=True, scale=torch.bfloat16), Plain()), "expanded_tokens"),
        (Scheme(INT4(PerGroup(128), scale=torch.float16), Plain()), "expanded_tokens"),
        (Scheme(FP8(PerRow()), Plain()), "expanded_tokens"),
        (Scheme(FP8(PerRow()), MXFP8()), "expanded_tokens"),
        (FP8_TENSOR, "tokens"),
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


@pytest.mark.parametrize(
    "scheme",
    [
        FP8_BLOCK,
        FP8_ROW,
        Scheme(FP8(PerRow()), FP8(PerGroup(128))),
        Scheme(FP8(PerTensor()), FP8(PerRow(), scale=torch.bfloat16)),
        Scheme(FP8(PerBlock(), scale=torch.float8_e8m0fnu), FP8(PerGroup(128), scale=torch.float8_e8m0fnu)),
    ],
    ids=repr,
)
def test_fp8_on_both_sides_is_multiplied_as_codes(scheme):
    problem = replace(PROBLEM, scheme=scheme)
    enough = -(-32 * problem.num_experts // problem.top_k)
    assert called(BACKEND, problem, enough, (9, 0)) == "coded_tokens"
    assert called(BACKEND, problem, enough - 1, (9, 0)) == "tokens"
    assert called(BACKEND, problem, enough, (10, 0)) == "tokens"
    assert called(TritonQuantized(coded_rows=0), problem, 2, (9, 0)) == "coded_tokens"


@pytest.mark.parametrize(
    ("scheme", "least"),
    [
        (Scheme(MXFP4(), Plain()), 2),
        (MXFP4_MXFP8, 2),
        (Scheme(NVFP4(), Plain()), 1),
        (Scheme(INT4(PerGroup(32), scale=torch.bfloat16), Plain()), 4),
        (Scheme(INT4(PerGroup(128), scale=torch.bfloat16), FP8(PerRow())), 4),
    ],
    ids=repr,
)
def test_weights_of_4_bits_are_multiplied_as_codes_in_bfloat16(scheme, least):
    problem = replace(PROBLEM, scheme=scheme)
    enough = -(-least * problem.num_experts // problem.top_k)
    assert called(BACKEND, problem, enough, (9, 0)) == "nibble_tokens"
    assert called(BACKEND, problem, enough - 1, (9, 0)) == "tokens"
    assert called(BACKEND, problem, enough, (10, 0)) == "tokens"
    assert called(BACKEND, replace(problem, dtype=torch.float16), enough, (9, 0)) == "tokens"
    many = called(BACKEND, problem, -(-512 * problem.num_experts // problem.top_k), (9, 0))
    assert many == ("expanded_tokens" if isinstance(scheme.weights, NVFP4) else "nibble_tokens")


@pytest.mark.parametrize(
    "problem",
    [
        replace(PROBLEM, hidden_size=136),  # no multiple of the 16 bytes that TMA takes
        replace(PROBLEM, intermediate_size=88),
        replace(PROBLEM, scheme=Scheme(FP8(PerBlock(128, 64)), FP8(PerGroup(128)))),
        replace(PROBLEM, scheme=Scheme(FP8(PerBlock()), FP8(PerGroup(64)))),
        replace(PROBLEM, scheme=Scheme(INT8(PerRow()), INT8(PerRow()))),
    ],
    ids=repr,
)
def test_codes_are_not_multiplied_in_other_sizes_and_blocks(problem):
    assert called(TritonQuantized(coded_rows=0), problem, 1000, (9, 0)) != "coded_tokens"


def grouped(alignment):
    """Whether rows in expert order, at such multiples, are multiplied as codes."""
    begins = torch.arange(5, dtype=torch.int32) * 64
    rows = torch.zeros(320, PROBLEM.hidden_size, dtype=PROBLEM.dtype)
    batch = GroupedBatch(rows, begins, torch.full_like(begins, 33), alignment=alignment)
    coded, other = mock.Mock(return_value=torch.ones(1)), mock.Mock(return_value=torch.zeros(1))
    problem = replace(PROBLEM, layout=batch.layout)
    with (
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
        mock.patch.object(torch.cuda, "device"),
        mock.patch.multiple(triton_quantized, coded_rows=coded, in_place=other),
    ):
        return bool(BACKEND.run(batch, StoredWeights.of(weights(PROBLEM), problem), problem))


def test_rows_at_other_multiples_than_32_are_not_multiplied_as_codes():
    """Whole pieces of 32 rows are stored, so what lies behind an expert's rows has to be nobody's."""
    assert grouped(64)
    assert grouped(32)
    assert not grouped(16)
    assert not grouped(1)


@pytest.mark.parametrize(
    ("backend", "mean", "tile_rows"),
    [
        (BACKEND, 32, 32),
        (BACKEND, 33, 128),
        (TritonQuantized(wide_rows=0), 4, 128),
        (TritonQuantized(wide_rows=99), 98, 32),
    ],
)
def test_few_rows_of_an_expert_are_computed_in_small_tiles(backend, mean, tile_rows):
    problem = replace(PROBLEM, scheme=Scheme(MXFP4(), Plain()), layout=GroupedContiguous(32))
    begins = torch.zeros(problem.num_experts, dtype=torch.int32)
    rows = torch.zeros(mean * problem.num_experts, problem.hidden_size, dtype=problem.dtype)
    batch = GroupedBatch(rows, begins, begins, alignment=32)
    taken = mock.Mock(return_value=rows)
    with (
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
        mock.patch.multiple(triton_quantized, nibble_rows=taken),
    ):
        backend.run(batch, StoredWeights.of(weights(problem), problem), problem)
    assert taken.call_args.kwargs == {"tile_rows": tile_rows}


def test_the_more_weights_the_fewer_rows_of_fp4_are_multiplied_as_codes():
    sizes = {"num_experts": 128, "top_k": 8, "hidden_size": 2880, "intermediate_size": 2880}
    large, small = (
        replace(PROBLEM, **sizes),
        replace(PROBLEM, **sizes | {"hidden_size": 1024, "intermediate_size": 512}),
    )
    assert least_rows(replace(large, scheme=Scheme(MXFP4(), Plain()))) == pytest.approx(0.12558, rel=1e-3)
    assert least_rows(replace(small, scheme=Scheme(MXFP4(), Plain()))) == pytest.approx(1.98682, rel=1e-3)
    assert least_rows(replace(large, scheme=Scheme(NVFP4(), Plain()))) == pytest.approx(0.06279, rel=1e-3)


def test_more_scales_than_two_words_hold_are_not_multiplied_as_codes():
    problem = replace(PROBLEM, scheme=Scheme(INT4(PerGroup(16), scale=torch.bfloat16), Plain()))
    assert called(TritonQuantized(coded_rows=0), problem, 100, (9, 0)) == "tokens"


@pytest.mark.parametrize("field", ["coded_rows", "expand_rows", "wide_rows"])
@pytest.mark.parametrize("value", [-1, True])
def test_mean_rows_are_whole_numbers(field, value):
    with pytest.raises(TuningError, match=f"TritonQuantized.{field} is"):
        TritonQuantized(**{field: value})


def test_the_workspace_holds_all_weights_once_they_are_read_back():
    problem = replace(PROBLEM, scheme=Scheme(MXFP8(), MXFP8()))
    enough = -(-512 * PROBLEM.num_experts // PROBLEM.top_k)
    few, many = BACKEND.workspace(problem, enough - 1), BACKEND.workspace(problem, enough)
    assert many - few > PROBLEM.num_experts * PROBLEM.num_weights
    for scheme in (problem.scheme, PROBLEM.scheme, MXFP4_MXFP8, Scheme(NVFP4(), Plain())):
        case = replace(PROBLEM, scheme=scheme)
        counts = [BACKEND.workspace(case, rows) for rows in range(1, 3000, 7)]
        assert counts == sorted(counts)
