"""Peers: where they are found, what they are given, and what is kept out of their time."""

import sys

import pytest
import torch
from layers.cells import Cell
from layers.exact import clamped_swiglu, exact, relative_error, swiglu
from layers.plain import PlainFamily
from layers.stored import StoredFamily
from layers.traffic import Traffic
from peers.bundle import Bundle
from peers.cublas import CuBLAS
from peers.deepgemm import in_order
from peers.marlin import Marlin
from peers.torch_grouped_mm import TorchGroupedMM
from peers.triton_kernels_layer import logits
from peers.triton_kernels_plain import TritonKernels
from peers.vllm_fp8 import VLLMBlockFP8
from peers.vllm_plain import VLLM

FUSED_MOE = """
import torch

def get_moe_configs(E, N, dtype, block_n=None, block_k=None):
    return {1: {}} if (E, N, dtype) == (8, 48, None) else None

def fused_experts(hidden_states, w1, w2, topk_weights, topk_ids, *, quant_config=None):
    if quant_config is not None:
        w1, w2 = (read(w, s) for w, s in zip((w1, w2), quant_config, strict=True))
    out = torch.zeros_like(hidden_states)
    for token, row in enumerate(hidden_states):
        for weight, expert in zip(topk_weights[token], topk_ids[token].tolist()):
            gate, up = (w1[expert] @ row).chunk(2)
            out[token] += weight.to(out.dtype) * (w2[expert] @ (torch.sigmoid(gate) * gate * up))
    return out

def read(codes, scales):
    wide = scales.repeat_interleave(128, 1).repeat_interleave(128, 2)
    return (codes.float() * wide).bfloat16()
"""
CONFIG = """
def fp8_w8a8_moe_quant_config(*, w1_scale, w2_scale, block_shape):
    assert block_shape == [128, 128]
    return w1_scale, w2_scale
"""
MARLIN = """
import torch

def fused_marlin_moe(hidden_states, w1, w2, bias1, bias2, w1_scale, w2_scale, topk_weights, topk_ids, quant_type_id,
                     *, global_num_experts):
    assert bias1 is bias2 is None
    assert global_num_experts == len(w1) == len(w1_scale)
    assert quant_type_id in (4, 5)
    return hidden_states * 0
"""
OPS = """
def gptq_marlin_repack(b_q_weight, perm, size_k, size_n, num_bits, is_a_8bit=False):
    assert b_q_weight.is_contiguous() and tuple(b_q_weight.shape) == (size_k // 8, size_n)
    assert num_bits == 4 and perm.numel() == 0
    return b_q_weight
"""
TYPES = """
from types import SimpleNamespace
scalar_types = SimpleNamespace(uint4b8=SimpleNamespace(id=4), float4_e2m1f=SimpleNamespace(id=5))
"""
SCALES = """
def marlin_permute_scales(s, size_k, size_n, group_size):
    assert tuple(s.shape) == (-(-size_k // group_size), size_n)
    return s
"""
SCALES_FP4 = """
import torch
def mxfp4_marlin_process_scales(s):
    return s.to(torch.float8_e8m0fnu)
"""
FILES = {
    "model_executor/layers/fused_moe/fused_moe.py": FUSED_MOE,
    "model_executor/layers/fused_moe/config.py": CONFIG,
    "model_executor/layers/fused_moe/experts/marlin_moe.py": MARLIN,
    "model_executor/layers/quantization/utils/marlin_utils.py": SCALES,
    "model_executor/layers/quantization/utils/marlin_utils_fp4.py": SCALES_FP4,
    "scalar_type.py": TYPES,
    "_custom_ops.py": OPS,
}


@pytest.fixture
def own_modules(monkeypatch):
    """What a peer brings is gone afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("VLLM_USE_DEEP_GEMM", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "")
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in {"vllm", "vllm_stub", "some_peer"}:
            del sys.modules[name]


@pytest.fixture
def vllm(tmp_path, monkeypatch, own_modules):
    """A package that has vLLM's names and computes in loops."""
    root = tmp_path / "vllm"
    for name, text in FILES.items():
        file = root / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / "vllm_stub.py").write_text("")
    (root / "vllm-0.26.0.dist-info").mkdir()
    (root / "vllm-0.26.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n")
    monkeypatch.setenv("PEERS", str(tmp_path))


def given(tokens=5, scheme="bf16", shape="tiny"):
    family = PlainFamily() if scheme == "bf16" else StoredFamily()
    cell = Cell(shape=shape, scheme=scheme, tokens=tokens)
    batch = Traffic().batches(tokens, cell.sizes, 1, "cpu", torch.bfloat16)[0]
    return family.problem(cell), family.weights(cell, "cpu"), batch


def test_a_bundle_is_found_in_the_folder_of_peers_or_said_to_be_missing(tmp_path, monkeypatch, own_modules):
    peer = Bundle("some", "some_peer")
    monkeypatch.delenv("PEERS", raising=False)
    assert peer.missing == "some_peer is not installed, and there is no $PEERS"
    monkeypatch.setenv("PEERS", str(tmp_path))
    assert peer.missing == "some_peer is not installed, and there is no folder some in $PEERS"
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "some_peer.py").write_text("__version__ = '7'\n")
    assert not peer.missing
    assert peer.version() == "not stated"
    peer.enter()
    peer.enter()
    assert sys.path.count(str(tmp_path / "some")) == 1
    import some_peer  # noqa: F401, PLC0415

    assert peer.version() == "7"
    assert not Bundle("none", "json").missing  # installed


