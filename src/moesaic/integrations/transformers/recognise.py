"""What an experts module computes, found by trying it: its activation, the norm of its outputs, its slots."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from moesaic.activations import Activation
from moesaic.integrations.transformers.identify import identify
from moesaic.integrations.transformers.pointwise import FAULTS
from moesaic.integrations.transformers.report import Gap, GapCode
from moesaic.integrations.transformers.storage import Storage
from moesaic.output_norm import OutputNorm

TOP_K_NAMES: tuple[str, ...] = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)
"""What configurations call the number of experts of a token; the first that is there counts."""


def activation_of(module: nn.Module, storage: Storage, device: torch.device) -> Activation | Gap:
    """The activation that `module` applies, found by evaluating it on `device`, or why it is none of moesaic's."""
    function = "_apply_gate" if storage.gated else "act_fn"
    found = identify(getattr(module, function), gated=storage.gated, device=device)
    kind = module.__class__.__name__
    if found is None:
        return Gap(GapCode.ACTIVATION, f"activation not recognised: {kind}.{function} is none of moesaic's")
    if found.interleaved != storage.interleaved:
        said, does = ("alternate", "halves") if storage.interleaved else ("halves", "alternate")
        text = f"{kind} stores gate and up columns as {said}, but {function} reads them as {does}"
        return Gap(GapCode.ACTIVATION, text)
    return found.activation


def output_norm_of(module: nn.Module) -> OutputNorm | Gap:
    """The norm of expert outputs, accepted only if it agrees with OutputNorm on rows so small that eps counts."""
    norm = module.get_submodule("post_expert_norm")
    weight = norm.get_parameter("weight").detach()
    eps = vars(norm).get("eps", vars(norm).get("variance_epsilon"))
    text = f"norm not recognised: {norm.__class__.__name__} is not moesaic's OutputNorm"
    if not isinstance(eps, float):
        return Gap(GapCode.OUTPUT_NORM, f"{text}, and has no eps")
    found = OutputNorm(eps)
    rows = torch.randn(8, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight.device)
    rows = rows * torch.logspace(-4, 2, 8, device=weight.device).unsqueeze(-1)
    try:
        with torch.no_grad():
            got = norm(rows)
    except FAULTS as fault:
        return Gap(GapCode.OUTPUT_NORM, f"{text}: {fault}")
    if not torch.allclose(got.float(), found(rows, 1.0 + weight), rtol=1e-5, atol=1e-6):
        return Gap(GapCode.OUTPUT_NORM, text)
    return found


def top_k_of(config: Any, num_experts: int) -> int:
    """Slots of a token: the configuration's number, the largest if it has one per layer, else all experts."""
    for name in TOP_K_NAMES:
        found = getattr(config, name, None)
        numbers = [n for n in (found if isinstance(found, list | tuple) else [found]) if isinstance(n, int) and n > 0]
        if numbers:
            return max(numbers)
    return num_experts
