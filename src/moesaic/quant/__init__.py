"""How a tensor is stored: one frozen class per format."""

from moesaic.quant.base import Format as Format
from moesaic.quant.base import Quantized as Quantized
from moesaic.quant.base import Scheme as Scheme
from moesaic.quant.plain import Plain as Plain

FORMATS: tuple[type[Format], ...] = (Plain,)
"""Every format of the package, for tables and tests."""

UNQUANTIZED: Scheme = Scheme(weights=Plain(), inputs=Plain())
"""Weights and inputs in the dtype of the layer (W16A16 in bfloat16 and float16, W32A32 in float32)."""
