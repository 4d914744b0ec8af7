"""A patched model under torch.compile (the checks are the program `compiled.py`) and under generate."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import moesaic
from moesaic.integrations.transformers import patch
from tests.integrations.compiled import CHECKS
from tests.integrations.families import ids, tiny


@pytest.fixture(scope="module")
def compiled():
    """In a process of its own: torch.compile cannot trace the run-time type checks of this one."""
    places = (Path(moesaic.__file__).parents[1], Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-m", "tests.integrations.compiled"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603


@pytest.mark.parametrize("check", CHECKS)
def test_compiled(compiled, check):
    assert check in compiled.stdout.splitlines(), compiled.stderr[-4000:]


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_generate_gives_the_same_tokens(family):
    model = tiny(family)
    how = {"max_new_tokens": 8, "do_sample": False, "use_cache": True, "pad_token_id": 0, "eos_token_id": None}
    wanted = model.generate(ids(), attention_mask=torch.ones_like(ids()), **how)
    patch(model)
    got = model.generate(ids(), attention_mask=torch.ones_like(ids()), **how)
    assert torch.equal(got, wanted)
    assert got.shape == (2, 15)
