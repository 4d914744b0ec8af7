"""How vLLM is imported for its kernels alone."""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType

from peers.bundle import Bundle

VLLM_BUNDLE = Bundle("vllm", "vllm")


def fused_moe() -> ModuleType:
    """Its module of the Triton layer; DeepGEMM, which it may call, is a peer of its own."""
    VLLM_BUNDLE.enter()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_USE_DEEP_GEMM"] = "0"
    if importlib.util.find_spec("vllm_stub") is not None:
        importlib.import_module("vllm_stub")  # stands in for packages that these kernels do not need
    return importlib.import_module("vllm.model_executor.layers.fused_moe.fused_moe")


def configuration(problem_experts: int, inner: int, dtype: str | None, block: int | None) -> str:
    """Whether vLLM has tuned this layer on this GPU."""
    found = fused_moe().get_moe_configs(problem_experts, inner, dtype, block, block)
    return "tuned" if found is not None else "default"
