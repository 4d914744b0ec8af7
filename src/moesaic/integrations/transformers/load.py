"""load: a quantized checkpoint as a model of transformers whose experts stay in the format of the files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedModel

from moesaic.checkpoints import Checkpoint, Unquantized
from moesaic.errors import PatchError
from moesaic.integrations.transformers.forward import NAME, register
from moesaic.integrations.transformers.quantizer import PackedExpertsConfig, register_packed_experts
from moesaic.machine import version_numbers

OLDEST: tuple[int, ...] = (5, 21)
"""The transformers whose loader lets a quantizer decide what becomes of every tensor."""

REFUSED: tuple[str, ...] = (
    "quantization_config",
    "experts_implementation",
    "state_dict",
    "gguf_file",
    "key_mapping",
    "distributed_config",
    "tp_plan",
    "tp_size",
)
"""Options of `from_pretrained` that contradict packed experts or that are not known to work with them."""


def load(kind: Any, directory: str | Path, **options: Any) -> PreTrainedModel:
    """`kind.from_pretrained(directory, **options)` with experts packed: they keep the bytes of the checkpoint.

    `kind`: a model class of transformers, or AutoModelForCausalLM and the like. Whatever quantization
    `moesaic.checkpoints` reads is loaded; other quantized weights are dequantized to the model's dtype, and plain ones
    are loaded as transformers does, as is a checkpoint without quantization. Each layer is bound to a backend by its
    first call, or by `patch`, which reports them. Raises CheckpointError about the files, PatchError about a model
    whose experts cannot be packed or an option that cannot be kept.
    """
    checkpoint = Checkpoint(Path(directory))
    if isinstance(checkpoint.method, Unquantized):
        return kind.from_pretrained(directory, **options)
    if version_numbers(transformers.__version__) < OLDEST:
        raise PatchError(
            f"transformers is {transformers.__version__}, but experts stay packed with "
            f"{'.'.join(map(str, OLDEST))} or later: install it, or load plain weights with from_pretrained"
        )
    refused = [name for name in REFUSED if options.get(name) is not None]
    if refused:
        raise PatchError(
            f"{refused[0]} is given, but the experts of {checkpoint.directory} stay as they are stored, on one device, "
            f"and moesaic runs them: leave {refused[0]} out, or load plain weights with from_pretrained"
        )
    register()
    register_packed_experts()
    remote = {name: options[name] for name in ("trust_remote_code", "code_revision") if name in options}
    config = options.pop("config", None) or AutoConfig.from_pretrained(directory, **remote)
    config = copy.deepcopy(config)
    config.quantization_config = PackedExpertsConfig().to_dict()
    return kind.from_pretrained(directory, config=config, experts_implementation=NAME, **options)
