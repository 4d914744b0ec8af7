"""GptOssMXFP4: `quant_method: mxfp4`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from typing_extensions import override

from moesaic.checkpoints.conventions import BlockedMXFP4, Convention
from moesaic.checkpoints.methods.base import Method
from moesaic.checkpoints.methods.settings import Settings
from moesaic.quant import Format, Plain


@final
@dataclass(frozen=True)
class GptOssMXFP4(Method):
    """gpt-oss's experts in MXFP4; everything else of the model is plain."""

    @classmethod
    @override
    def of(cls, settings: Settings) -> Method | None:
        return cls() if settings.method == "mxfp4" else None

    @override
    def convention(self, module: str) -> Convention:
        return BlockedMXFP4()

    @override
    def inputs(self, module: str) -> Format:
        return Plain()

    @override
    def to_config(self) -> dict[str, Any] | None:
        return {"quant_method": "mxfp4"}
