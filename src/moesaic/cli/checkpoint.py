"""A local directory in Hugging Face's form: its configuration and its model, safetensors only.

The checkpoint's own code runs only if the caller says so, and nothing is fetched. Importing this is cheap;
transformers is imported by the functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from moesaic.errors import CheckpointError

Read = TypeVar("Read")


def names_directory(text: str) -> bool:
    """True for text that names a directory rather than a known model."""
    return os.sep in text or text in (".", "..") or _is_directory(Path(text))


def read_config(directory: str | Path, *, trust_remote_code: bool) -> Any:
    """The model's configuration."""
    where = Path(directory)
    if not _is_directory(where):
        raise CheckpointError(f"{str(where)!r} is not a directory: give one with config.json and *.safetensors")
    if not _read(where, (where / "config.json").is_file):
        raise CheckpointError(f"{str(where)!r} has no config.json: give a directory saved with save_pretrained")
    auto = _quiet_transformers().AutoConfig
    return _read(where, lambda: auto.from_pretrained(where, local_files_only=True, trust_remote_code=trust_remote_code))


def read_model(directory: str | Path, *, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """The causal language model with its weights, in `dtype`, in evaluation mode."""
    read_config(directory, trust_remote_code=trust_remote_code)
    where = Path(directory)
    if not any(where.glob("*.safetensors")):
        raise CheckpointError(f"{str(where)!r} has no *.safetensors: save the model again with save_pretrained")
    auto = _quiet_transformers().AutoModelForCausalLM
    options = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": trust_remote_code}
    model, loading = _read(where, lambda: auto.from_pretrained(where, dtype=dtype, output_loading_info=True, **options))
    missing = sorted(loading["missing_keys"])
    if missing:  # transformers draws them at random, and says so in a warning only
        raise CheckpointError(
            f"{str(where)!r} lacks {len(missing)} of the model's tensors, the first is {missing[0]}: complete it"
        )
    return model.eval()


def model_without_weights(directory: str | Path, config: Any, *, trust_remote_code: bool) -> Any:
    """The model on the meta device: its structure in no memory."""
    transformers = _quiet_transformers()
    causal = config.__class__ in transformers.AutoModelForCausalLM._model_mapping  # noqa: SLF001
    remote = trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    auto = transformers.AutoModelForCausalLM if causal or remote else transformers.AutoModel
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.bfloat16

    def build() -> Any:
        with torch.device("meta"):
            return auto.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)

    return _read(Path(directory), build)


def check_has_experts(directory: str | Path, model: nn.Module) -> None:
    """Raise CheckpointError if no layer of `model` has experts."""
    from moesaic.integrations.transformers.discovery import find_layers  # noqa: PLC0415

    if not find_layers(model):
        kind = model.__class__.__name__
        raise CheckpointError(f"{str(directory)!r} holds a {kind}, which has no experts: give an MoE model")


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, or in a place that may not be looked at
        return False


def _read(where: Path, read: Callable[[], Read]) -> Read:
    """`read()`, with the errors by which transformers says that files are wrong turned into one that names them."""
    from huggingface_hub.errors import StrictDataclassError  # noqa: PLC0415
    from safetensors import SafetensorError  # noqa: PLC0415

    python = (ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)
    try:
        return read()
    except (*python, SafetensorError, StrictDataclassError) as fault:
        first = " ".join(str(fault).strip().splitlines()[:2]) or fault.__class__.__name__
        hint = " (--trust-remote-code lets that code run)" if "trust_remote_code" in str(fault) else ""
        raise CheckpointError(f"{str(where)!r} cannot be read: {first}{hint}") from fault


def _quiet_transformers() -> Any:
    try:
        import transformers  # noqa: PLC0415
    except ImportError:
        raise CheckpointError("reading a checkpoint needs transformers: pip install 'moesaic[transformers]'") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
