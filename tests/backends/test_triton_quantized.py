"""TritonQuantized without a GPU: what it declines, gives back, and when it reads weights back."""

import math
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
        "split_tokens": torch.ones(4),
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


def tokens_for(problem, mean):
    """The fewest tokens, at least one, that are so many rows an expert."""
    return max(1, math.ceil(mean * problem.num_experts / problem.top_k))


@pytest.mark.parametrize(
    ("scheme", "splits"),
    [
        (Scheme(MXFP4(), Plain()), True),
        (MXFP4_MXFP8, False),
        (Scheme(NVFP4(), Plain()), False),
        (Scheme(INT4(PerGroup(32), scale=torch.bfloat16), Plain()), False),
        (Scheme(INT4(PerGroup(128), scale=torch.bfloat16), FP8(PerRow())), False),
    ],
    ids=repr,
)
def test_weights_of_4_bits_are_multiplied_as_codes_in_bfloat16(scheme, splits):
    problem = replace(PROBLEM, scheme=scheme)
    enough = tokens_for(problem, least_rows(problem))
    assert called(BACKEND, problem, enough, (9, 0)) == ("split_tokens" if splits else "nibble_tokens")
    assert called(TritonQuantized(split_rows=0), problem, enough, (9, 0)) == "nibble_tokens"
    assert enough == 1 or called(BACKEND, problem, enough - 1, (9, 0)) == "tokens"
    assert called(BACKEND, problem, enough, (10, 0)) == "tokens"
    assert called(BACKEND, replace(problem, dtype=torch.float16), enough, (9, 0)) == "tokens"
    assert called(BACKEND, problem, tokens_for(problem, 100), (9, 0)) == "nibble_tokens"
    many = called(BACKEND, problem, tokens_for(problem, 512), (9, 0))
    assert many == ("expanded_tokens" if isinstance(scheme.weights, NVFP4) else "nibble_tokens")


SPLIT = [
    Scheme(MXFP4(), Plain()),
    Scheme(INT4(PerGroup(64), scale=torch.bfloat16), Plain()),
    Scheme(INT4(PerGroup(128), scale=torch.bfloat16), Plain()),
]


@pytest.mark.parametrize("scheme", SPLIT, ids=repr)
def test_few_rows_that_meet_mxfp4_or_int4_are_split(scheme):
    problem = replace(PROBLEM, scheme=scheme)
    first, end = tokens_for(problem, least_rows(problem)), tokens_for(problem, BACKEND.split_rows)
    assert first < end
    for tokens in (first, end - 1):
        assert called(BACKEND, problem, tokens, (9, 0)) == "split_tokens"
        assert called(BACKEND, problem, tokens, (8, 0)) == "tokens"
        assert called(BACKEND, problem, tokens, (10, 0)) == "tokens"
        assert called(TritonQuantized(coded_rows=2**31), problem, tokens, (9, 0)) == "tokens"
    assert called(BACKEND, problem, end, (9, 0)) == "nibble_tokens"
    assert called(TritonQuantized(coded_rows=0), problem, 1, (9, 0)) == "split_tokens"
    assert called(TritonQuantized(coded_rows=0, split_rows=0), problem, 1, (9, 0)) == "nibble_tokens"
    assert called(TritonQuantized(split_rows=1000, expand_rows=0), problem, end, (9, 0)) == "split_tokens"


@pytest.mark.parametrize(
    "problem",
    [
        replace(PROBLEM, scheme=Scheme(NVFP4(), Plain())),
        replace(PROBLEM, scheme=Scheme(INT4(PerGroup(32), scale=torch.bfloat16), Plain())),
        replace(PROBLEM, scheme=Scheme(INT4(PerGroup(256), scale=torch.bfloat16), Plain())),
        replace(PROBLEM, scheme=Scheme(INT4(PerGroup(128), scale=torch.float16), Plain())),
        replace(PROBLEM, scheme=Scheme(INT4(PerGroup(128)), Plain())),
        replace(PROBLEM, scheme=Scheme(INT4(PerGroup(128), zero_point=True, scale=torch.bfloat16), Plain())),
        replace(PROBLEM, scheme=Scheme(INT4(PerRow(), scale=torch.bfloat16), Plain())),
        replace(PROBLEM, scheme=Scheme(INT4(PerGroup(128), scale=torch.bfloat16), FP8(PerRow()))),
        replace(PROBLEM, scheme=MXFP4_MXFP8),
        replace(PROBLEM, scheme=SPLIT[0], dtype=torch.float16),
        replace(PROBLEM, scheme=SPLIT[0], hidden_size=140),  # no multiple of the 16 bytes that TMA takes
        replace(PROBLEM, scheme=SPLIT[0], intermediate_size=84),
    ],
    ids=repr,
)
def test_other_rows_are_never_split(problem):
    for tokens in (1, tokens_for(problem, 11)):
        assert called(TritonQuantized(coded_rows=0, split_rows=1000), problem, tokens, (9, 0)) != "split_tokens"


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


