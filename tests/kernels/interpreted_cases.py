"""A program: runs every case of a module in Triton's interpreter and saves what their kernels left behind.

It runs in a process of its own with TRITON_INTERPRET=1, which triton reads when a kernel is defined. A module of cases
has `CASES`, name -> an object with `run(device)`, which calls a launcher and returns the buffers, and `check(buffers)`.
"""

import importlib
import sys
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

CONVERT = interpreter._convert_float


def convert(values, source, target, rounding):
    """To E4M3 as a GPU converts: triton's interpreter loses carries into the exponent, and NaN."""
    if source != tl.float32 or target != tl.float8e4nv:
        return CONVERT(values, source, target, rounding)
    numbers = torch.from_numpy(np.ascontiguousarray(values)).clamp(-448.0, 448.0)
    return numbers.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def main(module, path):
    """Save name -> buffers."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)  # which also fills fresh memory: NaN, or the largest integer
    cases = importlib.import_module(module).CASES
    with mock.patch.object(interpreter, "_convert_float", convert):
        torch.save({name: case.run(torch.device("cpu")) for name, case in cases.items()}, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
