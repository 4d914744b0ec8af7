"""What a format says it stores: names, dtypes, shapes, bytes; tensors that do not fit are refused by name."""

import pytest
import torch

from moesaic import FP8, INT4, MXFP4, NVFP4, PerBlock, PerGroup, PerRow, PerTensor, Plain, Quantized, StoredTensor
from moesaic.errors import FormatError
from tests.quant.examples import FORMATS, values

SHAPES = [(192, 80), (3, 65, 130), (2, 2, 7, 64)]
each_format = pytest.mark.parametrize("stored", [Plain(), *FORMATS], ids=repr)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_format
def test_what_is_stored_is_what_is_said(stored, shape):
    got = stored.quantize(values(*shape))
    said = stored.storage(shape, torch.float32)
    assert list(said) == ["data", *stored.scale_names]
    for tensor, wanted in zip(got.tensors, said.values(), strict=True):
        assert StoredTensor(tensor.dtype, tuple(tensor.shape)) == wanted
    assert got.shape == stored.logical_shape(got.data) == shape
    assert stored.num_bytes(shape, torch.float32) == sum(t.numel() * t.element_size() for t in got.tensors)


@pytest.mark.parametrize(
    ("stored", "num_bytes"),
    [
        (Plain(), 2 * 256 * 256),
        (FP8(PerTensor()), 256 * 256 + 4),
        (FP8(PerRow()), 256 * 256 + 4 * 256),
        (FP8(PerBlock()), 256 * 256 + 4 * 4),
        (FP8(PerGroup(128), scale=torch.float8_e8m0fnu), 256 * 256 + 512),
        (INT4(PerGroup(128), scale=torch.bfloat16), 256 * 128 + 2 * 512),
        (INT4(PerGroup(32), zero_point=True), 256 * 128 + 5 * 2048),
        (MXFP4(), 256 * 128 + 256 * 8),
        (NVFP4(), 256 * 128 + 256 * 16 + 4),
    ],
    ids=repr,
)
def test_bytes_by_hand(stored, num_bytes):
    assert stored.num_bytes((256, 256), torch.bfloat16) == num_bytes


BLOCK = FP8(PerBlock())
DATA = torch.zeros(3, 192, 130).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("data", "scale", "says"),
    [
        (DATA, torch.ones(3, 1, 2), r"scale is torch.float32 of shape \(3, 1, 2\).*\(3, 2, 2\)"),
        (DATA, torch.ones(3, 192, 2), r"scale .*\(3, 192, 2\).*\(3, 2, 2\)"),
        (DATA, torch.ones(2, 2), r"scale .*\(2, 2\).*\(3, 2, 2\)"),
        (DATA, torch.ones(2, 2, 2), r"scale .*\(2, 2, 2\).*\(3, 2, 2\)"),
        (DATA, torch.ones(3, 2, 2).bfloat16(), "scale is torch.bfloat16.* torch.float32"),
        (DATA.float(), torch.ones(3, 2, 2), "data is torch.float32.* torch.float8_e4m3fn"),
        (DATA.view(torch.uint8), torch.ones(3, 2, 2), "data is torch.uint8"),
    ],
    ids=str,
)
def test_a_tensor_of_the_wrong_shape_or_dtype_is_named(data, scale, says):
    with pytest.raises(FormatError, match=says):
        Quantized(BLOCK, data, {"scale": scale})


@pytest.mark.parametrize("scales", [{}, {"scale": torch.ones(3, 2, 2), "zero_point": torch.ones(3, 2, 2)}], ids=len)
def test_missing_and_surplus_scales_are_refused(scales):
    with pytest.raises(FormatError, match=r"stores the scales \('scale',\), but the tensor came with"):
        Quantized(BLOCK, DATA, scales)


def test_parts_have_blocks_of_their_own():
    """Gate and up of 192 rows hold 2 blocks each, of 128 and 64 rows: 4, where one tensor of 384 would hold 3."""
    gate, up = values(3, 192, 130, seed=1), values(3, 192, 130, seed=2) * 100
    joined = BLOCK.quantize(torch.stack([gate, up], 1)).join()
    assert joined.shape == (3, 384, 130)
    assert joined.scales["scale"].shape == (3, 4, 2)
    assert torch.equal(joined.dequantize(torch.float32)[:, :192], BLOCK.quantize(gate).dequantize(torch.float32))
    assert torch.equal(joined.dequantize(torch.float32)[:, 192:], BLOCK.quantize(up).dequantize(torch.float32))
    one = joined.expert(2)
    assert one.parts == 2
    assert torch.equal(one.dequantize(torch.float32), joined.dequantize(torch.float32)[2])
    assert joined.split().data.shape == (3, 2, 192, 130)
    assert joined.split().data.data_ptr() == joined.data.data_ptr()


@pytest.mark.parametrize("stored", FORMATS, ids=repr)
def test_splitting_undoes_joining(stored):
    split = stored.quantize(values(3, 2, 80, 130))
    again = split.join().split()
    for got, wanted in zip(again.tensors, split.tensors, strict=True):
        assert got.shape == wanted.shape
        assert got.data_ptr() == wanted.data_ptr()


def test_parts_that_do_not_divide_the_rows_are_refused():
    with pytest.raises(FormatError, match="not 5 parts of equal height"):
        Quantized(BLOCK, DATA, {"scale": torch.ones(3, 2, 2)}, parts=5)
    with pytest.raises(FormatError, match=r"scale .*\(3, 2, 2\).* 3 part.*\(3, 3, 2\)"):
        Quantized(BLOCK, DATA, {"scale": torch.ones(3, 2, 2)}, parts=3)
    with pytest.raises(FormatError, match=r"Quantized.parts is 0"):
        Quantized(BLOCK, DATA, {"scale": torch.ones(3, 2, 2)}, parts=0)


@pytest.mark.parametrize(
    ("granularity", "grid"),
    [(PerTensor(), (2, 1, 1)), (PerRow(), (2, 9, 1)), (PerGroup(4), (2, 9, 3)), (PerBlock(4, 8), (2, 3, 2))],
    ids=repr,
)
def test_the_grid_of_scales(granularity, grid):
    assert granularity.grid((2, 9, 10)) == grid
    spread = granularity.spread(torch.arange(float(torch.Size(grid).numel())).view(grid), (2, 9, 10)).expand(2, 9, 10)
    rows, columns = granularity.tile(9, 10)
    for e, i, j in [(0, 0, 0), (0, 8, 9), (1, 3, 4), (1, 4, 3), (1, 8, 7), (1, 7, 8)]:
        assert spread[e, i, j] == (e * grid[1] + i // rows) * grid[2] + j // columns
