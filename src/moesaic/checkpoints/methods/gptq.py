"""GPTQ: `quant_method: gptq`, in both versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from typing_extensions import override

from moesaic.checkpoints.conventions import Convention, GPTQWeight
from moesaic.checkpoints.methods.base import Method
from moesaic.checkpoints.methods.settings import Settings
from moesaic.quant import INT4, Format, PerGroup, PerRow, Plain


@final
@dataclass(frozen=True)
class GPTQ(Method):
    """4 bits, `group_size` inputs for each scale (-1: all). `version` 1 (checkpoint_format gptq): zero points less one.

    `symmetric`: every zero point is 8, so weights have none. `ordered` (desc_act): what the configuration says; the
    tensors decide, and an order of activations is refused when it is read.
    """

    group_size: int = 128
    symmetric: bool = True
    version: int = 1
    ordered: bool = False

    @classmethod
    @override
    def of(cls, settings: Settings) -> Method | None:
        if settings.method != "gptq":
            return None
        if settings.number("bits") != 4:
            raise settings.fault("bits", "4")
        overrides = settings.fields.get("dynamic") or {}
        if any(not name.startswith("-:") for name in overrides):  # those with -: are not quantized, which tensors say
            raise settings.fault("dynamic", "one setting for all modules")
        version = settings.option("checkpoint_format", ("gptq", "gptq_v2"), settings.fields.get("format", "gptq"))
        return cls(
            settings.number("group_size", also=(-1,)) or 0,
            settings.flag("sym", default=True),
            2 if version == "gptq_v2" else 1,
            settings.flag("desc_act", default=False),
        )

    @override
    def convention(self, module: str) -> Convention:
        granularity = PerRow() if self.group_size == -1 else PerGroup(self.group_size)
        stored = INT4(granularity, zero_point=not self.symmetric, scale=torch.float16)
        return GPTQWeight(stored, less_one=self.version == 1)

    @override
    def inputs(self, module: str) -> Format:
        return Plain()

    @override
    def to_config(self) -> dict[str, Any] | None:
        return {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": self.group_size,
            "sym": self.symmetric,
            "desc_act": self.ordered,
            "checkpoint_format": "gptq" if self.version == 1 else "gptq_v2",
        }
