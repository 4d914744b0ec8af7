"""checksum: 64 bits of a run of bytes and its place, computed where the bytes are."""

from __future__ import annotations

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.nn import functional


def checksum(values: UInt8[Tensor, " B"], place: int) -> Int64[Tensor, " 1"]:
    """The sum, modulo 2^64, of `mixed(word i ^ mixed(place + i))` over the 64-bit words of `values`, and of
    `mixed(place + B)`; the last word is filled with zeros.

    `mixed` maps no two words to one, so a change of one word always changes the sum; other changes, words that change
    places among them, go unseen once in 2^64. Reads nothing on the host.
    """
    words = functional.pad(values, (0, -len(values) % 8)).view(torch.int64)
    counted = torch.arange(place, place + len(words), device=values.device)
    end = torch.full((1,), place + len(values), device=values.device)
    return _mixed(words ^ _mixed(counted)).sum(0, keepdim=True) + _mixed(end)


def _mixed(words: Int64[Tensor, " W"]) -> Int64[Tensor, " W"]:
    """One step of SplitMix64 (Steele, Lea and Flood 2014) from each word, which is a bijection.

    torch shifts and prints words as signed numbers: a mask takes what the shift brings in, and the three constants are
    0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB.
    """
    mixed = words + -0x61C8864680B583EB
    mixed = (mixed ^ (mixed >> 30 & (1 << 34) - 1)) * -0x40A7B892E31B1A47
    mixed = (mixed ^ (mixed >> 27 & (1 << 37) - 1)) * -0x6B2FB644ECCEEE15
    return mixed ^ (mixed >> 31 & (1 << 33) - 1)
