"""What cannot be stored is refused by name: NaN and infinity with their index, odd rows in 4 bits, wrong fields."""

import pytest
import torch

from moesaic import FP8, INT4, INT8, NVFP4, ExpertWeights, PerBlock, PerGroup, PerRow, Plain, Problem, Scheme, SwiGLU
from moesaic.errors import FormatError
from tests.quant.examples import FORMATS, FOUR_BITS, values

each_format = pytest.mark.parametrize("stored", FORMATS, ids=repr)
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")], ids=str)
@each_format
def test_a_number_that_is_not_finite_is_named_with_its_index(stored, number):
    stack = values(2, 5, 64)
    stack[1, 3, 17] = number
    stack[1, 4, 2] = number
    with pytest.raises(FormatError, match=rf"down\[1, 3, 17\] is {number}"):
        stored.quantize(stack, name="down")


@each_format
def test_a_number_beyond_float32_is_named(stored):
    wide = values(2, 64, dtype=torch.float64)
    wide[1, 2] = 1e300
    with pytest.raises(FormatError, match=r"tensor\[1, 2\] is 1e\+300, .* up to 3.40282e\+38: scale"):
        stored.quantize(wide)


def test_expert_weights_name_a_number_beyond_float32_by_its_canonical_index():
    wide = values(3, 80, 64).double()
    wide[2, 50, 33] = -1e39
    with pytest.raises(FormatError, match=r"gate_up\[2, 50, 33\] is -1e\+39"):
        ExpertWeights.plain(wide, values(3, 64, 40).double()).quantize(FP8(PerRow()))


@pytest.mark.parametrize("projection", ["gate_up", "down"])
@each_format
def test_expert_weights_name_the_projection_and_the_canonical_index(stored, projection):
    tensors = {"gate_up": values(3, 2 * 40, 64), "down": values(3, 64, 40)}
    tensors[projection][2, 50, 33] = float("nan")
    with pytest.raises(FormatError, match=rf"{projection}\[2, 50, 33\] is nan"):
        ExpertWeights.plain(**tensors).quantize(stored)


@pytest.mark.parametrize("stored", FOUR_BITS, ids=repr)
def test_odd_columns_are_refused_in_four_bits(stored):
    with pytest.raises(FormatError, match=r"down cannot be packed.*two values in a byte.* 65"):
        stored.quantize(values(4, 65), name="down")
    with pytest.raises(FormatError, match="two values in a byte"):
        stored.storage((4, 65), torch.float32)


@pytest.mark.parametrize("scheme", [Scheme(NVFP4(), Plain()), Scheme(Plain(), NVFP4())], ids=repr)
@pytest.mark.parametrize("field", ["hidden_size", "intermediate_size"])
def test_a_problem_whose_columns_cannot_be_packed_is_refused(scheme, field):
    sizes = {"hidden_size": 64, "intermediate_size": 32, field: 65}
    with pytest.raises(FormatError, match="two values in a byte"):
        Problem(num_experts=2, top_k=1, activation=SwiGLU(), scheme=scheme, **sizes)


@pytest.mark.parametrize("given", [torch.ones(4), torch.ones(2, 4, dtype=torch.int32), torch.tensor(1.0)], ids=repr)
@each_format
def test_only_matrices_of_floats_are_quantized(stored, given):
    with pytest.raises(FormatError, match="rows and columns"):
        stored.quantize(given)


@pytest.mark.parametrize("stored", [FP8(PerRow(), scale=torch.float16), INT8(PerRow(), scale=torch.float16)], ids=repr)
def test_a_scale_beyond_float16_is_refused(stored):
    with pytest.raises(FormatError, match=r"down needs a scale of .*float16 ends at 65504"):
        stored.quantize(values(4, 64, sigma=1e9), name="down")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: FP8("block"), r"FP8.granularity is 'block'.*PerRow\(\)"),
        (lambda: FP8(PerRow), "FP8.granularity"),
        (lambda: FP8(PerRow(), scale=torch.float64), "FP8.scale is torch.float64"),
        (lambda: FP8(PerRow(), scale="float32"), "FP8.scale is 'float32'"),
        (lambda: INT8(128), "INT8.granularity is 128"),
        (lambda: INT8(PerRow(), scale=torch.float8_e8m0fnu), "INT8.scale"),
        (lambda: INT4(128), r"INT4.granularity is 128.*PerGroup\(128\)"),
        (lambda: INT4(PerBlock()), "INT4.granularity"),
        (lambda: INT4(PerGroup(32), zero_point=1), "INT4.zero_point is 1"),
        (lambda: INT4(PerGroup(32), scale=torch.float8_e8m0fnu), "INT4.scale"),
        (lambda: PerGroup(0), "PerGroup.columns is 0"),
        (lambda: PerGroup(32.0), "PerGroup.columns is 32.0"),
        (lambda: PerBlock(128, -1), "PerBlock.columns is -1"),
        (lambda: PerBlock(1, 128), r"PerBlock.rows is 1, which is PerGroup\(128\)"),
    ],
)
def test_wrong_fields_are_named(build, says):
    with pytest.raises(FormatError, match=says):
        build()
