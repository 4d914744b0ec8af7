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
from tests.compiled_on_cuda import COUNTS, LIMIT, MODES


def program(*arguments, limit=None):
    """What a program in this directory prints, in a process of its own."""
    places = (Path(moesaic.__file__).parents[1], Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=limit)  # noqa: S603


@pytest.fixture(scope="module")
def compiled():
    """The program's output: the names of the checks that held, and why the others did not."""
    return program("tests.compiled_layer")


@pytest.mark.parametrize("check", CHECKS)
def test_compiled(compiled, check):
    assert check in compiled.stdout.splitlines(), compiled.stderr[-4000:]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_on_a_gpu_a_compiled_layer_gives_the_eager_bits_of_each_routing(mode):
    done = program("tests.compiled_on_cuda", mode, limit=LIMIT + 30)
    assert done.returncode == 0, done.stderr[-4000:]
    held = done.stdout.splitlines()
    assert [line.split(":")[0] for line in held[: len(COUNTS)]] == [f"{mode}, {tokens} tokens" for tokens in COUNTS]


def test_a_bound_layer_is_neither_copied_nor_written_with_a_graph():
    problem = Problem(num_experts=3, top_k=2, hidden_size=8, intermediate_size=5, activation=SwiGLU())
    weights = ExpertWeights.plain(torch.randn(3, 10, 8).bfloat16(), torch.randn(3, 8, 5).bfloat16())
    bound = bind(problem, weights, backends=(Reference(),))._bound
    assert copy.deepcopy(bound) is bound
    with pytest.raises(pickle.PicklingError, match="pickle the Experts"):
        pickle.dumps(bound)