def test_vllm_gets_the_weights_as_they_are(vllm):
    problem, weights, batch = given()
    peer = VLLM()
    assert not peer.missing
    got = peer.bound(weights, problem)(batch)()
    assert relative_error(got, exact(batch, weights, swiglu)) < peer.tolerance
    assert peer.remarks(problem) == {"configuration": "tuned"}
    assert peer.versions == {"vllm": "0.26.0"}


def test_vllm_gets_blocks_of_fp8_as_they_are(vllm, monkeypatch):
    from dispatching.shapes import Shape  # noqa: PLC0415
    from layers import shapes  # noqa: PLC0415

    monkeypatch.setitem(shapes.SHAPES, "blocks", Shape(num_experts=3, top_k=2, hidden_size=256, intermediate_size=128))
    problem, weights, batch = given(4, "fp8_block", "blocks")
    peer = VLLMBlockFP8()
    assert relative_error(peer.bound(weights, problem)(batch)(), exact(batch, weights, swiglu)) < 0.02
    assert peer.remarks(problem) == {"configuration": "default"}
    odd, uneven, _ = given(4, "fp8_block")
    with pytest.raises(ValueError, match="multiples of 128"):
        peer.bound(uneven, odd)


@pytest.mark.parametrize("scheme", ["mxfp4", "int4"])
def test_marlin_gets_words_of_eight_codes_of_a_row(vllm, scheme):
    problem, weights, batch = given(4, scheme)
    assert Marlin().bound(weights, problem)(batch)().shape == batch.hidden_states.shape
    from peers.marlin import _numbers, _packed  # noqa: PLC0415

    words, scales = _packed(weights.down, _numbers)
    experts, rows, columns = weights.down.shape
    codes = torch.stack([(words >> shift) & 15 for shift in range(0, 32, 4)], 2)  # [E, K / 8, 8, N]
    unpacked = weights.down.data.repeat_interleave(2, -1) >> (4 * (torch.arange(columns) % 2)) & 15
    assert torch.equal(codes.flatten(1, 2).transpose(1, 2).to(torch.uint8), unpacked)
    assert len(scales) == experts
    assert rows == words.shape[-1]
    with pytest.raises(ValueError, match="Marlin has nothing for FP8"):
        Marlin().bound(given(4, "fp8_row")[1], given(4, "fp8_row")[0])


def test_grouped_mm_is_the_layer():
    problem, weights, batch = given(9)
    peer = TorchGroupedMM()
    got = peer.bound(weights, problem)(batch)()
    assert relative_error(got, exact(batch, weights, swiglu)) < peer.tolerance


def test_cublas_multiplies_equal_groups_and_moves_the_bytes_of_the_sum():
    problem, weights, _ = given()
    assert [tokens for tokens in (1, 255, 256, 257, 258, 260, 264) if CuBLAS().fits(problem, tokens)] == [256, 260, 264]
    _, _, batch = given(256)
    call = CuBLAS().bound(weights, problem)(batch)
    kept = dict(zip(call.__code__.co_freevars, (cell.cell_contents for cell in call.__closure__), strict=True))
    moved = call()
    assert moved.numel() == 256 * 64 * 3 // 2  # T K H are read and T H written: a copy of half as many
    assert torch.equal(moved, kept["products"].view(-1)[: len(moved)])
    for expert in range(8):
        assert (
            relative_error(kept["width"][expert], kept["rows"][expert].float() @ weights.gate_up.data[expert].float().T)
            < 0.01
        )
        assert (
            relative_error(
                kept["products"][expert], kept["inner"][expert].float() @ weights.down.data[expert].float().T
            )
            < 0.01
        )
    assert len(kept["rows"][0]) == 64


def test_logits_lead_to_the_ids_and_weights_that_they_are_of():
    _, _, batch = given(50)
    values, ids = logits(batch, 8).float().topk(2)
    order, wanted = ids.sort(1).indices, batch.routing.topk_ids.sort(1)
    assert torch.equal(ids.sort(1).values, wanted.values)
    shares = values.softmax(1).gather(1, order)
    assert torch.allclose(shares, batch.routing.topk_weights.gather(1, wanted.indices), atol=0.01)


def test_triton_kernels_is_judged_by_its_own_activation():
    assert TritonKernels().activation is clamped_swiglu
    rows = torch.tensor([[8.0, -9.0, -1.0, 0.5]])  # gate 8 is 7, up -9 is -7
    wanted = [7 / (1 + 2.718281828 ** (-1.702 * 7)) * -6, -1 / (1 + 2.718281828**1.702) * 1.5]
    assert torch.allclose(clamped_swiglu(rows), torch.tensor([wanted]))


def test_rows_in_order_are_padded_by_expert():
    ids = torch.tensor([[3, 0], [3, 1], [0, 3]], dtype=torch.int32)
    experts, tokens = in_order(ids, 5, 2)
    assert experts.tolist() == [0, 0, 1, -1, 3, 3, 3, -1]
    found = sorted((e, t) for e, t in zip(experts.tolist(), tokens.tolist(), strict=True) if e >= 0)
    assert found == [(0, 0), (0, 2), (1, 1), (3, 0), (3, 1), (3, 2)]
