"""A program: runs every case of the count-aware kernel in Triton's interpreter and saves the buffers.

It runs in a process of its own with TRITON_INTERPRET=1, which triton reads when a kernel is defined.
"""

import sys

import torch

from moesaic.kernels import masked_activation
from tests.activations.masked_cases import EVERY, POISONS, specials, strided


def main(path):
    """Save (case, poison) -> buffer, the strided case and the special values."""
    torch.set_num_threads(1)
    outs = {(name, i): c.run(masked_activation.apply, p) for name, c in EVERY.items() for i, p in enumerate(POISONS)}
    more = {"strided": strided(masked_activation.apply), "specials": specials(masked_activation.apply)}
    torch.save({"outs": outs, **more}, path)


if __name__ == "__main__":
    main(sys.argv[1])
