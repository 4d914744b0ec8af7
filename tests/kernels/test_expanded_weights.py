"""Weights read back and rows rounded by kernels, in the interpreter, against the formats; the kit does so on a GPU."""

import pytest
import torch

pytest.importorskip("triton")
from tests.kernels import expanded_cases as cases


@pytest.mark.parametrize("name", cases.CASES)
def test_in_the_interpreter(name, interpreted):
    cases.CASES[name].check(interpreted[name])


def test_a_block_of_codes_holds_neighbours_in_its_low_bits():
    from moesaic.backends.shuffled_nibbles import restored, shuffled  # noqa: PLC0415

    codes = [[(3 * row + column) % 16 for column in range(130)] for row in range(2)]
    bytes_ = torch.tensor([[[r[2 * i] | r[2 * i + 1] << 4 for i in range(65)] for r in codes]], dtype=torch.uint8)
    found = shuffled(bytes_)
    for row in range(2):
        padded = codes[row] + [0] * 126
        wanted = [padded[128 * b + j] | padded[128 * b + 64 + j] << 4 for b in range(2) for j in range(64)]
        assert found[0, row].tolist() == wanted
    assert torch.equal(restored(found, 130), bytes_)
