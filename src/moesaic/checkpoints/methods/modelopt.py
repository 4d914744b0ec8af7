"""ModelOpt: `quant_method: modelopt`, or `hf_quant_config.json` of its older releases."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, final

from typing_extensions import override

from moesaic.checkpoints.conventions import Convention, MicroscaledWeight, NVFP4Weight, ScaledWeight
from moesaic.checkpoints.methods.base import Method
from moesaic.checkpoints.methods.settings import Settings
from moesaic.errors import CheckpointError
from moesaic.quant import FP8, MXFP8, NVFP4, Format, PerTensor

ALGORITHMS: tuple[tuple[str, Convention, Format], ...] = (
    ("FP8", ScaledWeight(FP8(PerTensor()), scalar=()), FP8(PerTensor())),
    ("NVFP4", NVFP4Weight("weight", "weight_scale_2", divides=False), NVFP4()),
    ("MXFP8", MicroscaledWeight(MXFP8()), MXFP8()),
)
"""`quant_algo`, how it keeps a weight, and the format of rows. All scales multiply; those of inputs are not read."""


@final
@dataclass(frozen=True)
class ModelOpt(Method):
    """One `algorithm` for the checkpoint, or for MIXED_PRECISION one for each of `modules`, which are sorted.

    Source: NVIDIA ModelOpt.
    """

    algorithm: str
    modules: tuple[tuple[str, str], ...] = ()

    @classmethod
    @override
    def of(cls, settings: Settings) -> Method | None:
        if not settings.method.startswith("modelopt"):
            return None
        known = tuple(name.lower() for name, _, _ in ALGORITHMS)
        found = (settings.option("quant_algo", (*known, "mixed_precision")) or "").upper()
        layers = settings.inner("quantized_layers")
        if found != "MIXED_PRECISION" or layers is None:
            return cls(found)
        named = ((name, str((layers.inner(name) or layers).fields.get("quant_algo"))) for name in layers.fields)
        return cls(found, tuple(sorted(named)))

    @override
    def convention(self, module: str) -> Convention:
        return self._known(module)[0]

    @override
    def inputs(self, module: str) -> Format:
        return self._known(module)[1]

    @override
    def to_config(self) -> dict[str, Any] | None:
        layers = {name: {"quant_algo": algorithm} for name, algorithm in self.modules}
        return {
            "quant_method": "modelopt",
            "quant_algo": self.algorithm,
            **({"quantized_layers": layers} if layers else {}),
        }

    def _known(self, module: str) -> tuple[Convention, Format]:
        wanted = self.algorithm
        if wanted == "MIXED_PRECISION":
            wanted = self._said_of(module)
        for name, convention, inputs in ALGORITHMS:
            if name == wanted:
                return convention, inputs
        raise CheckpointError(
            f"quantized_layers of the configuration says {wanted} of {module}, but what is read is "
            f"{', '.join(name for name, _, _ in ALGORITHMS)}"
        )

    def _said_of(self, module: str) -> str:
        """The algorithm of `module`, or of the innermost module around it that has one, among thousands."""
        name = module
        while name:
            place = bisect_left(self.modules, (name,))
            if place < len(self.modules) and self.modules[place][0] == name:
                return self.modules[place][1]
            name = name.rpartition(".")[0]
        return "no quant_algo"
