"""Programmatic dependent launch: a kernel's programs start while the kernel before them drains (Hopper and later).

`wait_for_previous` is the first thing that such a kernel does before it reads what the kernel before it wrote.
"""

from __future__ import annotations

import functools
from typing import no_type_check

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@functools.cache
def overlap_launches(device: torch.device) -> bool:
    """Whether `device` has dependent launches."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
@no_type_check
def wait_for_previous(OVERLAP: tl.constexpr):
    """Wait until the kernel before has finished, then let the next one start."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
