"""Ranks and other programs of a test, as processes that do not outlive it."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 120.0
"""Seconds until processes are given up."""


def started(module, *arguments, **environment):
    """`python -m module *arguments`; a variable of the environment that is None is taken away."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **environment,
    }
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env={name: value for name, value in variables.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(processes):
    """What each ended with: [(exit status, output, errors)]."""
    end = time.monotonic() + LIMIT
    try:
        printed = [process.communicate(timeout=max(end - time.monotonic(), 0.1)) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, *texts) for process, texts in zip(processes, printed, strict=True)]


def two_ranks(module, *arguments, **environment):
    """What `python -m module RANK *arguments` of both ranks ended with."""
    return ended([started(module, rank, *arguments, **environment) for rank in range(2)])
