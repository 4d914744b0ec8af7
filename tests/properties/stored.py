"""What stored numbers mean, in numpy float64 from the formats' definitions: bytes and scales in, one matrix out."""

import math

import numpy as np

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3(code):
    """Sign, four bits of exponent with a bias of 7, three of mantissa; all ones is NaN."""
    sign = -1.0 if code & 128 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def e8m0(code):
    return math.nan if code == 255 else 2.0 ** (code - 127)


def e2m1(code):
    return (-1.0 if code & 8 else 1.0) * E2M1[code & 7]


def nibbles(row):
    """The low four bits of a byte come before the high ones."""
    return [half for byte in row for half in (int(byte) & 15, int(byte) >> 4)]


def matrix(codes, meaning, tile, scale_at):
    """`meaning(code, row of tiles, column of tiles) * scale_at(row, column)` for each code of a nested list."""
    high, wide = tile
    return np.array(
        [
            [meaning(code, i // high, j // wide) * scale_at(i // high, j // wide) for j, code in enumerate(row)]
            for i, row in enumerate(codes)
        ]
    )
