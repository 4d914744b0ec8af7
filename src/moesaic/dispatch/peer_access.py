"""reasons_against: why this rank's GPU and those of the others cannot write into each other's memory, and its size."""

from __future__ import annotations

import ctypes
import socket
from contextlib import suppress
from pathlib import Path

import torch

from moesaic.dispatch.collectives import Ranks

NATIVE_ATOMICS = 3
"""CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED."""


def reasons_against(ranks: Ranks) -> tuple[str, ...]:
    """Why this rank cannot share memory with the others, as far as it sees by itself; empty if nothing is known."""
    device = torch.device(ranks.device)
    if device.type != "cuda":
        return (f"its tensors are on {device}, but it needs a CUDA device: PaddedAllToAll runs over any process group",)
    # A process that is shown its own GPU only finds out when the memory is mapped.
    others = [other for other in range(torch.cuda.device_count()) if other != device.index]
    apart = [other for other in others if not native_atomics(device.index, other)]
    if len(others) - len(apart) >= min(len(others), ranks.size - 1):
        return ()
    named = ", ".join(map(str, apart))
    return (f"its GPU {device.index} has no NVLink to {named}: use PaddedAllToAll, or GPUs that are connected",)


def native_atomics(one: int, other: int) -> bool:
    """Whether GPU `one` can write flags in the memory of GPU `other`: over NVLink it can, over PCIe it cannot."""
    if not torch.cuda.can_device_access_peer(one, other):
        return False
    driver, value = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    devices = (ctypes.c_int(0), ctypes.c_int(0))
    found = [driver.cuDeviceGet(ctypes.byref(d), n) for d, n in zip(devices, (one, other), strict=True)]
    found.append(driver.cuDeviceGetP2PAttribute(ctypes.byref(value), NATIVE_ATOMICS, *devices))
    return not any(found) and value.value == 1


def multiprocessors(device: torch.device | str) -> int:
    """How many `device` has; 1 of what is no GPU."""
    on_card = torch.device(device).type == "cuda"
    return torch.cuda.get_device_properties(device).multi_processor_count if on_card else 1


def host() -> str:
    """Names this machine as it runs now: its name, and the kernel's number of this boot where there is one."""
    name = socket.gethostname()
    with suppress(OSError):
        return f"{name} {Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()}"
    return name
