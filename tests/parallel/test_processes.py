"""The ground truth of what the tests in threads say: two real processes over gloo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 60.0
"""Seconds until the processes are given up."""

pytestmark = pytest.mark.dist


def test_two_processes_record_load_rebalance_and_fail_together(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "tests.parallel.rank_process", str(rank), tmp_path / "init", tmp_path / "model"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ended = [process.communicate(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, -9], ended
    done = ["a loaded layer computes and counts what one rank does", "a rebalanced layer is one built anew"]
    first, second = (output.splitlines() for output, _ in ended)
    assert first[:3] == [done[0], "a compiled layer counts", done[1]]
    *_, fault, lost = first
    assert fault.startswith("rebalance, chunk 1 of ")
    assert ": rank 1: DispatchError: bytes 0 to " in fault
    assert fault.endswith("; no rank was changed, and the old placement serves on")
    assert second == [*done, fault]
    assert "rank 0 did not hear from all of the ranks 1" in lost
