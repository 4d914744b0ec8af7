"""The kit on the Triton backends, where there is a CUDA device; each of the ways in which HopperGrouped computes."""

import pytest
import torch

from moesaic import HopperGrouped, TritonGrouped, TritonQuantized
from moesaic.conformance import BackendConformance
from moesaic.tuning import Always, CostModel, Product

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
    backend = HopperGrouped(Always(Product()))
    device = "cuda"


class TestHopperGroupedWithCopiedRows(BackendConformance):
    backend = HopperGrouped(Always(Product(gather=False)))
    device = "cuda"


class TestHopperGroupedWithoutProducts(BackendConformance):
    backend = HopperGrouped(CostModel(products=False))
    device = "cuda"


class TestTritonQuantized(BackendConformance):
    backend = TritonQuantized()
    device = "cuda"


class TestTritonQuantizedReadBack(BackendConformance):
    backend = TritonQuantized(expand_rows=0, coded_rows=2**31)
    device = "cuda"


class TestTritonQuantizedCodes(BackendConformance):
    backend = TritonQuantized(coded_rows=0, split_rows=0)
    device = "cuda"


class TestTritonQuantizedCodesInWideTiles(BackendConformance):
    backend = TritonQuantized(coded_rows=0, wide_rows=0, split_rows=0)
    device = "cuda"


class TestTritonQuantizedSplit(BackendConformance):
    backend = TritonQuantized(coded_rows=0, split_rows=2**31)
    device = "cuda"
