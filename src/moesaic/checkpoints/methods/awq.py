"""AWQ: `quant_method: awq`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from typing_extensions import override

from moesaic.checkpoints.conventions import AWQWeight, Convention
from moesaic.checkpoints.methods.base import Method
from moesaic.checkpoints.methods.settings import Settings
from moesaic.quant import INT4, Format, PerGroup, PerRow, Plain


@final
@dataclass(frozen=True)
class AWQ(Method):
    """4 bits with zero points, `group_size` inputs for each scale (-1: all); `version` gemm. Source: AutoAWQ."""

    group_size: int = 128

    @classmethod
    @override
    def of(cls, settings: Settings) -> Method | None:
        if settings.method != "awq":
            return None
        if settings.number("bits") != 4:
            raise settings.fault("bits", "4")
        settings.option("version", ("gemm",), "gemm")
        if not settings.flag("zero_point", default=True):
            raise settings.fault("zero_point", "true")
        return cls(settings.number("group_size", also=(-1,)) or 0)

    @override
    def convention(self, module: str) -> Convention:
        granularity = PerRow() if self.group_size == -1 else PerGroup(self.group_size)
        return AWQWeight(INT4(granularity, zero_point=True, scale=torch.float16))

    @override
    def inputs(self, module: str) -> Format:
        return Plain()

    @override
    def to_config(self) -> dict[str, Any] | None:
        return {
            "quant_method": "awq",
            "bits": 4,
            "group_size": self.group_size,
            "zero_point": True,
            "version": "gemm",
        }
