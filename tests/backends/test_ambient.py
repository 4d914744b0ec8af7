"""Torch's settings around a call: a backend neither depends on them nor changes them."""

import contextlib
import os
import subprocess
import sys

import pytest
import torch

from moesaic import BatchedExperts, Cpu, CpuJit, ExpertWeights, Machine, Problem, Standard, SwiGLU, bind
from tests.backends import example, feeding
from tests.tolerance import assert_close


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS = {
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "meta": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("layout", [Standard(), BatchedExperts()], ids=str)
@pytest.mark.parametrize("num_tokens", [1, 19, 700])
@pytest.mark.parametrize("backend", example.SUBJECTS, ids=lambda b: b.name)
def test_settings_change_no_bit_and_are_left_alone(backend, layout, num_tokens, setting, unchecked):
    case = example.problem(backend=backend, layout=layout, bias=True)
    given = example.weights(case)
    if layout == Standard():
        batch = feeding.StandardBatch(example.rows(case, num_tokens), example.routing(case, num_tokens))
        live = torch.ones(num_tokens, dtype=torch.bool)
    else:
        batch, _, defined = feeding.feed(case, given, 0.0)
        live = torch.tensor(defined)
    with torch.no_grad():
        wanted = bind(case, given, backends=(backend,))(batch)
        random = torch.get_rng_state()
        with SETTINGS[setting]():
            state = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
            got = bind(case, given, backends=(backend,))(batch)
            assert (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()) == state
        again = bind(case, given, backends=(backend,))
        with SETTINGS[setting]():
            later = again(batch)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(got[live], wanted[live])
    assert torch.equal(later[live], wanted[live])


@pytest.mark.skipif("avx512_bf16" not in Machine.current("cpu").features, reason="CpuJit does not run here")
@pytest.mark.parametrize(("hidden", "inner"), [(1, 8), (2, 1), (1, 1), (3, 33)])
def test_weights_of_one_or_two_columns_bind(hidden, inner):
    case = example.problem(dtype=torch.bfloat16, hidden_size=hidden, intermediate_size=inner)
    rows, routing = example.rows(case, 5), example.routing(case, 5)
    given = example.weights(case)
    got = bind(case, given, backends=(CpuJit(),))(feeding.StandardBatch(rows, routing))
    expected = feeding._expected(rows, routing, example.as_oracle(case, given))
    torch.testing.assert_close(got.double(), torch.tensor(expected), rtol=2e-2, atol=2e-2)


@pytest.mark.skipif("avx512_bf16" not in Machine.current("cpu").features, reason="CpuJit does not run here")
def test_another_process_than_the_one_that_bound_runs_without_numbas_threads(monkeypatch):
    case = example.problem(dtype=torch.bfloat16)
    given, rows, routing = example.weights(case), example.rows(case, 5), example.routing(case, 5)
    experts = bind(case, given, backends=(CpuJit(),))
    monkeypatch.setattr("moesaic.kernels.packed_product._product", None)
    monkeypatch.setattr("moesaic.kernels.tiled_product._product", None)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    got = experts(feeding.StandardBatch(rows, routing))
    assert_close(got, feeding._expected(rows, routing, example.as_oracle(case, given)), case.dtype)


PROGRAM = """
import torch
from moesaic import CpuJit, ExpertWeights, Identity, Problem, Routing, StandardBatch, bind
case = Problem(num_experts=2, top_k=1, hidden_size=64, intermediate_size=64, activation=Identity())
eye = torch.eye(64, dtype=torch.bfloat16).expand(2, -1, -1).contiguous()
rows, ids = torch.randn(3, 64).bfloat16(), torch.tensor([[0], [1], [1]])
layer = bind(case, ExpertWeights.plain(eye, eye), backends=(CpuJit(),))
got = layer(StandardBatch(rows, Routing(ids, torch.ones(3, 1))))
assert torch.equal(got, rows)
"""


@pytest.mark.skipif("avx512_bf16" not in Machine.current("cpu").features, reason="CpuJit does not run here")
@pytest.mark.parametrize(
    "setting", ["NUMBA_DISABLE_JIT=1", "NUMBA_CPU_NAME=generic", "NUMBA_THREADING_LAYER=workqueue"]
)
def test_numbas_settings_leave_the_answer_to_onednn(setting):
    name, value = setting.split("=")
    subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, name: value}, check=True)  # noqa: S603


def test_canonical_weights_come_back_under_autocast():
    """Where the backend packs them, a product with the identity gives them back: autocast refuses float16."""
    problem = Problem(
        num_experts=2, top_k=1, hidden_size=8, intermediate_size=4, activation=SwiGLU(), dtype=torch.float16
    )
    weights = ExpertWeights.plain(torch.rand(2, 8, 8).half(), torch.rand(2, 8, 4).half())
    with torch.autocast("cpu"):
        experts = bind(problem, weights, backends=(Cpu(),))
        back = experts.canonical()
    assert torch.equal(back.gate_up.data, weights.gate_up.data)
    assert torch.equal(back.down.data, weights.down.data)
