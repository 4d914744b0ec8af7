"""The only tolerances of the numeric tests: the error's rms and maximum over the reference's standard deviation.

Measured noise (worst over all cases of tests/backends, then doubled): two roundings between the projections and one
of the output. An all-zero answer scores rms 1.0, gate and up exchanged 0.2 and more, GELU for SiLU 0.1.
"""

import numpy as np
import torch

RMS = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
MAX = {torch.float64: 1e-11, torch.float32: 4e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def assert_close(got, wanted, dtype):
    """`got` is a tensor, `wanted` a float64 array of the same shape."""
    assert got.dtype == dtype
    assert tuple(got.shape) == wanted.shape
    values = got.detach().double().cpu().numpy()
    assert np.isfinite(values).all(), "not finite"
    if wanted.size == 0:
        return
    error, scale = values - wanted, wanted.std() or 1.0
    rms, worst = np.sqrt((error**2).mean()) / scale, np.abs(error).max() / scale
    assert rms <= RMS[dtype], f"rms error over std {rms:.2e}, allowed {RMS[dtype]:.0e}"
    assert worst <= MAX[dtype], f"largest error over std {worst:.2e}, allowed {MAX[dtype]:.0e}"
