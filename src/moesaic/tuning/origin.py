"""Origin: where a table was measured, which says nothing about another device, another compiler or other kernels."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import final

from moesaic.checks import instance, whole_number
from moesaic.errors import TuningError
from moesaic.machine import Machine
from moesaic.tuning.fingerprint import fingerprint

SAME_MEMORY = 0.05
"""Share by which the memory of two devices of a kind differs: drivers keep some, and ECC does."""


@final
@dataclass(frozen=True, kw_only=True)
class Origin:
    """A device, the compiler, and the `kernels` that it compiled (`fingerprint.py`): these decide.

    Names of one GPU differ ("NVIDIA H200", "NVIDIA H200 NVL"), so `device` is for people; `architecture`, `processors`
    and `memory_bytes` decide. A MIG slice has fewer processors and is another device. `torch` and `moesaic` are for
    people, too: what is timed is a graph of kernels, none of which torch compiles. Versions are public ones, without
    what stands behind a `+`.
    """

    device: str
    architecture: str
    processors: int
    memory_bytes: int
    torch: str
    triton: str
    kernels: str
    moesaic: str

    def __post_init__(self) -> None:
        for name in ("device", "architecture", "torch", "triton", "kernels", "moesaic"):
            instance("Origin", name, getattr(self, name), str, TuningError, example='"2.11.0"')
        for name in ("processors", "memory_bytes"):
            whole_number("Origin", name, getattr(self, name), TuningError)

    @classmethod
    def of(cls, machine: Machine) -> Origin:
        """That of what `machine` would measure now, with the moesaic that runs."""
        versions = {name: _public(version) for name, version in machine.packages}
        return cls(
            device=machine.name,
            architecture=machine.architecture,
            processors=machine.processors,
            memory_bytes=machine.memory_bytes,
            torch=versions.get("torch", "not installed"),
            triton=versions.get("triton", "not installed"),
            kernels=fingerprint(),
            moesaic=_own_version(),
        )

    def differences(self, wanted: Origin) -> Iterator[str]:
        """What makes figures from here useless at `wanted`, each as "triton 3.5.1, not 3.6.0"."""
        mine, theirs = self._kind(), wanted._kind()
        if mine != theirs or abs(self.memory_bytes / wanted.memory_bytes - 1) > SAME_MEMORY:
            yield f"device {self._hardware()}, not {wanted._hardware()}"
        for name in ("triton", "kernels"):
            if getattr(self, name) != getattr(wanted, name):
                yield f"{name} {getattr(self, name)}, not {getattr(wanted, name)}"

    def _kind(self) -> tuple[str, int]:
        return self.architecture, self.processors

    def _hardware(self) -> str:
        size = f"{self.memory_bytes / 2**30:.0f} GiB"
        return f"{self.device} ({self.architecture}, {self.processors} multiprocessors, {size})"


def _public(version: str) -> str:
    return version.split("+", maxsplit=1)[0]


@functools.cache
def _own_version() -> str:
    try:
        return _public(metadata.version("moesaic"))
    except metadata.PackageNotFoundError:  # run from its source: of no version
        return "not installed"
