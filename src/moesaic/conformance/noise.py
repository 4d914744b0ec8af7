"""measure: how far an honest kernel is from the exact answer, for one dtype, scheme and length of the sums.

The honest kernel rounds where a fused kernel must: the first projection, the activation's result, the second
projection and the output, each once, with sums in float32 that run through blocks of 16 in sequence (the longest
chain that tensor cores have; a tree is more exact), of float32 rows through one product after another, as a plain loop
adds them. `python -m moesaic.conformance.noise_table` prints the table of `tolerance.py`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.activations import ACTIVATIONS, Activation
from moesaic.quant import UNQUANTIZED, Plain, Scheme
from moesaic.weights import ExpertWeights

BLOCK = 16
"""Products that a tensor core adds at once."""


@final
@dataclass(frozen=True)
class Deviation:
    """How far rows are from the wanted ones.

    `rms`: root mean square of the error over the standard deviation of the wanted rows. `worst`: the largest of
    |error| / (|wanted| + that deviation). `row`: the largest, over rows, of a row's rms error over the row's own rms.
    """

    rms: float
    worst: float
    row: float

    def exceeds(self, other: Deviation) -> bool:
        """Whether any of the three is above that of `other`; NaN exceeds everything."""
        return not (self.rms <= other.rms and self.worst <= other.worst and self.row <= other.row)

    def times(self, rms: float, worst: float, row: float) -> Deviation:
        """Each of the three multiplied."""
        return Deviation(self.rms * rms, self.worst * worst, self.row * row)


def deviation(got: Tensor, wanted: Tensor) -> Deviation:
    """The deviation of `got [R, H]` from `wanted [R, H]` (float64, same shape); infinite if a value is not finite."""
    if wanted.numel() == 0:
        return Deviation(0.0, 0.0, 0.0)
    values = got.double()
    if not bool(values.isfinite().all()):
        return Deviation(float("inf"), float("inf"), float("inf"))
    error = values - wanted
    scale = wanted.std(correction=0)
    own = wanted.pow(2).mean(-1).sqrt()
    each = error.pow(2).mean(-1).sqrt()
    # A row that is exactly zero (no active slot) must be exactly zero: 0 / 0 counts as 0, anything else as infinite.
    return Deviation(
        _largest(error.pow(2).mean().sqrt() / scale),
        _largest(error.abs() / (wanted.abs() + scale)),
        _largest(each / own),
    )


def _largest(shares: Tensor) -> float:
    return float(shares.nan_to_num(nan=0.0, posinf=float("inf")).max())


@functools.cache
def measure(dtype: torch.dtype, length: int, scheme: Scheme = UNQUANTIZED) -> Deviation:
    """The worst deviation of the honest kernel over all activations of the package, for H = I = `length`."""
    found = [_one(dtype, length, scheme, kind(), seed) for kind in ACTIVATIONS for seed in range(3)]
    return Deviation(max(f.rms for f in found), max(f.worst for f in found), max(f.row for f in found))


def _one(dtype: torch.dtype, length: int, scheme: Scheme, activation: Activation, seed: int) -> Deviation:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype)

    rows, slots = normal(64, length, scale=1.0), torch.rand(64, 1, generator=generator) + 0.1
    gate_up = normal(2, activation.width(length), length, scale=3 / length**0.5)
    stored = ExpertWeights.plain(gate_up, normal(2, length, length, scale=1 / length**0.5)).quantize(scheme.weights)
    exact, rounded = stored.dequantize(torch.float64), stored.dequantize(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    got, wanted = torch.zeros(64, length, dtype=wide), torch.zeros(64, length, dtype=torch.float64)
    for expert in range(2):
        inner = activation(_rounded(rows.double(), scheme) @ exact.gate_up.data[expert].T)
        wanted += slots.double() * (_rounded(inner, scheme) @ exact.down.data[expert].T)
        narrow = _product(_rounded(rows, scheme), rounded.gate_up.data[expert]).to(dtype)
        narrow = _rounded(activation(narrow.to(wide)).to(dtype), scheme)
        got += slots * _product(narrow, rounded.down.data[expert]).to(dtype).to(wide)
    return deviation(got.to(dtype), wanted)


def _rounded(rows: Tensor, scheme: Scheme) -> Tensor:
    """What a projection reads of `rows`."""
    return rows if isinstance(scheme.inputs, Plain) else scheme.inputs.round_trip(rows)


def _product(rows: Tensor, weights: Tensor) -> Tensor:
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    total = torch.zeros(rows.shape[0], weights.shape[0], dtype=wide)
    block = 1 if rows.dtype == torch.float32 else BLOCK
    for start in range(0, rows.shape[1], block):
        part = slice(start, start + block)
        total += rows[:, part].to(wide) @ weights[:, part].to(wide).T
    return total
