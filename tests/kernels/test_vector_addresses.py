"""Addresses of inner rows are 64 bits wide: more than 2^31 values need memory that no test has, so the code is read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]


def test_inner_rows_are_addressed_in_64_bits(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.kernels.vector_addresses"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr[-3000:]
    found = [line.split() for line in done.stdout.splitlines()]
    assert {kernel for kernel, _ in found} == {"vector_up", "vector_down"}
    assert {width for _, width in found} == {"i64"}
