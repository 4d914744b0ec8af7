"""Layers in bfloat16: moesaic's backends and the peers that compute them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from layers.cells import Cell, Family
from layers.contender import Contender
from layers.own import Own
from peers.cublas import CuBLAS
from peers.torch_grouped_mm import TorchGroupedMM
from peers.triton_kernels_plain import TritonKernels
from peers.vllm_plain import VLLM

from moesaic import ExpertWeights, Problem, Reference, TorchGrouped
from moesaic.backends import HopperGrouped, TritonGrouped
from moesaic.tuning import Always, CostModel
from moesaic.tuning.products import product

PEERS = (VLLM(), TritonKernels(), TorchGroupedMM(), CuBLAS())


@final
class PlainFamily(Family):
    """Weights that are not quantized."""

    checked_tokens = 32

    def weights(self, cell: Cell, device: str) -> ExpertWeights:
        """Under which rows keep their size."""
        return cell.sizes.weights(device, torch.bfloat16)

    def own(self, cell: Cell, problem: Problem, device: str) -> Sequence[Contender]:
        """The layer as it is, by a tuned table if there is one, and where the choice is close, what was not chosen."""
        if device == "cpu":
            return (Own("torch_grouped", TorchGrouped()), Own("reference", Reference()))
        pairs = cell.tokens * problem.top_k
        found = [Own("hopper_grouped", HopperGrouped())]
        if 32 <= pairs / problem.num_experts <= 600:
            found.append(Own("products", HopperGrouped(Always(product(problem, pairs)))))
            found.append(Own("streamed", HopperGrouped(CostModel(products=False))))
        chosen = product(problem, pairs)
        if pairs >= 512 * problem.num_experts:
            found.append(
                Own(
                    "sums_apart" if chosen.blocks else "sums_inside",
                    HopperGrouped(Always(replace(chosen, blocks=0 if chosen.blocks else 4))),
                )
            )
        if pairs / problem.num_experts >= 256:
            found.append(Own("triton_grouped", TritonGrouped()))
        return found

    def peers(self, scheme: str) -> Sequence[Contender]:
        """Of bfloat16."""
        del scheme
        return PEERS
