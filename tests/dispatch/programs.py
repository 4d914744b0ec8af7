"""Programs of the tests, started as processes that do not outlive them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 120
"""Seconds until a program is given up."""


def started(*arguments, interpret=True):
    """A program of this directory's package."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    environment.pop("TRITON_INTERPRET", None)
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)  # noqa: S603


def ended(processes):
    """The lines that each wrote; no process outlives this."""
    try:
        found = [process.communicate(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, found, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [output.splitlines() for output, _ in found]
