"""The fixtures that the kernels' tests share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def interpreted(request, tmp_path_factory):
    """Name -> what `interpreted_cases.py` saved of the cases that the test's module imports as `cases`."""
    path = tmp_path_factory.mktemp("kernels") / "buffers.pt"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.kernels.interpreted_cases", request.module.cases.__name__, str(path)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(path)


@pytest.fixture
def poisoned():
    """Fresh memory on CUDA holds NaN, or the largest integer."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)
