"""Bound layers under torch.compile; the checks themselves are the program `compiled_layer.py`."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import moesaic
from moesaic import ExpertWeights, Problem, Reference, SwiGLU, bind
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


def test_a_bound_layer_is_neither_copied_nor_written_with_a_graph():
    problem = Problem(num_experts=3, top_k=2, hidden_size=8, intermediate_size=5, activation=SwiGLU())
    weights = ExpertWeights.plain(torch.randn(3, 10, 8).bfloat16(), torch.randn(3, 8, 5).bfloat16())
    bound = bind(problem, weights, backends=(Reference(),))._bound
    assert copy.deepcopy(bound) is bound
    with pytest.raises(pickle.PicklingError, match="pickle the Experts"):
        pickle.dumps(bound)
