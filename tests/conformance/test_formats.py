"""The package's own formats through the kit, each with the error that its rounding allows."""

import torch

from moesaic import FP8, INT4, INT8, MXFP4, MXFP8, NVFP4, PerBlock, PerGroup, PerRow, PerTensor, Plain
from moesaic.conformance import FormatConformance, StoredExample
from moesaic.quant import FORMATS

BF16, FP16, E8M0 = torch.bfloat16, torch.float16, torch.float8_e8m0fnu
WHOLE = tuple(map(float, range(-127, 128)))
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E4M3 = (448.0, 1.0, -0.5, 0.0, 14.0, 15.0, -416.0, 2.0**-6)
TOP = 16 / 448 * 1.001  # half a step above 256, where the largest is 448
UNDER_A_POWER = 2.0**-4  # where the largest may be just above 224
BF16_SCALE = 2.0**-8  # what saturates under a scale that was rounded down


def codes(*numbers):
    return torch.tensor([numbers], dtype=torch.uint8)


def e8m0(code):
    return codes(code).view(E8M0)


class TestPlain(FormatConformance):
    format = Plain()
    error = 0.0


class TestFP8PerTensor(FormatConformance):
    format = FP8(PerTensor())
    error = TOP
    exact = E4M3


class TestFP8PerRow(FormatConformance):
    format = FP8(PerRow())
    error = TOP
    exact = E4M3


class TestFP8PerBlock(FormatConformance):
    format = FP8(PerBlock())
    error = TOP
    exact = E4M3
    examples = (  # F45: weight_scale_inv multiplies
        StoredExample(torch.tensor([[3.0]]).to(torch.float8_e4m3fn), {"scale": torch.tensor([[2.0]])}, ((6.0,),)),
    )


class TestFP8PerSmallBlock(FormatConformance):
    format = FP8(PerBlock(16, 32))
    error = TOP
    exact = E4M3


class TestFP8PerGroup(FormatConformance):
    format = FP8(PerGroup(128))
    error = TOP
    exact = E4M3


class TestFP8WithBfloat16Scales(FormatConformance):
    format = FP8(PerRow(), scale=BF16)
    error = TOP + BF16_SCALE
    exact = E4M3


class TestFP8WithFloat16Scales(FormatConformance):
    format = FP8(PerRow(), scale=FP16)
    error = TOP + BF16_SCALE
    powers = (-3, 3)
    exact = E4M3


class TestFP8PerBlockWithPowersOfTwo(FormatConformance):
    format = FP8(PerBlock(), scale=E8M0)
    error = UNDER_A_POWER
    exact = E4M3


class TestFP8PerGroupWithPowersOfTwo(FormatConformance):
    format = FP8(PerGroup(128), scale=E8M0)
    error = UNDER_A_POWER
    exact = E4M3


class TestINT8(FormatConformance):
    format = INT8(PerRow())
    error = 0.5 / 127
    exact = WHOLE


class TestINT8PerTensor(FormatConformance):
    format = INT8(PerTensor())
    error = 0.5 / 127
    exact = WHOLE


class TestINT8PerGroup(FormatConformance):
    format = INT8(PerGroup(128), scale=BF16)
    error = 0.5 / 127 + BF16_SCALE
    exact = WHOLE


class TestINT4(FormatConformance):
    format = INT4(PerGroup(32))
    error = 0.5 / 7.5
    idempotent = False  # the code 15 stands for 7, which is less than the 7.5 that sets the scale
    examples = (StoredExample(codes(0x10, 0xF8), {"scale": torch.tensor([[0.5]])}, ((-4.0, -3.5, 0.0, 3.5),)),)  # F47


class TestINT4PerRow(FormatConformance):
    format = INT4(PerRow())
    error = 0.5 / 7.5
    idempotent = False


class TestINT4WithBfloat16Scales(FormatConformance):
    format = INT4(PerGroup(64), scale=BF16)
    error = 0.5 / 7.5 + BF16_SCALE
    idempotent = False


class TestINT4WithFloat16Scales(FormatConformance):
    format = INT4(PerGroup(128), scale=FP16)
    error = 0.5 / 7.5 + BF16_SCALE
    powers = (-3, 3)
    idempotent = False


class TestINT4WithZeroPoint(FormatConformance):
    format = INT4(PerGroup(32), zero_point=True)
    error = 1 / 15
    idempotent = False  # the zero point is rounded anew
    examples = (
        StoredExample(
            codes(0x21), {"scale": torch.tensor([[2.0]]), "zero_point": codes(3)}, ((-4.0, -2.0),)
        ),  # F47: (q - z) * s
    )


class TestINT4WithZeroPointAndFloat16Scales(FormatConformance):
    format = INT4(PerGroup(128), zero_point=True, scale=FP16)
    error = 1 / 15 + BF16_SCALE
    powers = (-3, 3)
    idempotent = False


class TestMXFP8(FormatConformance):
    format = MXFP8()
    error = UNDER_A_POWER
    exact = E4M3


class TestMXFP4(FormatConformance):
    format = MXFP4()
    error = 2 / 8  # what is above 6 scales becomes 6
    exact = E2M1
    examples = (StoredExample(codes(0x21, 0xF7), {"scale": e8m0(128)}, ((1.0, 2.0, 12.0, -12.0),)),)  # F47


class TestNVFP4(FormatConformance):
    format = NVFP4()
    error = 1 / 6 + 0.05  # half a step of 6, under a scale that is rounded itself
    exact = E2M1
    examples = (
        StoredExample(  # F45: the code 7 under the block scale 448 and the multiplier 1 / 2688
            codes(0x07),
            {"scale": torch.tensor([[448.0]]).to(torch.float8_e4m3fn), "global_scale": torch.tensor([[1 / 2688]])},
            ((1.0, 0.0),),
        ),
    )


def test_every_format_is_tried():
    tried = [kind.format for kind in FormatConformance.__subclasses__() if kind.__module__ == __name__]
    assert {type(stored) for stored in tried} == set(FORMATS)
