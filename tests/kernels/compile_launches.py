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
    # To write out machine code takes 0.4 seconds. Without a stack there is none to store a register to.
    code = machine_code(kernel.asm["cubin"]) if stack(kernel.asm["cubin"]) else ""
    return {
        "spills": spills(code),
        "spills_in_steps": spills_in_steps(code),
        "shared_bytes": kernel.metadata.shared,
        "wgmma": kernel.asm["ptx"].count("wgmma.mma_async"),
        "loads_in_loops": in_loops(kernel.asm["ttgir"], "tt.load"),
        "exchanges_in_loops": in_loops(kernel.asm["ttgir"], "ttg.local_alloc", "ttg.convert_layout"),
    }


def in_loops(code, *operations):
    """Those within loops of intermediate code: a load is not copied ahead of a step but waited for in it, and what
    changes its layout goes through shared memory, with barriers."""
    found, loops = 0, []
    for line in code.splitlines():
        indent = len(line) - len(line.lstrip())
        if loops and indent == loops[-1] and line.lstrip().startswith("}"):
            loops.pop()
        found += bool(loops) and any(f"{operation} " in line for operation in operations)
        if "scf.for" in line:
            loops.append(indent)
    return found


def dumped(cubin, what):
    """What cuobjdump says of it."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), what, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


def stack(cubin):
    """Bytes of it that a thread has."""
    sizes = re.findall(r"STACK:(\d+)", dumped(cubin, "--dump-resource-usage"))
    assert sizes, "no kernel was found"
    return max(map(int, sizes))


def machine_code(cubin):
    """As text."""
    code = dumped(cubin, "--dump-sass")
    assert "EXIT" in code, "no machine code was found"
    return code


def spills(code):
    """Stores of a register to the stack. Not those before the roles of a warp-specialized kernel part, which are made
    once in a launch: a value of its arguments, read again once a tile."""
    return len(re.findall(r"\bSTL\b", code[max(0, code.find("USETMAXREG")) :]))


def spills_in_steps(code):
    """Those within a loop that multiplies or copies and shares nothing with a shorter one: a loop over steps."""
    found = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_.]+)(.*?);", code, re.MULTILINE)
    at = {int(address, 16): index for index, (address, _, _) in enumerate(found)}
    loops = []
    for index, (address, operation, rest) in enumerate(found):
        target = re.search(r"0x([0-9a-f]+)", rest) if operation.startswith("BRA") else None
        if target and int(target[1], 16) < int(address, 16):
            loops.append((at[int(target[1], 16)], index))
    names = [operation.split(".")[0] for _, operation, _ in found]
    work = [(a, b) for a, b in loops if any("GMMA" in n or n == "UTMALDG" for n in names[a : b + 1])]
    steps = [(a, b) for a, b in work if not any(d - c < b - a and c <= b and a <= d for c, d in work)]
    return sum(names[a : b + 1].count("STL") for a, b in steps)
