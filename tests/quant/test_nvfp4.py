"""NVFP4's two scales: calibration, subnormals, the conventions of two libraries, and one global scale per matrix."""

import pytest
import torch

from moesaic import NVFP4, ExpertWeights, Quantized
from moesaic.errors import FormatError
from moesaic.quant import e2m1
from moesaic.quant.nibbles import unpack


def weights(sigma, rows=64, columns=256):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * sigma


def one_code(scale=448.0, lead=()):
    """Data whose first value is code 7, which is 6, with that scale."""
    data = torch.zeros(*lead, 1, 8, dtype=torch.uint8)
    data[..., 0, 0] = 7
    return data, torch.full((*lead, 1, 1), scale).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("sigma", [0.02, 0.002, 0.001, 1e-6, 1e4])
def test_the_error_does_not_depend_on_the_size_of_the_weights(sigma):
    """With a global scale of 1 the three sizes of fault F44 give .103, .95 and 1.00."""
    given = weights(sigma)
    back = NVFP4().quantize(given).dequantize(torch.float64)
    error = ((back - given) ** 2).mean().sqrt() / (given.double() ** 2).mean().sqrt()
    assert 0.09 < error < 0.1


def test_the_global_scale_is_calibrated_so_that_the_largest_value_is_kept():
    given = weights(0.02)
    stored = NVFP4().quantize(given)
    largest = given.abs().max()
    assert stored.scales["global_scale"].item() == (largest / (448 * 6)).item()
    assert stored.scales["scale"].float().max() == 448
    assert stored.dequantize(torch.float32).abs().max() == pytest.approx(largest.item(), rel=1e-6)


def test_subnormal_scales_are_read_as_they_are():
    """E4M3 holds .0025 as .001953125 and .003 as .00390625 (fault F49): they must be neither flushed nor normal."""
    data = torch.full((1, 16), 0x22, dtype=torch.uint8)
    scale = torch.tensor([[0.0025, 0.003]]).to(torch.float8_e4m3fn)
    stored = Quantized(NVFP4(), data, {"scale": scale, "global_scale": torch.ones(1, 1)})
    assert stored.dequantize(torch.float32)[0, [0, 16]].tolist() == [0.001953125, 0.00390625]


def test_a_group_far_below_the_matrix_gets_the_least_scale_and_not_zero():
    matrix = torch.zeros(1, 32)
    matrix[0, 0], matrix[0, 16] = 2688.0, 0.003
    stored = NVFP4().quantize(matrix)
    assert stored.scales["scale"].float().tolist() == [[448.0, 2.0**-9]]
    assert stored.dequantize(torch.float32)[0, 16].item() == pytest.approx(0.003, abs=2.0**-9 / 2)


def test_compressed_tensors_divides_and_modelopt_multiplies():
    """One code 6 with scale 448: 2688 in one convention and 1 / 2688 in the other are the value 1 (fault F45)."""
    data, scale = one_code()
    divided = NVFP4.from_compressed_tensors(data, scale, torch.tensor([2688.0]))
    multiplied = NVFP4.from_modelopt(data, scale, torch.tensor(1 / 2688))
    assert divided.dequantize(torch.float32)[0, 0].item() == pytest.approx(1.0, rel=1e-6)
    assert multiplied.dequantize(torch.float32)[0, 0].item() == pytest.approx(1.0, rel=1e-6)
    assert divided.data.data_ptr() == data.data_ptr()
    assert divided.scales["global_scale"].shape == (1, 1)


def test_the_numbers_of_each_expert_go_to_that_expert():
    data, scale = one_code(scale=1.0, lead=(2, 2))
    stored = NVFP4.from_modelopt(data, scale, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert stored.dequantize(torch.float32)[..., 0, 0].tolist() == [[6, 12], [18, 24]]
    joined = stored.join()
    assert joined.shape == (2, 2, 16)
    assert joined.scales["global_scale"].shape == (2, 2, 1)
    assert joined.dequantize(torch.float32)[..., 0].tolist() == [[6, 12], [18, 24]]
    assert joined.expert(1).dequantize(torch.float32)[:, 0].tolist() == [18, 24]


@pytest.mark.parametrize("number", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("read", [NVFP4.from_modelopt, NVFP4.from_compressed_tensors], ids=["modelopt", "compressed"])
def test_a_global_scale_that_is_none_is_refused(read, number):
    with pytest.raises(FormatError, match=r"scale.* is .*finite and above zero"):
        read(*one_code(), torch.tensor([number]))


def test_a_global_scale_for_each_matrix_is_needed():
    with pytest.raises(FormatError, match=r"has 2 numbers.*one for each matrix, 1"):
        NVFP4.from_modelopt(*one_code(), torch.ones(2))


def test_gate_and_up_of_every_expert_are_calibrated_apart():
    """One scale for gate and up would cost the smaller of them its low bits (fault F46)."""
    gate, up = weights(1.0).expand(3, -1, -1), weights(1e-4).expand(3, -1, -1)
    plain = ExpertWeights.plain(torch.cat([gate, up], 1), weights(0.02, 256, 64).expand(3, -1, -1))
    stored = plain.quantize(NVFP4()).gate_up
    assert stored.scales["global_scale"].shape == (3, 2, 1)
    first, second = stored.scales["global_scale"][0].flatten().tolist()
    assert first == pytest.approx(second * 1e4, rel=1e-5)
    error = stored.dequantize(torch.float32)[:, 64:] - up
    assert error.std() / up.std() < 0.1


def test_a_uniform_scaling_changes_only_the_global_scale():
    given = weights(0.02)
    one, other = NVFP4().quantize(given), NVFP4().quantize(given * 2**-20)
    assert torch.equal(unpack(one.data), unpack(other.data))
    assert torch.equal(one.scales["scale"].view(torch.uint8), other.scales["scale"].view(torch.uint8))
    assert e2m1.LARGEST * 448 * one.scales["global_scale"].item() == pytest.approx(given.abs().max().item())
