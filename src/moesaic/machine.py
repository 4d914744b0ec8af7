"""Machine: what a choice of backend may know of the hardware and the installed packages, as a frozen value.

The only module, beside the command line, that reads the environment; probing happens in `Machine.current` and
nowhere else, so a choice for a machine that one does not own is made with a value from `known_machines.py`.
"""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import final

import torch

from moesaic.checks import instance, strings, whole_number
from moesaic.errors import MachineError

PACKAGES: tuple[str, ...] = ("numba", "torch", "triton")
"""The packages whose versions backends may ask for."""

CPU_FEATURES: tuple[str, ...] = ("amx_bf16", "amx_fp16", "amx_int8", "avx2", "avx512_bf16", "avx512_fp16", "avx512f")
"""The instruction sets that are recorded of a CPU, by their names in Linux's /proc/cpuinfo."""


@final
@dataclass(frozen=True, kw_only=True)
class Machine:
    """One device and what is installed beside it.

    `device`: torch's device type. `name`: for people. `architecture`: "x86_64", "aarch64", "sm_90". `processors`:
    CPU cores in use, or streaming multiprocessors. `memory_bytes`: of the device. `features`: CPU instruction sets,
    sorted. `packages`: (name, version) pairs, sorted.
    """

    device: str
    name: str
    architecture: str
    processors: int
    memory_bytes: int
    features: tuple[str, ...] = ()
    packages: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for field, example in (("device", '"cuda"'), ("name", '"NVIDIA H200"'), ("architecture", '"sm_90"')):
            instance("Machine", field, getattr(self, field), str, MachineError, example=example)
        for field in ("processors", "memory_bytes"):
            object.__setattr__(self, field, whole_number("Machine", field, getattr(self, field), MachineError))
        features = strings("Machine", "features", self.features, MachineError, example='("avx2", "avx512f")')
        for package in self.packages:
            if len(strings("Machine", "packages", package, MachineError, example='("torch", "2.13.0")')) != 2:
                raise MachineError(f"Machine.packages holds {package!r}, but it needs pairs of a name and a version")
        if self.device == "cuda" and not (
            self.architecture[:3] == "sm_" and self.architecture[3:].isdecimal() and len(self.architecture) < 10
        ):
            raise MachineError(
                f'Machine.architecture is {self.architecture!r}, but a cuda device needs one like "sm_90"'
            )
        object.__setattr__(self, "features", tuple(sorted(set(features))))
        object.__setattr__(self, "packages", tuple(sorted((name, version) for name, version in self.packages)))

    @property
    def capability(self) -> int:
        """The compute capability times ten (90 for sm_90); 0 for a CPU."""
        return int(self.architecture[3:]) if self.device == "cuda" else 0

    def version(self, package: str) -> tuple[int, ...] | None:
        """The installed version as numbers, ("3.6.0" -> (3, 6, 0)); None if the package is not installed."""
        text = dict(self.packages).get(package)
        return None if text is None else version_numbers(text)

    @classmethod
    def current(cls, device: str | torch.device | None = None) -> Machine:
        """The machine that this process runs on: `device`, by default the first CUDA device, else the CPU.

        Probed once per process and device. Raises MachineError if the device is not there.
        """
        try:
            wanted = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
        except RuntimeError:
            raise MachineError(f'{device!r} is not a device of torch, for instance "cuda:0" or "cpu"') from None
        return _probe(wanted.type, wanted.index or 0)


def user_cache() -> Path:
    """Where this user keeps files that can be made again: $XDG_CACHE_HOME if it is an absolute path, else ~/.cache.

    As the XDG Base Directory Specification has it. Nothing is created.
    """
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return stated if stated.is_absolute() else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111 - never raises


def version_numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cpu" -> (2, 13, 0)."""
    numbers: list[int] = []
    for part in text.split("+", maxsplit=1)[0].split("."):
        if not (part.isascii() and part.isdigit() and len(part) < 10):
            break
        numbers.append(int(part))
    return tuple(numbers)


@functools.cache
def _probe(device: str, index: int) -> Machine:
    if device == "cpu" and index == 0:
        return Machine(
            device="cpu",
            name=_cpu_field("model name") or platform.processor() or platform.machine(),
            architecture=platform.machine(),
            processors=_usable_cores(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            features=tuple(f for f in CPU_FEATURES if f in _cpu_field("flags").split()),
            packages=_packages(),
        )
    if device == "cuda" and torch.cuda.is_available() and index < torch.cuda.device_count():
        found = torch.cuda.get_device_properties(index)
        return Machine(
            device="cuda",
            name=found.name,
            architecture=f"sm_{found.major}{found.minor}",
            processors=found.multi_processor_count,
            memory_bytes=found.total_memory,
            packages=_packages(),
        )
    there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    raise MachineError(f"there is no device {device}:{index} here; this machine has {', '.join(there)}")


def _packages() -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for name in PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if "sched_getaffinity" in dir(os) else os.cpu_count() or 1


def _cpu_field(name: str) -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():  # not Linux: no features are known, so no backend may count on one
        return ""
    for line in info.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
