"""Codes and values written by hand from the formats' definitions, so that the oracle is not believed alone."""

import numpy as np
import pytest
import torch

from moesaic import FP8, INT4, INT8, MXFP4, MXFP8, NVFP4, PerBlock, PerGroup, PerRow, PerTensor, Quantized
from moesaic.quant import e2m1, e4m3, scales
from moesaic.quant.nibbles import pack, unpack
from tests.quant import oracle

E8M0 = torch.float8_e8m0fnu


def e8m0(*codes):
    return torch.tensor([codes], dtype=torch.uint8).view(E8M0)


def codes(tensor):
    return tensor.view(torch.uint8).flatten().tolist()


def fp4(byte, scale):
    """One row of 32 values whose first two are in `byte`."""
    data = torch.zeros(1, 16, dtype=torch.uint8)
    data[0, 0] = byte
    return Quantized(MXFP4(), data, {"scale": scale})


def test_the_low_nibble_comes_first():
    assert fp4(0x21, e8m0(127)).dequantize(torch.float32)[0, :2].tolist() == [0.5, 1.0]
    assert fp4(0x21, e8m0(128)).dequantize(torch.float32)[0, :2].tolist() == [1.0, 2.0]
    assert pack(torch.tensor([1, 2, 15, 0], dtype=torch.uint8)).tolist() == [0x21, 0x0F]
    assert unpack(torch.tensor([0x21, 0x0F], dtype=torch.uint8)).tolist() == [1, 2, 15, 0]


def test_the_bytes_of_fp4_are_those_of_torch():
    stored = MXFP4().quantize(torch.randn(2, 64, generator=torch.Generator().manual_seed(0)))
    assert codes(stored.data.view(torch.float4_e2m1fn_x2)) == codes(stored.data)


def test_every_code_of_e2m1():
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    got = e2m1.decode(torch.arange(16, dtype=torch.uint8))
    assert got.tolist() == positive + [-v for v in positive]
    assert torch.signbit(got[8])
    assert e2m1.encode(got).tolist() == list(range(16))


def test_torch_reads_every_code_as_the_definitions_say():
    every = torch.arange(256, dtype=torch.uint8)
    got = every.view(torch.float8_e4m3fn).double().numpy()
    assert np.array_equal(got, oracle.e4m3_value(every.numpy()), equal_nan=True)
    assert np.array_equal(np.isnan(got).nonzero()[0], [127, 255])
    powers = every.view(E8M0).double()
    assert powers[:255].tolist() == [2.0 ** (code - 127) for code in range(255)]
    assert bool(powers[255].isnan())


