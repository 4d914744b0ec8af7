"""Codes and scales are the same bits on CUDA as on a CPU."""

import pytest
import torch

from tests.quant.examples import FORMATS


@pytest.mark.gpu
@pytest.mark.parametrize("stored", FORMATS, ids=repr)
def test_the_same_bits(stored):
    values = (
        torch.randn(3, 130, 416, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 3)[:, None, None]
    )
    here, there = stored.quantize(values), stored.quantize(values.cuda())
    assert torch.equal(here.data.view(torch.uint8), there.data.view(torch.uint8).cpu())
    for name, scale in here.scales.items():
        assert torch.equal(scale.view(torch.uint8), there.scales[name].cpu().view(torch.uint8)), name
    assert torch.equal(here.dequantize(torch.float32), there.dequantize(torch.float32).cpu())
