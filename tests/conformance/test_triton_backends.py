"""The kit on the Triton backends, where there is a CUDA device; each of the ways in which HopperGrouped computes."""

import pytest
import torch

from moesaic import HopperGrouped, TritonGrouped
from moesaic.conformance import BackendConformance

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu


class TestTritonGrouped(BackendConformance):
    backend = TritonGrouped()
    device = "cuda"


class TestHopperGrouped(BackendConformance):
    backend = HopperGrouped()
    device = "cuda"


class TestHopperGroupedWithProducts(BackendConformance):
    backend = HopperGrouped(product_rows=0)
    device = "cuda"
