"""How a tensor is stored: one frozen class per format, and the schemes that pair two of them."""

from moesaic.quant.base import Format as Format
from moesaic.quant.base import Quantized as Quantized
from moesaic.quant.base import StoredTensor as StoredTensor
from moesaic.quant.fp8 import FP8 as FP8
from moesaic.quant.granularity import Granularity as Granularity
from moesaic.quant.granularity import PerBlock as PerBlock
from moesaic.quant.granularity import PerGroup as PerGroup
from moesaic.quant.granularity import PerRow as PerRow
from moesaic.quant.granularity import PerTensor as PerTensor
from moesaic.quant.int4 import INT4 as INT4
from moesaic.quant.int8 import INT8 as INT8
from moesaic.quant.mxfp4 import MXFP4 as MXFP4
from moesaic.quant.mxfp8 import MXFP8 as MXFP8
from moesaic.quant.nvfp4 import NVFP4 as NVFP4
from moesaic.quant.plain import Plain as Plain
from moesaic.quant.schemes import SCHEMES as SCHEMES
from moesaic.quant.schemes import UNQUANTIZED as UNQUANTIZED
from moesaic.quant.schemes import Scheme as Scheme

FORMATS: tuple[type[Format], ...] = (Plain, FP8, INT8, INT4, MXFP8, MXFP4, NVFP4)
"""Every format of the package, for tables and tests."""

GRANULARITIES: tuple[type[Granularity], ...] = (PerTensor, PerRow, PerGroup, PerBlock)
"""Every granularity of the package, for tables and tests."""