def rows_by(backend, scheme, alignment, mean, capability=(9, 0)):
    """Which form computes so many rows an expert that lie in expert order."""
    problem = replace(PROBLEM, scheme=scheme, layout=GroupedContiguous(alignment))
    begins = torch.zeros(problem.num_experts, dtype=torch.int32)
    rows = torch.zeros(max(1, math.ceil(mean * problem.num_experts)), problem.hidden_size, dtype=problem.dtype)
    forms = {"in_place": torch.zeros(1), "nibble_rows": torch.ones(1), "split_grouped": torch.ones(2)}
    with (
        mock.patch.object(torch.cuda, "get_device_capability", return_value=capability),
        mock.patch.multiple(triton_quantized, **{name: mock.Mock(return_value=told) for name, told in forms.items()}),
    ):
        batch = GroupedBatch(rows, begins, begins, alignment=alignment)
        answer = backend.run(batch, StoredWeights.of(weights(problem), problem), problem)
    return next(name for name, told in forms.items() if told is answer)


@pytest.mark.parametrize("scheme", SPLIT, ids=repr)
def test_rows_at_multiples_of_8_are_split_and_at_multiples_of_32_multiplied_in_bfloat16(scheme):
    """Whole pieces of so many rows are stored, so what lies behind an expert's rows has to be nobody's."""
    least, end = least_rows(replace(PROBLEM, scheme=scheme)), BACKEND.split_rows
    for mean in (least, end - 0.2):
        forms = {alignment: rows_by(BACKEND, scheme, alignment, mean) for alignment in (1, 4, 8, 24, 32, 64)}
        split = dict.fromkeys((8, 24, 32, 64), "split_grouped")
        assert forms == {1: "in_place", 4: "in_place", **split}
        assert rows_by(BACKEND, scheme, 32, mean, (10, 0)) == "in_place"
        assert rows_by(TritonQuantized(split_rows=0), scheme, 32, mean) == "nibble_rows"
        assert rows_by(TritonQuantized(split_rows=0), scheme, 8, mean) == "in_place"
    assert rows_by(BACKEND, scheme, 8, end) == rows_by(BACKEND, scheme, 24, end) == "in_place"
    assert rows_by(BACKEND, scheme, 32, end) == "nibble_rows"
    assert least <= 0.2 or rows_by(BACKEND, scheme, 64, least - 0.2) == "in_place"
    assert rows_by(TritonQuantized(coded_rows=0), scheme, 8, 0.2) == "split_grouped"
    assert rows_by(TritonQuantized(coded_rows=end), scheme, 8, end - 0.2) == "in_place"


@pytest.mark.parametrize(
    "scheme", [Scheme(NVFP4(), Plain()), Scheme(INT4(PerGroup(32), scale=torch.bfloat16), Plain())], ids=repr
)
def test_rows_that_meet_other_formats_are_not_split_in_place(scheme):
    assert rows_by(TritonQuantized(coded_rows=0), scheme, 32, 5) == "nibble_rows"
    assert rows_by(TritonQuantized(coded_rows=0), scheme, 8, 5) == "in_place"


@pytest.mark.parametrize(
    ("backend", "mean", "tile_rows"),
    [
        (BACKEND, 32, 32),
        (BACKEND, 33, 128),
        (TritonQuantized(wide_rows=0, split_rows=0), 4, 128),
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
    few, many = (least_rows(replace(size, scheme=MXFP4_MXFP8)) for size in (large, small))
    assert 0 < few < many < 32
    assert few == pytest.approx(many * small.num_weights / large.num_weights, rel=1e-3)


def test_more_scales_than_two_words_hold_are_not_multiplied_as_codes():
    problem = replace(PROBLEM, scheme=Scheme(INT4(PerGroup(16), scale=torch.bfloat16), Plain()))
    assert called(TritonQuantized(coded_rows=0), problem, 100, (9, 0)) == "tokens"


@pytest.mark.parametrize("field", ["coded_rows", "expand_rows", "wide_rows", "split_rows"])
@pytest.mark.parametrize("value", [-1, True, 0.5, "12"])
def test_mean_rows_are_whole_numbers(unchecked, field, value):
    with pytest.raises(TuningError, match=f"TritonQuantized.{field} is"):
        TritonQuantized(**{field: value})


@pytest.mark.parametrize("field", ["expand_rows", "wide_rows", "split_rows"])
def test_only_the_rows_of_codes_may_be_left_to_what_was_measured(unchecked, field):
    with pytest.raises(TuningError, match=f"TritonQuantized.{field} is"):
        TritonQuantized(**{field: None})


def test_the_workspace_holds_all_weights_once_they_are_read_back():
    problem = replace(PROBLEM, scheme=Scheme(MXFP8(), MXFP8()))
    enough = -(-512 * PROBLEM.num_experts // PROBLEM.top_k)
    few, many = BACKEND.workspace(problem, enough - 1), BACKEND.workspace(problem, enough)
    assert many - few > PROBLEM.num_experts * PROBLEM.num_weights
    for scheme in (problem.scheme, PROBLEM.scheme, MXFP4_MXFP8, Scheme(NVFP4(), Plain()), *SPLIT):
        case = replace(PROBLEM, scheme=scheme)
        counts = [BACKEND.workspace(case, rows) for rows in range(1, 3000, 7)]
        assert counts == sorted(counts)
