"""Scales of 4-bit weights by boxes of 64 rows and 128 columns: where each lies, and the way back, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from moesaic import FP8, INT4, MXFP4, NVFP4, ExpertWeights, PerGroup, PerRow, Plain, Problem, Quantized, Scheme, SwiGLU

pytest.importorskip("triton")
from moesaic.backends.boxed_scales import boxed, planes_of, unboxed
from moesaic.backends.format_forms import stored_form
from moesaic.backends.stored_weights import StoredWeights
from tests.backends import example

BF16, FP16 = torch.bfloat16, torch.float16
BOXED = {
    MXFP4(): (4, 1),
    NVFP4(): (8, 2),
    INT4(PerGroup(32), scale=BF16): (4, 2),
    INT4(PerGroup(32), scale=FP16): (4, 2),
    INT4(PerGroup(64), scale=BF16): (2, 1),
    INT4(PerGroup(64)): (2, 2),
    INT4(PerGroup(128), scale=BF16): (1, 1),
    INT4(PerGroup(128)): (1, 1),
}
"""Scales of 128 columns, and the words of 4 bytes or less that hold them."""

IN_ROWS = (
    INT4(PerGroup(32)),
    INT4(PerGroup(16), scale=BF16),
    INT4(PerGroup(256), scale=BF16),
    INT4(PerRow(), scale=BF16),
    INT4(PerGroup(64), zero_point=True, scale=BF16),
    INT4(PerGroup(128), zero_point=True, scale=BF16),
    FP8(PerGroup(32), scale=torch.float8_e8m0fnu),
)
SIZES = [(130, 192, 2), (130, 192, 1), (72, 130, 2), (64, 256, 1), (7, 40, 1)]
"""Rows of a matrix, its columns, and matrices above each other."""

each_format = pytest.mark.parametrize("stored", BOXED, ids=repr)
each_size = pytest.mark.parametrize(("rows", "columns", "parts"), SIZES)


def as_numbers(values):
    """Bits of a tensor."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return values.contiguous().view(kinds[values.itemsize]).numpy()


def drawn(stored, rows, columns, parts):
    """Scales of three experts in that format that hold any bits, NaN and negative zeros too."""
    values = torch.randn(3, parts, rows, columns, generator=torch.Generator().manual_seed(rows))
    weight = stored.quantize(values).join() if parts > 1 else stored.quantize(values[:, 0])
    scale = weight.scales["scale"]
    bits = np.random.default_rng(rows).integers(256, size=scale.numel() * scale.itemsize, dtype=np.uint8)
    return torch.from_numpy(bits).view(scale.dtype).view(scale.shape)


@each_format
@each_size
def test_every_scale_lies_in_its_box_and_comes_back(stored, rows, columns, parts):
    scale = drawn(stored, rows, columns, parts)
    per_block, planes = BOXED[stored]
    given = scale.view(torch.uint8) if scale.itemsize == 1 else scale
    form = replace(stored_form(stored), planes=planes_of(stored_form(stored), given))
    assert form.planes == planes
    found = boxed(given, parts, form)
    blocks, boxes = (columns + 127) // 128, (rows + 63) // 64
    assert found.shape == (3 * parts, blocks, boxes, planes, 64, per_block // planes)
    assert found.dtype == given.dtype
    assert found.is_contiguous()
    flat, bits = as_numbers(found).reshape(3 * parts, -1), as_numbers(given).reshape(3, parts, rows, -1)
    wanted = np.zeros_like(flat)
    for (expert, part, row, group), value in np.ndenumerate(bits):
        block, inside = divmod(group, per_block)
        plane, place = divmod(inside, per_block // planes)
        box = block * boxes + row // 64
        wanted[expert * parts + part, ((box * planes + plane) * 64 + row % 64) * (per_block // planes) + place] = value
    np.testing.assert_array_equal(flat, wanted)
    back = unboxed(found, parts, given.shape)
    assert back.dtype == given.dtype
    np.testing.assert_array_equal(as_numbers(back), as_numbers(given))


def prepared(stored, hidden, inner):
    """(weights of a layer, what the kernels hold of them)."""
    case = Problem(
        num_experts=5,
        top_k=3,
        hidden_size=hidden,
        intermediate_size=inner,
        activation=SwiGLU(),
        dtype=BF16,
        bias=True,
        scheme=Scheme(Plain(), Plain()),
    )
    plain = example.weights(case).quantize(stored)
    down = plain.down
    down = Quantized(down.format, down.data, {**down.scales, "scale": same_bits_moved(down.scales["scale"])}, 1)
    weights = ExpertWeights(plain.gate_up, down, plain.gate_up_bias, plain.down_bias)
    return weights, StoredWeights.of(weights, replace(case, scheme=Scheme(stored, Plain())))


def same_bits_moved(scale):
    """The same numbers, as a view into a wider tensor."""
    wide = torch.cat([scale.view(torch.uint8)] * 2, dim=-1)
    return wide.view(scale.dtype)[..., : scale.shape[-1]]


@pytest.mark.parametrize("stored", [*BOXED, *IN_ROWS], ids=repr)
@pytest.mark.parametrize(("hidden", "inner"), [(192, 130), (136, 72)])
def test_the_canonical_weights_come_back_and_no_byte_is_kept_twice(stored, hidden, inner):
    weights, held = prepared(stored, hidden, inner)
    back = held.canonical()
    for name in ("gate_up", "down"):
        came, got = getattr(weights, name), getattr(back, name)
        assert (got.format, got.parts, got.data.dtype) == (came.format, came.parts, came.data.dtype)
        np.testing.assert_array_equal(as_numbers(got.data), as_numbers(came.data))
        assert got.scales.keys() == came.scales.keys()
        for kind, scale in came.scales.items():
            assert got.scales[kind].dtype == scale.dtype
            np.testing.assert_array_equal(as_numbers(got.scales[kind]), as_numbers(scale))
    storages = [(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()) for tensor in held.tensors]
    assert len({address for address, _ in storages}) == len(storages)
    assert sum(size for _, size in storages) == sum(tensor.nbytes for tensor in held.tensors)
    assert sum(tensor.nbytes for tensor in held.tensors) == expected_bytes(stored, weights, hidden, inner)


def expected_bytes(stored, weights, hidden, inner):
    """Codes, two in a byte and whole blocks of 128; scales, in whole boxes if in boxes; all else as it came."""
    total = weights.gate_up_bias.nbytes + weights.down_bias.nbytes
    for weight, parts, rows, columns in ((weights.gate_up, 2, inner, hidden), (weights.down, 1, hidden, inner)):
        blocks, boxes = (columns + 127) // 128, (rows + 63) // 64
        total += weight.data.nbytes if isinstance(stored, FP8) else 5 * parts * rows * blocks * 64
        scale = weight.scales["scale"]
        if stored in BOXED:
            total += 5 * parts * boxes * 64 * blocks * BOXED[stored][0] * scale.itemsize
        else:
            total += scale.numel() * scale.itemsize
        if "zero_point" in weight.scales:
            total += weight.scales["zero_point"].numel() * 3  # as it came, and as numbers of bfloat16
        if "global_scale" in weight.scales:
            total += weight.scales["global_scale"].nbytes
    return total


@pytest.mark.parametrize("stored", IN_ROWS, ids=repr)
def test_other_scales_stay_in_rows(stored):
    weights, held = prepared(stored, 192, 130)
    for projection, weight in ((held.gate_up, weights.gate_up), (held.down, weights.down)):
        assert projection.stored.form.planes == 0
        np.testing.assert_array_equal(as_numbers(projection.stored.scales), as_numbers(weight.scales["scale"]))
