"""tolerance: the deviation that is allowed, from the noise floor measured per dtype, scheme and length of the sums.

An all-zero answer has rms 1.0, the router weight applied twice 0.8, gate and up exchanged 0.24, GELU for SiLU 0.10;
bfloat16 is allowed 0.0115. `python -m moesaic.conformance.noise_table` measures the table again, a test a part of it.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from moesaic.conformance.noise import Deviation, measure
from moesaic.quant import Plain, Scheme

MARGIN = (2.5, 4.0, 5.0)
"""What a kernel may have of the honest one's rms, worst and row deviation. Between seeds the floor's rms differs by
5 %, its extremes by 40 %; kernels add orders of summation of their own, and cases biases and norms."""

EXTREMES = 1.4
"""The largest of a thousand columns over the largest of a few, as plain bfloat16 has them."""

FEW_ROWS = 8
"""Rows below which a batch is judged as one row is."""

NOISE: tuple[tuple[torch.dtype, int, Deviation], ...] = (
    (torch.bfloat16, 32, Deviation(4.6e-3, 1.9e-2, 8.8e-3)),
    (torch.bfloat16, 256, Deviation(4.5e-3, 2.1e-2, 6.0e-3)),
    (torch.bfloat16, 1024, Deviation(4.4e-3, 2.7e-2, 5.0e-3)),
    (torch.bfloat16, 3072, Deviation(4.4e-3, 2.7e-2, 5.0e-3)),
    (torch.float16, 32, Deviation(5.8e-4, 2.5e-3, 1.1e-3)),
    (torch.float16, 256, Deviation(5.6e-4, 2.4e-3, 7.3e-4)),
    (torch.float16, 1024, Deviation(5.6e-4, 2.7e-3, 6.4e-4)),
    (torch.float16, 3072, Deviation(5.5e-4, 2.9e-3, 5.9e-4)),
    (torch.float32, 32, Deviation(2.2e-7, 1.2e-6, 4.8e-7)),
    (torch.float32, 256, Deviation(5.7e-7, 3.3e-6, 7.8e-7)),
    (torch.float32, 1024, Deviation(1.1e-6, 6.1e-6, 1.4e-6)),
    (torch.float32, 3072, Deviation(1.9e-6, 1.3e-5, 2.0e-6)),
    (torch.float64, 32, Deviation(3.1e-16, 1.6e-15, 5.8e-16)),
    (torch.float64, 256, Deviation(8.7e-16, 5.5e-15, 1.3e-15)),
    (torch.float64, 1024, Deviation(1.8e-15, 1.3e-14, 2.3e-15)),
    (torch.float64, 3072, Deviation(3.4e-15, 2.3e-14, 3.8e-15)),
)
"""The measured floor of plain weights and inputs: (dtype, H = I, deviation)."""


def tolerance(dtype: torch.dtype, scheme: Scheme, length: int, num_rows: int) -> Deviation:
    """What is allowed over `num_rows` rows whose longest sum has `length` terms (the larger of H and I)."""
    rms, worst, row = MARGIN
    allowed = floor(dtype, scheme, length).times(rms, worst, row)
    # Over few rows the root mean square is as uncertain as that of one row.
    return replace(allowed, rms=max(allowed.rms, allowed.row)) if num_rows < FEW_ROWS else allowed


def floor(dtype: torch.dtype, scheme: Scheme, length: int) -> Deviation:
    """The measured noise of the honest kernel.

    Weights in a format are exact for the reference, and cost the kernel one more rounding of each: measured over all
    schemes of the package, 1.2 times the plain floor at most. Rounded inputs are measured in bfloat16 whatever the
    dtype: in float32 one value in 10,000 falls on the other side of a code's boundary, and is then off by a whole step.
    Beyond the longest sum of the table the noise of float32 and float64 grows with the square root of the length.
    """
    if not isinstance(scheme.inputs, Plain):
        coarse = max(dtype, torch.bfloat16, key=lambda d: torch.finfo(d).eps)
        return measure(coarse, 64, scheme).times(1.0, EXTREMES if length >= 1024 else 1.0, 1.0)
    rows = [(known, noise) for of, known, noise in NOISE if of == dtype]
    reached = [known for known, _ in rows if known >= length]
    covered = [noise for known, noise in rows if known <= (reached[0] if reached else length)]
    found = Deviation(max(n.rms for n in covered), max(n.worst for n in covered), max(n.row for n in covered))
    if length > rows[-1][0] and dtype.itemsize > 2:  # in 16 bits the stored tensors are what is rounded
        beyond = (length / rows[-1][0]) ** 0.5
        found = found.times(beyond, beyond, beyond)
    return found if isinstance(scheme.weights, Plain) else found.times(1.4, 1.4, 1.4)
