"""Checkpoints read with numpy from their bytes, by the conventions' own words; no line shared with the package.

Every function gives float64 values of one matrix `[N, K]` of one expert.
"""

import json
import math
import struct

import numpy as np

from tests.quant.oracle import e2m1_value, e4m3_value

WIDTHS = {"U8": np.uint8, "I8": np.int8, "I32": np.int32, "I64": np.int64, "F16": np.float16, "F32": np.float32}


def tensors(directory):
    """Name -> (dtype, array) of all files; 8-bit floats as their bytes, bfloat16 as float64."""
    found = {}
    for path in directory.glob("*.safetensors"):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            found[name] = (entry["dtype"], _array(entry["dtype"], data[start:end]).reshape(entry["shape"]))
    return found


def _array(dtype, data):
    if dtype == "BF16":
        bits = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).astype(np.float64)
    return np.frombuffer(data, WIDTHS.get(dtype, np.uint8))


def number(dtype, array):
    """The numbers that an array of floats or of codes of powers of two stands for."""
    if dtype == "F8_E4M3":
        return e4m3_value(array)
    if dtype in {"U8", "F8_E8M0"}:
        return 2.0 ** (array.astype(np.float64) - 127)
    return array.astype(np.float64)


def spread(grid, shape, tile):
    """The scale of every value, looked up one by one."""
    r, c = tile[0] or shape[0], tile[1] or shape[1]
    return np.array([[grid[i // r, j // c] for j in range(shape[1])] for i in range(shape[0])])


def plain(get):
    return number(*get("weight"))


def scaled(get, tile, scale="weight_scale"):
    """8-bit values times a scale for a tile."""
    dtype, codes = get("weight")
    values = codes.astype(np.float64) if dtype == "I8" else e4m3_value(codes)
    grid = number(*get(scale))
    r, c = tile[0] or values.shape[0], tile[1] or values.shape[1]
    grid = grid.reshape(math.ceil(values.shape[0] / r), math.ceil(values.shape[1] / c))
    return values * spread(grid, values.shape, tile)


def pairs(codes):
    """Bytes as codes of 4 bits, the low half first."""
    codes = codes.view(np.uint8)
    return np.array([[(b >> 4 * half) & 15 for b in row for half in (0, 1)] for row in codes.tolist()])


def mxfp4(get, data="weight_packed", scale="weight_scale"):
    values = e2m1_value(pairs(get(data)[1]))
    return values * spread(number("U8", get(scale)[1]), values.shape, (1, 32))


def blocks(get):
    """gpt-oss: `[N, K / 32, 16]`."""
    found, scales = get("blocks")[1], number("U8", get("scales")[1])
    values = [
        [e2m1_value(pairs(block[None]))[0] * s for block, s in zip(row, line, strict=True)]
        for row, line in zip(found, scales, strict=True)
    ]
    return np.array(values).reshape(found.shape[0], -1)


def nvfp4(get, data, factor, divides):
    values = e2m1_value(pairs(get(data)[1]))
    overall = float(get(factor)[1].reshape(()))
    values = values * spread(e4m3_value(get("weight_scale")[1]), values.shape, (1, 16))
    return values / overall if divides else values * overall


def nibble(words, i):
    """The code at bits 4i of int32 words."""
    return (words.astype(np.int64) >> (4 * i)) & 15


def packed_int4(get, group, asymmetric):
    rows, columns = get("weight_shape")[1].tolist()
    words, scale = get("weight_packed")[1], number(*get("weight_scale"))
    zero = get("weight_zero_point")[1] if asymmetric else None
    values = np.zeros((rows, columns))
    for i in range(rows):
        for j in range(columns):
            g = j // group if group else 0
            z = nibble(zero[i // 8, g], i % 8) if asymmetric else 8
            values[i, j] = (nibble(words[i, j // 8], j % 8) - z) * scale[i, g]
    return values


def packed_int8(get, group):
    rows, columns = get("weight_shape")[1].tolist()
    words, scale = get("weight_packed")[1], number(*get("weight_scale"))
    code = [[(int(words[i, j // 4]) >> (8 * (j % 4))) & 255 for j in range(columns)] for i in range(rows)]
    return (np.array(code) - 128.0) * spread(scale, (rows, columns), (1, group))


def awq(get, group):
    words, zeros, scale = get("qweight")[1], get("qzeros")[1], number(*get("scales"))
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # the code at bits 4i is the column order[i] of its eight
    values = np.zeros((8 * words.shape[1], words.shape[0]))
    for k in range(words.shape[0]):
        for w in range(words.shape[1]):
            for i, column in enumerate(order):
                n, g = 8 * w + column, k // group
                values[n, k] = (nibble(words[k, w], i) - nibble(zeros[g, w], i)) * scale[g, n]
    return values


def gptq(get, group, less):
    words, zeros, scale = get("qweight")[1], get("qzeros")[1], number(*get("scales"))
    order = get("g_idx")[1]
    values = np.zeros((words.shape[1], 8 * words.shape[0]))
    for n in range(values.shape[0]):
        for k in range(values.shape[1]):
            g = int(order[k])
            zero = nibble(zeros[g, n // 8], n % 8) + less
            values[n, k] = (nibble(words[k // 8, n], k % 8) - zero) * scale[g, n]
    assert group * len(zeros) >= values.shape[1]
    return values
