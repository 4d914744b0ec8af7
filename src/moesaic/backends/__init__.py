"""Who computes. `BACKENDS` is in order of preference: the first eligible one runs."""

from typing import Any

from moesaic.backends.base import Backend as Backend
from moesaic.backends.capabilities import Accepts as Accepts
from moesaic.backends.capabilities import Capabilities as Capabilities
from moesaic.backends.capabilities import Reason as Reason
from moesaic.backends.capabilities import ReasonCode as ReasonCode
from moesaic.backends.capabilities import Requires as Requires
from moesaic.backends.capabilities import Target as Target
from moesaic.backends.cpu import Cpu as Cpu
from moesaic.backends.cpu_jit import CpuJit as CpuJit
from moesaic.backends.cpu_jit_quantized import CpuJitQuantized as CpuJitQuantized
from moesaic.backends.cpu_quantized import CpuQuantized as CpuQuantized
from moesaic.backends.hopper_grouped import HopperGrouped as HopperGrouped
from moesaic.backends.reference import Reference as Reference
from moesaic.backends.torch_grouped import TorchGrouped as TorchGrouped
from moesaic.backends.triton_grouped import TritonGrouped as TritonGrouped
from moesaic.backends.triton_quantized import TritonQuantized as TritonQuantized

BACKENDS: tuple[Backend[Any], ...] = (
    HopperGrouped(),
    TritonGrouped(),
    TritonQuantized(),
    CpuJit(),
    Cpu(),
    CpuJitQuantized(),
    CpuQuantized(),
    TorchGrouped(),
)
"""The backends of the package, best first; `Reference` is not among them and runs only when named."""
