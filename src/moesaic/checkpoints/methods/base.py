"""Method: what a configuration says about the quantization of a whole checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from moesaic.checkpoints.conventions import Convention
from moesaic.checkpoints.methods.settings import Settings
from moesaic.quant import Format


@dataclass(frozen=True)
class Method(ABC):
    """One `quant_method`. To add one, copy `awq.py` and list the class in `METHODS`."""

    @classmethod
    @abstractmethod
    def of(cls, settings: Settings) -> Method | None:
        """The method that `settings` describe; None if they are another's. Raises CheckpointError for a wrong one."""

    @abstractmethod
    def convention(self, module: str) -> Convention:
        """How the matrix `module` (`model.layers.3.mlp.experts.0.up_proj`) is kept where it is quantized."""

    @abstractmethod
    def inputs(self, module: str) -> Format:
        """The format of the rows that `module` reads, as the checkpoint's makers serve it."""

    @abstractmethod
    def to_config(self) -> dict[str, Any] | None:
        """The `quantization_config` from which `of` makes this value again; None for weights that are not quantized."""
