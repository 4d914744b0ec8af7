"""Launches that compile their kernels for a GPU that is not there, with the arguments of the real launchers."""

import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
RUN = JITFunction.run


class AbsentDevice:
    """What triton asks of a driver before it compiles."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_device(self):
        return self.capability  # a number, by which triton remembers what it compiled

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)


@contextlib.contextmanager
def compiling(capability):
    """Inside, launches compile for sm_`capability` and run nothing. Yields (kernel's name, kernel) as they come."""
    kernels = []

    def record(self, *args, grid, warmup, **options):
        kernel = RUN(self, *args, grid=grid, warmup=True, **options)
        kernels.append((self.__name__.strip("_"), kernel))
        return kernel

    with contextlib.ExitStack() as patched:
        patched.enter_context(mock.patch.object(JITFunction, "run", record))
        card = SimpleNamespace(multi_processor_count=132)
        patched.enter_context(mock.patch.object(torch.cuda, "get_device_properties", return_value=card))
        for name, module in list(sys.modules.items()):
            if name.startswith("moesaic.kernels.") and "overlap_launches" in vars(module):
                patched.enter_context(mock.patch.object(module, "overlap_launches", return_value=capability >= 90))
            if name.startswith("moesaic.kernels.") and "fast_codes" in vars(module):
                patched.enter_context(mock.patch.object(module, "fast_codes", return_value=capability >= 89))
        driver.set_active(AbsentDevice(capability))
        yield kernels


def facts(kernel):
    """What the machine code of a kernel holds."""
    return {
        "spills": spills(kernel.asm["cubin"]),
        "shared_bytes": kernel.metadata.shared,
        "wgmma": kernel.asm["ptx"].count("wgmma.mma_async"),
    }


def spills(cubin):
    """Stores of a register to the stack. Not those before the roles of a warp-specialized kernel part, which are made
    once in a launch: a value of its arguments, read again once a tile."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "--dump-sass", file.name]
        code = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    assert "EXIT" in code, "no machine code was found"
    return len(re.findall(r"\bSTL\b", code[max(0, code.find("USETMAXREG")) :]))
