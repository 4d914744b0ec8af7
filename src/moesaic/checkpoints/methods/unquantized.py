"""Unquantized: no `quantization_config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from typing_extensions import override

from moesaic.checkpoints.conventions import Convention, PlainWeight
from moesaic.checkpoints.methods.base import Method
from moesaic.checkpoints.methods.settings import Settings
from moesaic.quant import Format, Plain


@final
@dataclass(frozen=True)
class Unquantized(Method):
    """Weights in bfloat16, float16 or float32."""

    @classmethod
    @override
    def of(cls, settings: Settings) -> Method | None:
        return None if settings.fields else cls()

    @override
    def convention(self, module: str) -> Convention:
        return PlainWeight()

    @override
    def inputs(self, module: str) -> Format:
        return Plain()

    @override
    def to_config(self) -> dict[str, Any] | None:
        return None
