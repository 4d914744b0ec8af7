"""What an expert applies between its two projections: one frozen class per activation."""

from moesaic.activations.base import Activation as Activation
from moesaic.activations.base import Constant as Constant
from moesaic.activations.base import constant as constant
from moesaic.activations.geglu import GeGLU as GeGLU
from moesaic.activations.pointwise import GELU as GELU
from moesaic.activations.pointwise import Identity as Identity
from moesaic.activations.pointwise import ReLU as ReLU
from moesaic.activations.pointwise import ReLU2 as ReLU2
from moesaic.activations.pointwise import SiLU as SiLU
from moesaic.activations.powlu import PowLU as PowLU
from moesaic.activations.reglu import ReGLU as ReGLU
from moesaic.activations.situ import SiTU as SiTU
from moesaic.activations.swiglu import SwiGLU as SwiGLU
from moesaic.activations.swiglu import SwiGLUStep as SwiGLUStep

ACTIVATIONS: tuple[type[Activation], ...] = (
    SwiGLU,
    SwiGLUStep,
    SiTU,
    GeGLU,
    ReGLU,
    PowLU,
    ReLU2,
    ReLU,
    GELU,
    SiLU,
    Identity,
)
"""Every activation of the package, for tables and tests."""
