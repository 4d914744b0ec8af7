"""Machines that one may not own, so that `explain` answers "what would run there".

Source of the figures: NVIDIA data sheets and CUDA programming guide (H100 SXM, H200 SXM, B200, RTX 4090 and 5090,
A100, L4), Intel's and AMD's product pages for the CPUs. The packages are those that moesaic is developed with.
"""

from __future__ import annotations

from moesaic.errors import MachineError
from moesaic.machine import Machine

_PACKAGES = (("torch", "2.13.0"), ("triton", "3.6.0"))
_CPU_PACKAGES = (("numba", "0.68.1"), ("torch", "2.13.0"))
_AVX512 = ("avx2", "avx512f")
_AMX = (*_AVX512, "amx_bf16", "amx_int8", "avx512_bf16", "avx512_fp16")


def _gpu(name: str, architecture: str, processors: int, gib: int) -> Machine:
    return Machine(
        device="cuda",
        name=name,
        architecture=architecture,
        processors=processors,
        memory_bytes=gib * 2**30,
        packages=_PACKAGES,
    )


def _cpu(
    name: str, processors: int, features: tuple[str, ...], architecture: str = "x86_64", gib: int = 256
) -> Machine:
    return Machine(
        device="cpu",
        name=name,
        architecture=architecture,
        processors=processors,
        memory_bytes=gib * 2**30,
        features=features,
        packages=_CPU_PACKAGES,
    )


KNOWN_MACHINES: tuple[tuple[str, Machine], ...] = (
    ("a100", _gpu("NVIDIA A100-SXM4-80GB", "sm_80", 108, 80)),
    ("l4", _gpu("NVIDIA L4", "sm_89", 58, 24)),
    ("rtx4090", _gpu("NVIDIA GeForce RTX 4090", "sm_89", 128, 24)),
    ("h100", _gpu("NVIDIA H100 80GB HBM3", "sm_90", 132, 80)),
    ("h200", _gpu("NVIDIA H200", "sm_90", 132, 140)),
    ("b200", _gpu("NVIDIA B200", "sm_100", 148, 180)),
    ("rtx5090", _gpu("NVIDIA GeForce RTX 5090", "sm_120", 170, 32)),
    ("cpu-amx", _cpu("Intel Xeon Platinum 8480+ (56 cores, AMX)", 56, _AMX)),
    ("cpu-avx512", _cpu("Intel Xeon Platinum 8380 (40 cores, AVX512)", 40, _AVX512)),
    ("cpu-avx2", _cpu("AMD EPYC 7763 (64 cores, AVX2)", 64, ("avx2",))),
    ("laptop", _cpu("Intel Core Ultra 7 155H (16 cores, AVX2)", 16, ("avx2",), gib=32)),
    ("cpu-arm", _cpu("AWS Graviton4 (96 cores)", 96, (), "aarch64")),
)
"""Short name and machine, in order of age within a kind."""


def known_machine(name: str) -> Machine:
    """The machine with that short name; raises MachineError listing the names there are."""
    for known, machine in KNOWN_MACHINES:
        if known == name.lower():
            return machine
    raise MachineError(f"no machine is known as {name!r}; known are {', '.join(known for known, _ in KNOWN_MACHINES)}")
