"""Reading is lazy: only the bytes of the experts asked for, into tensors that are allocated once."""

from functools import partial

import pytest
import torch

from moesaic import ExpertWeights
from moesaic.checkpoints import read_experts, write_experts
from tests.backends.peak_memory import peak_bytes
from tests.checkpoints.editing import edit
from tests.checkpoints.examples import CASES, named, written

REPACKED = {"awq", "ct-int4-asymmetric", "ct-w4afp8", "gptq", "gptq-symmetric", "gptq-v2", "ct-w8a16"}
"""Conventions whose codes are moved: a matrix of codes, one in a byte, and copies of it while it is."""


def big(case, experts=8):
    """Weights of 8 experts, large enough that what is small does not count."""
    generator = torch.Generator().manual_seed(0)
    rows = 256 if case.block.startswith("backbone") else 512
    first, down = (torch.randn(experts, *s, generator=generator) for s in ((rows, 256), (256, 256)))
    biases = (torch.zeros(experts, rows), torch.zeros(experts, 256)) if case.bias else (None, None)
    plain = ExpertWeights.plain(first, down, gate_up_bias=biases[0], down_bias=biases[1]).quantize(case.stored)
    if case.name == "gptq":
        for projection in (plain.gate_up, plain.down):
            projection.scales["zero_point"].clamp_(min=1)
    return plain


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name not in {"awq-whole-rows", "ct-int4-odd-words", "minimax-m2"}], ids=str
)
def test_the_peak_is_the_layer_and_one_matrix(case, tmp_path):
    weights = big(case)
    config = {"num_local_experts": 8, **case.config}
    write_experts(tmp_path / "m", {0: weights}, case.method, naming=case.naming, block=case.block, config=config)
    codes = 256 * 256  # of one matrix, a byte each
    # torch counts the mapped file as if it were allocated; its pages are the system's, and only those read are there.
    mapped = sum(path.stat().st_size for path in (tmp_path / "m").glob("*.safetensors"))
    for experts in (range(8), range(2, 4)):
        layer = weights.num_bytes * len(experts) // 8
        allowed = 5 * codes if case.name in REPACKED else codes
        peak = peak_bytes(partial(read_experts, tmp_path / "m", 0, experts=experts)) - mapped
        assert layer <= peak <= layer + allowed, (peak - layer) / codes


def test_only_the_experts_asked_for_are_looked_at(tmp_path):
    case = named("deepseek-v3")
    write_experts(tmp_path / "m", {0: big(case)}, case.method, config={"num_experts": 8})

    def spoil(tensors):
        for expert in {*range(8)} - {5, 6}:
            tensors[f"model.layers.0.mlp.experts.{expert}.up_proj.weight_scale_inv"].fill_(float("nan"))

    edit(tmp_path / "m", spoil)
    assert read_experts(tmp_path / "m", 0, experts=[5, 6]).down.shape[0] == 2


def test_the_result_does_not_hold_the_file(tmp_path):
    case = named("bf16")
    write_experts(tmp_path / "m", {0: big(case)}, case.method)
    got = read_experts(tmp_path / "m", 0, experts=[3])
    kept = [tensor.clone() for tensor in got.tensors]
    for path in (tmp_path / "m").glob("*.safetensors"):
        path.write_bytes(b"\0" * path.stat().st_size)
    assert all(torch.equal(a, b) for a, b in zip(got.tensors, kept, strict=True))
    assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in got.tensors)


def test_progress_counts_experts(tmp_path):
    case = named("bf16")
    write_experts(tmp_path / "m", {0: big(case)}, case.method)
    seen = []
    read_experts(tmp_path / "m", 0, experts=[7, 2, 4], progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["bf16", "deepseek-v3", "gpt-oss", "ct-int4-asymmetric", "ct-nvfp4", "awq", "gptq"])
def test_a_device_gets_what_the_cpu_gets(name, tmp_path):
    _, directory = written(named(name), tmp_path)
    here, there = read_experts(directory, 3), read_experts(directory, 3, device="cuda")
    for got, wanted in zip(there.tensors, here.tensors, strict=True):
        assert got.is_cuda
        assert torch.equal(got.cpu().view(torch.uint8), wanted.view(torch.uint8))
