"""The quantizer by which transformers' own loader leaves experts packed: `quant_method` moesaic.

transformers builds the model, this takes the parameters of its experts away, transformers loads all the rest, and the
experts are read from the same files in their format. Needs transformers 5.21, whose loader lets a quantizer do that.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import WeightConverter
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin
from typing_extensions import override

from moesaic.checkpoints import Checkpoint
from moesaic.checkpoints.files import OpenFiles, TensorFiles
from moesaic.checkpoints.matrix import IGNORED
from moesaic.errors import CheckpointError, PatchError
from moesaic.integrations.transformers.dense import Dequantize, dense_convention, read_dense
from moesaic.integrations.transformers.forward import NAME
from moesaic.integrations.transformers.guards import guard_model, unguard_model
from moesaic.integrations.transformers.packed import cannot_save, pack, take_parameters, unpack
from moesaic.integrations.transformers.plan import Plan, plan_loading
from moesaic.quant import Quantized

UNEXPECTED = "_keys_to_ignore_on_load_unexpected"
"""Where a model keeps patterns of tensors that it may be given and does not have."""

CONVERSIONS = "_weight_conversions"
"""Where a model keeps the conversions with which it was loaded, which are reverted when it is saved."""


@final
@dataclass
class PackedExpertsConfig(QuantizationConfigMixin):
    """The configuration under which a checkpoint is loaded so; how it is quantized its own files say."""

    quant_method: str = NAME  # pyright: ignore[reportIncompatibleVariableOverride] - outside quantizers have names


@final
@dataclass(frozen=True, eq=False)
class Loading:
    """What is known while a model is loaded: `taken` parameters by module, `done` dense ones; `stack` closes files."""

    checkpoint: Checkpoint
    plan: Plan
    files: OpenFiles
    stack: ExitStack
    taken: dict[str, dict[str, Tensor]]
    done: set[str]


@final
class PackedExpertsQuantizer(HfQuantizer):
    """Experts stay as they are stored; other quantized weights are dequantized; plain ones are transformers'."""

    requires_calibration = False

    def __init__(self, quantization_config: PackedExpertsConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self._loading: Loading | None = None

    @override
    def validate_environment(self, *args: Any, device_map: Any = None, **options: Any) -> None:
        places = set(device_map.values()) if isinstance(device_map, dict) else set[Any]()
        if isinstance(device_map, str) or len(places) > 1 or "disk" in places:
            raise PatchError(
                f"device_map is {device_map!r}, but packed experts need the whole model on one device: give it, for "
                'instance device_map="cuda:0"'
            )

    @override
    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: Any = None, **options: Any
    ) -> None:
        if getattr(model.config, "distributed_config", None) is not None:
            raise PatchError("packed experts are not spread over ranks: load the model without a distributed_config")
        stack = ExitStack()
        with torch.device("cpu"):  # transformers calls this where every new tensor is one on the meta device
            checkpoint = Checkpoint(Path(checkpoint_files[0]).parent)
            files = stack.enter_context(TensorFiles.of(Path(checkpoint.directory)).opened())
            plan = plan_loading(model, checkpoint, files)
        taken = {layer.module: take_parameters(model.get_submodule(layer.module)) for layer in plan.layers}
        self._loading = Loading(checkpoint, plan, files, stack, taken, set())
        modules = (*taken, *(name.removesuffix(".weight") for name in plan.dense))
        known = {rf"{_like(modules, model)}\.", rf"\.({'|'.join(sorted(IGNORED))})$"}
        setattr(model, UNEXPECTED, known | {*(getattr(model, UNEXPECTED) or ())})

    @override
    def update_weight_conversions(self, weight_conversions: list[Any], model: PreTrainedModel) -> list[Any]:
        loading = self._loading
        if loading is None or not loading.plan.dense:
            return weight_conversions
        kept = (dense_convention(stem, loading.checkpoint.method) for stem in loading.plan.dense.values())
        suffixes = sorted({suffix for convention in kept for suffix in convention.suffixes})
        module = _like(tuple(name.removesuffix(".weight") for name in loading.plan.dense), model)
        sources = [rf"{module}\.{suffix}$" for suffix in suffixes]
        return [*weight_conversions, WeightConverter(sources, [r"\1.weight"], [Dequantize(self.stored_dense)])]

    def stored_dense(self, name: str) -> Quantized | None:
        """The stored matrix of which the parameter `name` is made while a model is loaded; None if it is plain."""
        loading = self._loading
        if loading is None or name not in loading.plan.dense:
            return None
        loading.done.add(name)
        return read_dense(loading.plan.dense[name], loading.checkpoint.method, loading.files)

    @override
    def _process_model_after_weight_loading(self, model: PreTrainedModel, **options: Any) -> PreTrainedModel:
        loading = self._loading
        if loading is None:
            return model
        lost = sorted(loading.plan.dense.keys() - loading.done)
        if lost:
            raise CheckpointError(
                f"transformers did not load {loading.plan.dense[lost[0]]} of {loading.checkpoint.directory} into "
                f"{lost[0]}: load the checkpoint with from_pretrained"
            )
        for layer in loading.plan.layers:
            weights = loading.checkpoint.read(layer.layer, device=model.device)
            pack(model.get_submodule(layer.module), loading.taken[layer.module], weights, layer.served)
        loading.stack.close()
        self._loading = None
        setattr(model, CONVERSIONS, [each for each in getattr(model, CONVERSIONS) if not _dequantizes(each)])
        guard_model(model)
        return model

    @override
    def _dequantize(self, model: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
        unpack(model, dtype or model.dtype)
        unguard_model(model)
        return model

    @override
    def is_serializable(self) -> NoReturn:
        raise PatchError(cannot_save("the model"))

    @property
    @override
    def is_trainable(self) -> Any:
        return False

    @property
    @override
    def is_compileable(self) -> bool:
        return True


def register_packed_experts() -> None:
    """Make the quantizer known to transformers, once."""
    if NAME not in AUTO_QUANTIZER_MAPPING:
        register_quantizer(NAME)(PackedExpertsQuantizer)
        register_quantization_config(NAME)(PackedExpertsConfig)


def _like(modules: tuple[str, ...], model: PreTrainedModel) -> str:
    """One group that matches the names of `modules`, whatever the layers' numbers, with or without the base model's."""
    inner = (name.removeprefix(f"{model.base_model_prefix}.") for name in modules)
    patterns = {re.sub(r"\d+", r"\\d+", re.escape(name)) for name in inner}
    return rf"(?<![^.])({'|'.join(sorted(patterns))})"


def _dequantizes(conversion: Any) -> bool:
    return isinstance(conversion, WeightConverter) and any(isinstance(op, Dequantize) for op in conversion.operations)
