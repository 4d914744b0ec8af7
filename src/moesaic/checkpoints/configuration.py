"""What `config.json` says beside the tensors: the kind of model, its number of experts, its dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from moesaic.checkpoints.files import read_json
from moesaic.errors import CheckpointError

EXPERT_COUNTS: tuple[str, ...] = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_moe_experts",
)
"""What configurations call the number of experts of a layer; the first that is there counts."""

PARTS: tuple[str, ...] = ("text_config", "llm_config", "language_config", "thinker_config", "ffn_config")
"""Configurations inside the configuration that may describe the layers with experts."""


def read_configuration(directory: Path) -> dict[str, Any]:
    """`config.json`, whose `quantization_config` is put at its top from wherever models keep it.

    Older checkpoints of ModelOpt keep it in `hf_quant_config.json`, DeepSeek-V4 `expert_dtype` beside it.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{str(directory)!r} is not a directory: give one with config.json and *.safetensors")
    config = read_json(directory / "config.json")
    found = [
        part[name] for part in parts(config) for name in ("quantization_config", "compression_config") if part.get(name)
    ]
    older = directory / "hf_quant_config.json"
    if not found and older.exists():
        found = [{"quant_method": "modelopt", **read_json(older).get("quantization", {})}]
    if found and not isinstance(found[0], dict):
        raise CheckpointError(
            f"{directory / 'config.json'}: quantization_config is {found[0]!r}, but it needs an object"
        )
    quantization = {"expert_dtype": config["expert_dtype"], **found[0]} if found and "expert_dtype" in config else None
    return {**config, "quantization_config": quantization or (found[0] if found else None)}


def parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The configuration, then those inside it."""
    yield config
    for name in PARTS:
        if isinstance(config.get(name), dict):
            yield from parts(config[name])


def model_types(config: Mapping[str, Any]) -> frozenset[str]:
    """Every `model_type` of the configuration."""
    return frozenset(str(part["model_type"]) for part in parts(config) if "model_type" in part)


def configured_experts(config: Mapping[str, Any]) -> int | None:
    """The number of experts of a layer; None if the configuration does not say one number."""
    for part in reversed([*parts(config)]):  # the innermost describes the layers
        for name in EXPERT_COUNTS:
            if isinstance(part.get(name), int) and part[name] > 0:
                return part[name]
    return None


def configured_dtype(config: Mapping[str, Any]) -> torch.dtype:
    """The dtype that the model computes in; bfloat16 if the configuration does not say."""
    for part in parts(config):
        for name in ("dtype", "torch_dtype"):
            found = getattr(torch, str(part.get(name)), None)
            if isinstance(found, torch.dtype):
                return found
    return torch.bfloat16
