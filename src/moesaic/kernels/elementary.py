"""Elementary functions for kernels, in float32: those that Triton lacks, and those that must keep NaN.

`tl.minimum` and `tl.maximum` return the other operand where one is NaN, unless they are told to propagate it: a
clamp would turn a NaN into the limit.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def at_most(values, limit):
    """`min(values, limit)`; NaN stays NaN."""
    return tl.minimum(values, limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
@no_type_check
def within(values, limit):
    """`clamp(values, -limit, limit)`; NaN stays NaN."""
    return tl.maximum(at_most(values, limit), -limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
@no_type_check
def relu(values):
    """`max(values, 0)`; NaN stays NaN."""
    return tl.maximum(values, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
@no_type_check
def tanh(values):
    """Within 2 ulp of the true value, where the hardware's tanh.approx errs by 2^-11.

    Below 0.625 the odd polynomial of Cephes' tanhf, since 1 - 2 / (e + 1) cancels there; NaN takes the other branch.
    """
    size = tl.abs(values)
    square = values * values
    series = -5.70498872745e-3 * square + 2.06390887954e-2
    series = series * square - 5.37397155531e-2
    series = series * square + 1.33314422036e-1
    series = series * square - 3.33332819422e-1
    near = values + values * square * series
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size < 0.625, near, tl.where(values < 0, -far, far))


@triton.jit
@no_type_check
def power(base, exponent):
    """`base ** exponent` for base > 0; anything to the power 0 is 1, infinity too."""
    return tl.where(exponent == 0.0, 1.0, tl.exp2(exponent * tl.log2(base)))
