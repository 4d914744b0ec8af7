"""Values of the package's activations, from the faults that public implementations had; computed apart from it.

The catalogue's numbers (F01, F03 to F09, F54) to more digits, and one or two points where two activations part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from moesaic.activations import (
    GELU,
    Activation,
    GeGLU,
    Identity,
    PowLU,
    ReGLU,
    ReLU,
    ReLU2,
    SiLU,
    SiTU,
    SwiGLU,
    SwiGLUStep,
)
from moesaic.conformance.activation_checks.subject import Example

INF = math.inf

GOLDEN: Mapping[Activation, tuple[Example, ...]] = {
    SwiGLU(): (
        Example(2.0, -3.0, -5.28478246787),  # F07: exchanged -0.2846; F08
        Example(-2.0, 3.0, -0.715217532133),
        Example(INF, 2.0, INF),
    ),
    SwiGLU(limit=10.0): (
        Example(20.0, -30.0, -99.9954602131),  # F01: without the limit -600, with one side only -299.99
        Example(20.0, 30.0, 99.9954602131),
        Example(-30.0, 1.0, -2.80728689e-12),  # the gate has no lower limit
        Example(INF, 2.0, 19.9990920426),  # F06
    ),
    SwiGLU(alpha=1.702, beta=1.0, limit=7.0): (
        Example(1.0, 0.0, 0.845795765933),  # F03: plain SwiGLU 0
        Example(2.0, 0.5, 2.90348793472),
        Example(9.0, -9.0, -41.9997187698),
    ),
    SwiGLU(limit=3.0): (Example(5.0, 5.0, 8.5731671414),),  # F04: hard-coded constants 24.995
    SwiGLU(limit=1.0): (Example(3.0, 1.0, 0.73105857863),),  # F04: the clamp after silu 1
    SwiGLUStep(limit=1.0): (Example(3.0, 1.0, 1.0),),  # F04: the clamp before silu .7311
    SwiGLUStep(): (
        Example(9.0, -9.0, -49.0),
        Example(-2.0, 3.0, -0.715217532133),
        Example(8.0, 1.0, 7.0),
    ),
    SiTU(): (
        Example(8.0, 50.0, 92.903751778, 3e-6),  # F05: SwiGLU 399.87, sigmoid of the capped gate 91.010
        Example(-2.0, 10.0, -2.09297604249, 3e-6),  # F05: capped -2.3888
        Example(0.5, -0.25, -0.0774021062627, 3e-6),
        Example(3.0, -60.0, -59.5149315685, 3e-6),
        Example(INF, INF, 100.0, 3e-6),
    ),
    SiTU(limit=5.0): (Example(9.0, -9.0, -16.6309669341),),
    SiTU(linear_scale=None): (Example(2.0, -30.0, 4 * math.tanh(0.5) / (1 + math.exp(-2)) * -30.0),),
    GeGLU(): (Example(-1.0, 1.0, -0.158655253931),),  # F09: SwiGLU -.26894, the tanh form -.15881
    GeGLU("tanh"): (Example(-1.0, 1.0, -0.158808009392),),
    ReGLU(): (Example(2.0, -3.0, -6.0), Example(-2.0, 3.0, 0.0)),
    PowLU(): (
        Example(4.0, 2.0, 6.23539889341),
        Example(-1.0, 2.0, -0.53788284274),
        Example(0.25, 3.0, 0.167324919168),
        Example(INF, 2.0, 2.0),  # F06: inf^0 is 1
    ),
    PowLU(limit=2.0): (Example(9.0, -5.0, -4.0),),
    ReLU2(): (Example(3.0, 0.0, 9.0), Example(-3.0, 0.0, 0.0)),
    ReLU2(limit=3.0): (Example(2.0, 0.0, 3.05672365250), Example(5.0, 0.0, 7.80268593018)),
    ReLU(): (Example(3.0, 0.0, 3.0), Example(-3.0, 0.0, 0.0)),
    GELU(): (Example(-1.0, 0.0, -0.158655253931), Example(2.0, 0.0, 1.9544997361)),  # F09: ReLU 0
    GELU("tanh"): (Example(-1.0, 0.0, -0.158808009392),),
    SiLU(): (Example(2.0, 0.0, 1.76159415596), Example(-1.0, 0.0, -0.26894142137)),
    Identity(): (Example(-1.5, 0.0, -1.5),),
}
"""What ActivationConformance adds to the examples of an activation that is one of these."""
