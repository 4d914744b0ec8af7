"""Two ranks of a test as processes that do not outlive it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 60.0
"""Seconds until the processes are given up."""


def two_ranks(module, *arguments, **environment):
    """What `python -m module RANK *arguments` of both ranks ended with: [(exit status, output, errors)]."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
    processes = [
        subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", module, str(rank), *arguments],
            cwd=ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, *texts) for process, texts in zip(processes, printed, strict=True)]