def test_the_ties_of_e2m1():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert e2m1.encode(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert e2m1.encode(-ties).tolist() == [8, 10, 10, 12, 12, 14, 14]
    below, above = ties.nextafter(torch.zeros(())), ties.nextafter(torch.tensor(9.0))
    assert e2m1.encode(below).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert e2m1.encode(above).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert e2m1.encode(torch.tensor([6.1, 100.0, float("inf"), -7.0])).tolist() == [7, 7, 7, 15]


def test_fp8_by_hand():
    stored = FP8(PerRow()).quantize(torch.tensor([[448.0, 1.0, -2.0, 17.0, 19.0, 0.001953125, 0.0009765625, 0.0]]))
    assert stored.scales["scale"].tolist() == [[1.0]]
    # 17 lies between 16 (0x58, even) and 18 (0x59), 19 between 18 and 20 (0x5A, even); half of 2^-9 goes to zero.
    assert codes(stored.data) == [0x7E, 0x38, 0xC0, 0x58, 0x5A, 0x01, 0x00, 0x00]
    doubled = FP8(PerTensor()).quantize(torch.tensor([[896.0, 2.0], [-4.0, 0.0]]))
    assert doubled.scales["scale"].tolist() == [[2.0]]
    assert codes(doubled.data) == [0x7E, 0x38, 0xC0, 0x00]


def test_e4m3_saturates_and_keeps_nan():
    got = e4m3.encode(torch.tensor([448.0, 464.0, 465.0, 1e4, float("inf"), -1e30, float("nan"), 2.0**-9, 2.0**-10]))
    assert codes(got) == [0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x01, 0x00]


def test_no_scale_of_fp8_makes_a_nan():
    amax = torch.arange(1, 4000, dtype=torch.float32).unsqueeze(1) * torch.tensor([1.0, 1.0])
    for dtype in (torch.float32, torch.bfloat16, torch.float16, E8M0):
        stored = FP8(PerRow(), scale=dtype).quantize(amax)
        assert bool(stored.dequantize(torch.float32).isfinite().all())
        assert int((stored.data.view(torch.uint8) & 0x7F).max()) == 0x7E


def test_fp8_blocks_multiply_by_the_scale_of_their_own_block():
    """`weight_scale_inv` of DeepSeek multiplies: 3 stored with 2 is 6 (fault F45)."""
    data = torch.full((3, 5), 3.0).to(torch.float8_e4m3fn)
    scale = torch.tensor([[2.0, 10.0, 100.0], [3.0, 20.0, 200.0]])
    got = Quantized(FP8(PerBlock(2, 2)), data, {"scale": scale}).dequantize(torch.float32)
    assert got.tolist() == [[6, 6, 30, 30, 300], [6, 6, 30, 30, 300], [9, 9, 60, 60, 600]]


@pytest.mark.parametrize(
    ("rows", "columns", "grid"),
    [
        (1408, 2880, (11, 23)),
        (2880, 1408, (23, 11)),
        (192, 65, (2, 1)),
        (65, 192, (1, 2)),
        (128, 128, (1, 1)),
        (1, 1, (1, 1)),
    ],
)
def test_short_last_blocks(rows, columns, grid):
    stored = FP8(PerBlock()).quantize(torch.ones(rows, columns))
    assert tuple(stored.scales["scale"].shape) == grid
    matrix = torch.ones(rows, columns)
    matrix[-1, -1] = 448.0  # alone in the last block's scale
    scale = FP8(PerBlock()).quantize(matrix).scales["scale"]
    assert scale[-1, -1] == 1.0
    assert (scale == 1.0).sum() == 1


def test_ue8m0_is_rounded_up():
    """A power of two below would saturate: 449 needs 2, and 448 does with 1."""
    largest = torch.tensor([[448.0], [449.0], [896.0], [897.0], [447.0], [224.0], [225.0], [1e-38], [0.0]])
    stored = FP8(PerRow(), scale=E8M0).quantize(largest.expand(-1, 2))
    assert codes(stored.scales["scale"]) == [127, 128, 128, 129, 127, 126, 127, 0, 127]
    assert stored.scales["scale"].dtype == E8M0
    assert torch.equal(stored.scales["scale"].float()[:3, 0], torch.tensor([1.0, 2.0, 2.0]))
    assert torch.equal(MXFP8().quantize(largest.expand(-1, 2)).scales["scale"].float(), stored.scales["scale"].float())


def test_the_power_of_mxfp4_is_that_of_the_largest_value_over_four():
    largest = torch.tensor([[6.0], [7.9], [8.0], [4.0], [3.9], [1.0], [0.0], [1e-40]])
    stored = MXFP4().quantize(largest.expand(-1, 2))
    assert codes(stored.scales["scale"]) == [127, 127, 128, 127, 126, 125, 127, 0]
    assert stored.dequantize(torch.float32)[:6, 0].tolist() == [6, 6, 8, 4, 3, 1]


def test_e8m0_ends():
    assert scales.power_above(torch.tensor([3.4e38]), 1.0).float().item() == 2.0**127
    ends = Quantized(MXFP8(), torch.ones(1, 96).to(torch.float8_e4m3fn), {"scale": e8m0(0, 254, 255)}).dequantize(
        torch.float64
    )[0]
    assert ends[0] == 2.0**-127
    assert ends[32] == 2.0**127
    assert bool(ends[64].isnan()), "255 is NaN, and must stay visible"


def test_int8_by_hand():
    stored = INT8(PerRow()).quantize(torch.tensor([[127.0, 1.5, 2.5, -0.5, -127.0], [254.0, 3.0, 1.0, -5.0, 0.0]]))
    assert stored.data.tolist() == [[127, 2, 2, 0, -127], [127, 2, 0, -2, 0]]
    assert stored.scales["scale"].tolist() == [[1.0], [2.0]]
    read = Quantized(INT8(PerRow()), torch.tensor([[-128, 3]], dtype=torch.int8), {"scale": torch.tensor([[0.5]])})
    assert read.dequantize(torch.float32).tolist() == [[-64.0, 1.5]]


def test_symmetric_int4_by_hand():
    stored = INT4(PerGroup(4)).quantize(torch.tensor([[7.5, -7.5, 0.5, 1.5, 3.75, 1.0, 0.0, -1.25]]))
    assert stored.scales["scale"].tolist() == [[1.0, 0.5]]
    # 7.5 becomes 8 and is held at 7; -7.5 becomes -8; ties .5 and 1.5 become 0 and 2; -2.5 becomes -2.
    assert unpack(stored.data).tolist() == [[15, 0, 8, 10, 15, 10, 8, 6]]
    assert stored.dequantize(torch.float32).tolist() == [[7.0, -8.0, 0.0, 2.0, 3.5, 1.0, 0.0, -1.0]]


def test_int4_with_zero_point_by_hand():
    kind = INT4(PerGroup(4), zero_point=True)
    stored = kind.quantize(torch.tensor([[-3.0, 12.0, 0.0, 1.0, 15.0, 30.0, 0.0, 2.0]]))
    assert stored.scales["scale"].tolist() == [[1.0, 2.0]]
    assert stored.scales["zero_point"].tolist() == [[3, 0]]
    assert unpack(stored.data).tolist() == [[0, 15, 3, 4, 8, 15, 0, 1]]
    assert stored.dequantize(torch.float32).tolist() == [[-3.0, 12.0, 0.0, 1.0, 16.0, 30.0, 0.0, 2.0]]
    above = kind.quantize(torch.tensor([[5.0, 6.0, 5.0, 6.0]]))  # zero belongs to the span, so zero_point is 0
    assert above.scales["zero_point"].item() == 0
    below = kind.quantize(torch.tensor([[-5.0, -6.0, -5.0, -7.5]]))
    assert below.scales["zero_point"].item() == 15
    assert below.dequantize(torch.float32).tolist() == [[-5.0, -6.0, -5.0, -7.5]]


def test_the_int4_bytes_are_those_of_int32_words_of_compressed_tensors():
    """Word 0x76543210 holds the codes 0 to 7 in order, of which 8 is taken (fault F47)."""
    word = torch.tensor([[0x76543210]], dtype=torch.int32)
    stored = Quantized(INT4(PerGroup(32)), word.view(torch.uint8), {"scale": torch.ones(1, 1)})
    assert stored.dequantize(torch.float32).tolist() == [[-8, -7, -6, -5, -4, -3, -2, -1]]


def test_nvfp4_by_hand():
    matrix = torch.zeros(2, 32)
    matrix[0, :2] = torch.tensor([2688.0, 224.0])  # 448 * 6: global scale 1, first group scaled by 448
    matrix[0, 16:19] = torch.tensor([6.0, 1.0, -2.5])  # its scale is 1
    stored = NVFP4().quantize(matrix)
    assert stored.scales["global_scale"].tolist() == [[1.0]]
    assert stored.scales["scale"].float().tolist() == [[448.0, 1.0], [1.0, 1.0]]
    assert unpack(stored.data)[0, [0, 1, 16, 17, 18]].tolist() == [7, 1, 7, 2, 12]
    half = NVFP4().quantize(matrix / 2)
    assert half.scales["global_scale"].item() == 0.5
    assert torch.equal(half.data, stored.data)
