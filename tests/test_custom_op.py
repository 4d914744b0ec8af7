"""Bound layers under torch.compile; the checks themselves are the program `compiled_layer.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import moesaic
from tests.compiled_layer import CHECKS


@pytest.fixture(scope="module")
def compiled():
    """The program's output: the names of the checks that held, and why the others did not."""
    places = (Path(moesaic.__file__).parents[1], Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-m", "tests.compiled_layer"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603


@pytest.mark.parametrize("check", CHECKS)
def test_compiled(compiled, check):
    assert check in compiled.stdout.splitlines(), compiled.stderr[-4000:]
