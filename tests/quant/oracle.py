"""The formats in numpy: loops over tiles, tables of every code, float64; no line shared with the package.

What is float32 here is float32 by definition of the formats: scales, and the quotient of a value and its scale.
A format is a dict: `kind`, `tile` (rows, columns; None reaches to the end), `scale` (a name) and `zero_point`.
"""

import math

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.array(
    [m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)][:127]
)


def nearest(table, values):
    """The code of the nearest entry of `table` to each |value|; ties go to the even code, the last is for all above."""
    sizes = np.minimum(np.abs(np.asarray(values, dtype=np.float64)), table[-1])
    above = np.minimum(np.searchsorted(table, sizes), len(table) - 1)
    below = np.maximum(above - 1, 0)
    low, high = sizes - table[below], table[above] - sizes
    return np.where((high < low) | ((high == low) & (above % 2 == 0)), above, below)


def e4m3_byte(values):
    return (nearest(E4M3, values) + np.where(np.signbit(values), 128, 0)).astype(np.uint8)


def e4m3_value(byte):
    byte = np.asarray(byte, dtype=np.int64)
    magnitude = np.append(E4M3, np.nan)[byte % 128]
    return np.where(byte >= 128, -magnitude, magnitude)


def e2m1_code(values):
    return (nearest(E2M1, values) + np.where(np.signbit(values), 8, 0)).astype(np.uint8)


def e2m1_value(codes):
    codes = np.asarray(codes, dtype=np.int64)
    return np.where(codes >= 8, -E2M1[codes % 8], E2M1[codes % 8])


def half_even(values):
    """The nearest whole numbers in float64; ties go to the even one."""
    return np.rint(values).astype(np.float64)


def to_bfloat16(value):
    bits = int(np.float32(value).view(np.uint32))
    rest, kept = bits & 0xFFFF, bits >> 16
    kept += rest > 0x8000 or (rest == 0x8000 and kept % 2 == 1)
    return float(np.uint32(kept << 16).view(np.float32))


ROUND_SCALE = {
    "float32": lambda s: float(np.float32(s)),
    "bfloat16": to_bfloat16,
    "float16": lambda s: float(np.float16(np.float32(s))),
}
LEAST_SCALE = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-24}


def float_scale(largest, top, name):
    if largest == 0:
        return 1.0
    return max(ROUND_SCALE[name](np.float32(largest) / np.float32(top)), LEAST_SCALE[name])


def power_above(largest, top):
    wanted = float(np.float32(largest) / np.float32(top))
    return 1.0 if largest == 0 else next(2.0**e for e in range(-127, 128) if 2.0**e >= wanted)


def power_within(largest, top_exponent):
    """The exponent of the largest power of two up to `largest`, less that of the format's largest value."""
    if largest == 0:
        return 1.0
    return 2.0 ** max(max(e for e in range(-149, 128) if 2.0**e <= largest) - top_exponent, -127)


def tiles(shape, tile):
    """(row of the grid, column of the grid, rows, columns) of every tile of a matrix."""
    r, c = tile[0] or shape[0], tile[1] or shape[1]
    for i in range(math.ceil(shape[0] / r)):
        for j in range(math.ceil(shape[1] / c)):
            yield i, j, slice(i * r, min((i + 1) * r, shape[0])), slice(j * c, min((j + 1) * c, shape[1]))


def matrix(values, rule):
    """(codes, scales by name, values read back) of one float32 matrix; codes are bytes, int8 or codes of 4 bits."""
    values = np.asarray(values, dtype=np.float32)
    r, c = rule["tile"][0] or values.shape[0], rule["tile"][1] or values.shape[1]
    grid = (math.ceil(values.shape[0] / r), math.ceil(values.shape[1] / c))
    codes, back = np.zeros(values.shape, dtype=np.int64), np.zeros(values.shape)
    scales, zeros = np.zeros(grid), np.zeros(grid)
    overall = float_scale(float(np.abs(values).max(initial=0)), 448 * 6, "float32")
    for i, j, rows, columns in tiles(values.shape, rule["tile"]):
        tile = values[rows, columns]
        codes[rows, columns], scales[i, j], zeros[i, j], back[rows, columns] = KINDS[rule["kind"]](tile, rule, overall)
    named = {"scale": scales}
    if rule.get("zero_point"):
        named["zero_point"] = zeros
    if rule["kind"] == "nvfp4":
        named["global_scale"] = np.array([[overall]])
    return codes, named, back


def fp8(tile, rule, overall):
    largest = float(np.abs(tile).max())
    scale = power_above(largest, 448) if rule["scale"] == "e8m0" else float_scale(largest, 448, rule["scale"])
    byte = e4m3_byte(np.clip(tile / np.float32(scale), -448, 448))
    return byte, scale, 0, e4m3_value(byte) * scale


def int8(tile, rule, overall):
    scale = float_scale(float(np.abs(tile).max()), 127, rule["scale"])
    codes = np.clip(half_even(tile / np.float32(scale)), -127, 127)
    return codes, scale, 0, codes * scale


def int4(tile, rule, overall):
    if not rule["zero_point"]:
        scale = float_scale(float(np.abs(tile).max()), 7.5, rule["scale"])
        codes = np.clip(half_even(tile / np.float32(scale)) + 8, 0, 15)
        return codes, scale, 8, (codes - 8) * scale
    low, high = np.float32(min(tile.min(), 0)), np.float32(max(tile.max(), 0))
    scale = float_scale(float(high - low), 15, rule["scale"])
    zero = float(np.clip(half_even(-low / np.float32(scale)), 0, 15))
    codes = np.clip(half_even(tile / np.float32(scale)) + zero, 0, 15)
    return codes, scale, zero, (codes - zero) * scale


def mxfp4(tile, rule, overall):
    scale = power_within(float(np.abs(tile).max()), 2)
    codes = e2m1_code(tile / np.float32(scale))
    return codes, scale, 0, e2m1_value(codes) * scale


def nvfp4(tile, rule, overall):
    largest = np.abs(tile).max()
    wanted = largest / (np.float32(6) * np.float32(overall))
    scale = float(e4m3_value(e4m3_byte(np.clip(wanted, 2.0**-9, 448)))) if largest > 0 else 1.0
    codes = e2m1_code(tile / (np.float32(scale) * np.float32(overall)))
    return codes, scale, 0, e2m1_value(codes) * scale * overall


KINDS = {"fp8": fp8, "int8": int8, "int4": int4, "mxfp4": mxfp4, "nvfp4": nvfp4}


def packed(codes):
    """Codes of 4 bits two in a byte, the first in the low bits."""
    return np.array([[int(a) + 16 * int(b) for a, b in zip(r[::2], r[1::2], strict=True)] for r in codes], np.uint8)
