"""A program: runs every case of a module in Triton's interpreter and saves what their kernels left behind.

It runs in a process of its own with TRITON_INTERPRET=1, which triton reads when a kernel is defined. A module of cases
has `CASES`, name -> an object with `run(device)`, which calls a launcher and returns the buffers, and `check(buffers)`.
"""

import importlib
import sys

import torch


def main(module, path):
    """Save name -> buffers."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)  # which also fills fresh memory: NaN, or the largest integer
    cases = importlib.import_module(module).CASES
    torch.save({name: case.run(torch.device("cpu")) for name, case in cases.items()}, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
