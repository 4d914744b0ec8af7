"""How fast a GPU reads its memory, from its name: what tells one GPU of an architecture from another in a cost model.

Per multiprocessor, so that a card with fewer of them and a MIG slice come out right too. Of the H200 4.28 TB/s were
measured with 132 multiprocessors (docs/performance/hopper.md), 0.89 of what its data sheet states; the others are the
data sheets' figures (NVIDIA: A100 80GB, H100, H200, H20, GH200, B200, L4, L40S, GeForce RTX 4090 and 5090) times that.
"""

from __future__ import annotations

import re

from moesaic.machine import Machine

_REACHED = 4.28 / 4.8

H200 = 4.28e12 / 132
"""Bytes a second that one multiprocessor of an H200 reads."""

_KNOWN: tuple[tuple[frozenset[str], float], ...] = (
    (frozenset({"H200"}), H200),
    (frozenset({"GH200"}), _REACHED * 4.0e12 / 132),
    (frozenset({"H100", "PCIe"}), _REACHED * 2.0e12 / 114),
    (frozenset({"H100", "NVL"}), _REACHED * 3.9e12 / 132),
    (frozenset({"H100"}), _REACHED * 3.35e12 / 132),
    (frozenset({"H20"}), _REACHED * 4.0e12 / 78),
    (frozenset({"B200"}), _REACHED * 8.0e12 / 148),
    (frozenset({"A100"}), _REACHED * 2.04e12 / 108),
    (frozenset({"L40S"}), _REACHED * 0.864e12 / 142),
    (frozenset({"L4"}), _REACHED * 0.3e12 / 58),
    (frozenset({"4090"}), _REACHED * 1.008e12 / 128),
    (frozenset({"5090"}), _REACHED * 1.792e12 / 170),
)
"""Words of a device's name, the first that are all in it, and bytes a second for each multiprocessor."""

_BY_CAPABILITY = (
    (120, _REACHED * 1.792e12 / 170),  # cards with GDDR7, of which an RTX 5090 is the fastest
    (100, _REACHED * 8.0e12 / 148),
    (90, _REACHED * 3.35e12 / 132),
    (80, _REACHED * 1.0e12 / 108),
)
"""For a name that is not known: from this compute capability on."""


def bandwidth_of_one(machine: Machine) -> float:
    """Bytes a second that one multiprocessor of `machine` reads when all of them do."""
    words = frozenset(re.split(r"[^0-9A-Za-z]+", machine.name))
    for known, rate in _KNOWN:
        if known <= words:
            return rate
    for capability, rate in _BY_CAPABILITY:
        if machine.capability >= capability:
            return rate
    return _BY_CAPABILITY[-1][1]


def bandwidth(machine: Machine) -> float:
    """Bytes a second that `machine` reads from its memory."""
    return bandwidth_of_one(machine) * machine.processors
