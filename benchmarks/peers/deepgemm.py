"""DeepGEMM's grouped products of FP8 blocks, of rows that are in order, padded and rounded before."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import torch
from layers.clock import Call
from layers.contender import Bound
from peers.bundle import Bundle
from peers.bundled import Bundled
from torch import Tensor

from moesaic import ExpertWeights, Problem, StandardBatch

DEEP_GEMM = Bundle("deepgemm", "deep_gemm")
GROUP = 128


@final
@dataclass(frozen=True)
class DeepGEMM(Bundled):
    """Two products and nothing else, so its answer is that of no layer."""

    name: str = "deepgemm_gemms"
    tolerance: float | None = None
    bundle: ClassVar[Bundle] = DEEP_GEMM
    scope: ClassVar[str] = "gemms"

    def bound(self, weights: ExpertWeights, problem: Problem) -> Bound:
        """Codes and scales as they are. Raises ValueError where a block would reach over gate and up."""
        if problem.hidden_size % GROUP or problem.intermediate_size % GROUP:
            raise ValueError(f"DeepGEMM's blocks need H and I to be multiples of {GROUP}")
        DEEP_GEMM.enter()
        _find_compiler()
        import deep_gemm  # noqa: PLC0415

        first, second = ((part.data, part.scales["scale"]) for part in (weights.gate_up, weights.down))
        align = deep_gemm.get_mk_alignment_for_contiguous_layout()
        gemm = deep_gemm.m_grouped_fp8_gemm_nt_contiguous

        def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
            groups = rows.float().unflatten(1, (-1, GROUP))
            scales = groups.abs().amax(-1).clamp(min=1e-4) / 448
            codes = (groups / scales.unsqueeze(-1)).view_as(rows).to(torch.float8_e4m3fn)
            return codes, deep_gemm.get_mn_major_tma_aligned_tensor(scales)

        def prepared(batch: StandardBatch) -> Call:
            rows = batch.hidden_states
            experts, tokens = in_order(batch.routing.topk_ids, problem.num_experts, align)
            given = rounded(rows[tokens])
            inner = rounded(torch.randn(len(tokens), problem.intermediate_size, device=rows.device).to(rows.dtype))
            width = rows.new_empty(len(tokens), problem.width)
            products = rows.new_empty(len(tokens), problem.hidden_size)

            def call() -> Tensor:
                gemm(given, first, width, experts, disable_ue8m0_cast=True)  # Hopper takes float32 scales
                gemm(inner, second, products, experts, disable_ue8m0_cast=True)
                return products

            return call

        return prepared


def in_order(ids: Tensor, num_experts: int, align: int) -> tuple[Tensor, Tensor]:
    """Of each row its expert, int32, -1 for padding, and its token: rows by expert, each padded to `align`."""
    experts, order = ids.flatten().long().sort()
    counts = experts.bincount(minlength=num_experts)
    padded = (counts + align - 1) // align * align
    place = (
        torch.arange(len(order), device=ids.device)
        + ((padded.cumsum(0) - padded) - (counts.cumsum(0) - counts))[experts]
    )
    of_row = torch.full((int(padded.sum()),), -1, dtype=torch.int32, device=ids.device)
    tokens = torch.zeros(len(of_row), dtype=torch.long, device=ids.device)
    of_row[place], tokens[place] = experts.int(), order // ids.shape[1]
    return of_row, tokens


def _find_compiler() -> None:
    """It compiles when it runs: where nvcc is, and the headers of torch's own CUDA packages."""
    if nvcc := shutil.which("nvcc"):
        os.environ.setdefault("CUDA_HOME", str(Path(nvcc).resolve().parents[1]))
    headers = [str(folder) for entry in sys.path if (folder := Path(entry) / "nvidia" / "cu13" / "include").is_dir()]
    given = [entry for entry in os.environ.get("CPATH", "").split(os.pathsep) if entry]
    os.environ["CPATH"] = os.pathsep.join(dict.fromkeys([*headers, *given]))
