"""Names: what the tensors of a checkpoint are called in a model, as transformers' own conversions say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key


@final
@dataclass(frozen=True)
class Target:
    """A parameter or buffer of a model by `name`. `converted`: it is made of several tensors, or of a part of one."""

    name: str
    converted: bool

    @property
    def module(self) -> str:
        """The name of the module that holds it."""
        return self.name.rpartition(".")[0]


@final
@dataclass(frozen=True, eq=False)
class Names:
    """The conversions of one model and its tensors by name."""

    tensors: dict[str, Tensor]
    base_model_prefix: str
    renamings: list[Any]
    converters: list[Any]

    @classmethod
    def of(cls, model: PreTrainedModel) -> Names:
        """Those of `model` as it is built from its configuration."""
        conversions = get_model_conversion_mapping(model)
        return cls(
            dict(model.state_dict()),
            model.base_model_prefix,
            [each for each in conversions if isinstance(each, WeightRenaming)],
            [each for each in conversions if isinstance(each, WeightConverter)],
        )

    def target(self, name: str) -> Target | None:
        """What the checkpoint's tensor `name` becomes; None if the model has no such tensor."""
        prefix, tensors = self.base_model_prefix, self.tensors
        found, pattern = rename_source_key(name, self.renamings, self.converters, prefix, tensors)
        if found in tensors:
            return Target(found, converted=pattern is not None)
        found, _ = rename_source_key(name, [], [], prefix, tensors)  # it has the model's own name already
        return Target(found, converted=False) if found in tensors else None
