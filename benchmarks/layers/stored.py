"""Layers with weights as stored: schemes, drawn codes, `TritonQuantized`, and the peers that read the same codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from layers.cells import Cell, Family
from layers.contender import Contender
from layers.own import Own
from peers.deepgemm import DeepGEMM
from peers.marlin import Marlin
from peers.triton_kernels_mxfp4 import TritonKernelsMXFP4
from peers.vllm_fp8 import VLLMBlockFP8
from torch import Tensor

from moesaic import (
    FP8,
    INT4,
    MXFP4,
    NVFP4,
    ExpertWeights,
    Format,
    PerBlock,
    PerGroup,
    PerRow,
    Plain,
    Problem,
    Quantized,
    Reference,
    Scheme,
    TritonQuantized,
)

NEVER = 2**31
SCHEMES = {
    "fp8_block": Scheme(FP8(PerBlock()), FP8(PerGroup(128))),
    "fp8_row": Scheme(FP8(PerRow()), FP8(PerRow())),
    "mxfp4": Scheme(MXFP4(), Plain()),
    "nvfp4": Scheme(NVFP4(), Plain()),
    "int4": Scheme(INT4(PerGroup(128), scale=torch.bfloat16), Plain()),
}
CELLS = (
    "fp8_block/qwen3_30b",
    "fp8_block/dsv3_ep8",
    "fp8_block/mixtral",
    "fp8_row/qwen3_30b",
    "mxfp4/qwen3_30b",
    "mxfp4/gptoss_120b",
    "int4/qwen3_30b",
    "nvfp4/qwen3_30b",
)
PEERS: dict[str, tuple[Contender, ...]] = {
    "fp8_block": (VLLMBlockFP8(), DeepGEMM()),
    "mxfp4": (Marlin(), TritonKernelsMXFP4()),
    "int4": (Marlin(),),
}
INPUT_ERROR = 0.08
"""What rounding rows to FP8 twice costs of a layer's rms; the kit judges exactly, here only nonsense is caught."""


@final
class StoredFamily(Family):
    """Codes and scales."""

    checked_tokens = 4

    def scheme(self, cell: Cell) -> Scheme:
        """Rows in bfloat16, rounded as it says."""
        return SCHEMES[cell.scheme]

    def weights(self, cell: Cell, device: str) -> ExpertWeights:
        """Random codes, scales that give weights of about the usual size."""
        shape, stored = cell.sizes, SCHEMES[cell.scheme].weights
        experts, hidden, inner = shape.num_experts, shape.hidden_size, shape.intermediate_size
        generator = torch.Generator(device).manual_seed(7)
        return ExpertWeights(
            drawn(stored, (experts, 2, inner, hidden), generator), drawn(stored, (experts, 1, hidden, inner), generator)
        )

    def own(self, cell: Cell, problem: Problem, device: str) -> Sequence[Contender]:
        """The backend as it is, and what it did not choose where the choice is close."""
        allowed = INPUT_ERROR if isinstance(problem.scheme.inputs, FP8) else 0.01
        if device == "cpu":
            return (Own("reference", Reference(), allowed),)
        rows = cell.tokens * problem.top_k / problem.num_experts
        found = [Own("triton_quantized", TritonQuantized(), allowed)]
        if 0.25 <= rows <= 300:
            found.append(Own("in triton", TritonQuantized(NEVER, NEVER), allowed))
            found.append(Own("in products", TritonQuantized(0), allowed))
        if rows >= 200:
            found.append(Own("read back", TritonQuantized(NEVER, 0), allowed))
        return found

    def peers(self, scheme: str) -> Sequence[Contender]:
        """Of the scheme."""
        return PEERS.get(scheme, ())


def drawn(stored: Format, shape: tuple[int, int, int, int], generator: torch.Generator) -> Quantized:
    """`shape`: experts, parts, rows of a part, columns."""
    experts, parts, rows, columns = shape
    options = {"device": generator.device, "generator": generator}
    single = (experts, rows, columns) if parts == 1 else shape
    tensors: dict[str, Tensor] = {}
    for name, wanted in stored.storage(single, torch.bfloat16).items():
        *heads, height, width = wanted.shape
        size = (*heads, height, width) if parts == 1 else (*heads[:-1], heads[-1] * height, width)
        if name == "data" and wanted.dtype == torch.uint8:
            values = torch.randint(0, 256, size, dtype=torch.uint8, **options)
        elif name == "data":
            values = torch.randn(size, **options) * 60
        elif name == "global_scale":
            values = torch.full(size, 1e-4, device=generator.device)
        elif wanted.dtype == torch.float8_e8m0fnu:
            values = torch.full(size, 2.0**-6, device=generator.device)
        elif wanted.dtype == torch.float8_e4m3fn:
            values = torch.rand(size, **options) * 100 + 50
        else:
            values = (torch.rand(size, **options) * 0.5 + 0.3) * (1e-3 if isinstance(stored, FP8) else 1e-2)
        tensors[name] = values.to(wanted.dtype)
    return Quantized(stored, tensors.pop("data"), tensors, parts)
