"""Kernels are compiled for an H200 where there is none; what their machine code holds is read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moesaic import ACTIVATIONS

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """Name -> what the program `compiled.py` found, by a compiler that remembers nothing."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
    }
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.kernels.compiled"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr[-3000:]
    return {fact.pop("name"): fact for fact in map(json.loads, done.stdout.splitlines())}


def test_every_activation_is_compiled(facts):
    assert {name.split("(")[0] for name in facts} == {a.__name__ for a in ACTIVATIONS}


def test_no_register_is_spilled_and_no_memory_is_shared(facts):
    assert {name: f for name, f in facts.items() if f["stack_bytes"] or f["shared_bytes"] > 1024} == {}


def test_rows_are_loaded_16_bytes_at_a_time(facts):
    """Two loads of each operand: 16 elements of bfloat16 a thread."""
    gated = {a.__name__: a.gated for a in ACTIVATIONS}
    wanted = {name: 4 if gated[name.split("(")[0]] else 2 for name in facts}
    assert {name: f["loads_of_16_bytes"] for name, f in facts.items()} == wanted


def test_no_clamp_turns_nan_into_a_number_and_no_tanh_is_approximate(facts):
    assert {name: f for name, f in facts.items() if f["laundering"] or f["approximate_tanh"]} == {}
    clamped = {name for name, f in facts.items() if f["keeping_nan"]}
    assert {name.split("(")[0] for name in clamped} >= {
        "SwiGLU",
        "SwiGLUStep",
        "SiTU",
        "PowLU",
        "ReLU",
        "ReLU2",
        "ReGLU",
    }
