"""CompressedTensors: `quant_method: compressed-tensors`. Source: compressed-tensors 0.20."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, final

from typing_extensions import override

from moesaic.checkpoints.conventions import (
    Convention,
    MicroscaledWeight,
    NVFP4Weight,
    PackedINT4,
    PackedINT8,
    PlainWeight,
    ScaledWeight,
    UnpackedINT4,
)
from moesaic.checkpoints.methods.base import Method
from moesaic.checkpoints.methods.quantization_args import arguments, format_of
from moesaic.checkpoints.methods.settings import Settings
from moesaic.errors import CheckpointError
from moesaic.quant import FP8, INT4, INT8, MXFP4, MXFP8, NVFP4, Format, Plain, Scheme

NAMES: tuple[tuple[type[Format], tuple[str, ...]], ...] = (
    (FP8, ("float-quantized", "naive-quantized")),
    (INT8, ("int-quantized", "naive-quantized", "pack-quantized")),
    (INT4, ("pack-quantized", "int-quantized", "naive-quantized")),
    (MXFP8, ("mxfp8-quantized",)),
    (MXFP4, ("mxfp4-pack-quantized",)),
    (NVFP4, ("nvfp4-pack-quantized",)),
)
"""Formats and the compression formats that keep them, the first as it is written."""


@final
@dataclass(frozen=True)
class Group:
    """A scheme, the modules it is for (names, `re:` patterns, or `Linear` for all), and how their weights are kept."""

    targets: tuple[str, ...]
    scheme: Scheme
    kept: str


@final
@dataclass(frozen=True)
class CompressedTensors(Method):
    """`groups` of modules: an exact name counts before a pattern, a pattern before a class. Others are plain."""

    groups: tuple[Group, ...]
    ignore: tuple[str, ...] = ()

    @classmethod
    def of_scheme(cls, scheme: Scheme) -> CompressedTensors:
        """All linear modules in one scheme. Raises CheckpointError if compressed-tensors has no name for it."""
        for stored in (scheme.weights, scheme.inputs):
            arguments(stored)
        kept = next((names[0] for kind, names in NAMES if isinstance(scheme.weights, kind)), "dense")
        return cls((Group(("Linear",), scheme, kept),))

    @classmethod
    @override
    def of(cls, settings: Settings) -> Method | None:
        if settings.method not in {"compressed-tensors", "compressed_tensors"}:
            return None
        groups = settings.inner("config_groups")
        if groups is None:
            raise settings.fault("config_groups", "an object of groups")
        found = [groups.inner(name) or groups for name in groups.fields]
        common = str(settings.fields.get("format"))
        return cls(
            tuple(_group(group, common) for group in found if group.inner("weights")), _patterns(settings, "ignore")
        )

    @override
    def convention(self, module: str) -> Convention:
        group = self._group(module)
        match group.scheme.weights:
            case INT8() as stored if group.kept == "pack-quantized":
                return PackedINT8(stored)
            case INT4() as stored:
                return PackedINT4(stored) if group.kept == "pack-quantized" else UnpackedINT4(stored)
            case FP8() | INT8() as stored:
                return ScaledWeight(stored)
            case MXFP8() | MXFP4() as stored:
                return MicroscaledWeight(stored, "weight" if stored == MXFP8() else "weight_packed")
            case NVFP4():
                return NVFP4Weight("weight_packed", "weight_global_scale", divides=True, scalar=(1,))
            case _:
                return PlainWeight()

    @override
    def inputs(self, module: str) -> Format:
        return self._group(module).scheme.inputs

    @override
    def to_config(self) -> dict[str, Any] | None:
        groups = {f"group_{number}": _to_config(group) for number, group in enumerate(self.groups)}
        formats = {group["format"] for group in groups.values()}
        return {
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
            "format": formats.pop() if len(formats) == 1 else "mixed-precision",
            "config_groups": groups,
            "ignore": list(self.ignore),
        }

    def _group(self, module: str) -> Group:
        plain = Group((), Scheme(Plain(), Plain()), "dense")
        if any(_matches(module, pattern) for pattern in self.ignore):
            return plain
        found = [(_rank(t), group) for group in self.groups for t in group.targets if _matches(module, t)]
        return min(found, key=lambda ranked: ranked[0], default=(0, plain))[1]


def _group(settings: Settings, common: str) -> Group:
    name = str(settings.fields.get("format") or common)
    weights = format_of(settings.inner("weights"), stored_as=name)
    names = next((names for kind, names in NAMES if isinstance(weights, kind)), ())
    if name not in names:
        raise CheckpointError(
            f"{settings.path}.format is {name!r}, but {weights!r} is read from {' and '.join(names)} alone"
        )
    return Group(_patterns(settings, "targets"), Scheme(weights, format_of(settings.inner("input_activations"))), name)


def _to_config(group: Group) -> dict[str, Any]:
    weights, inputs = group.scheme.weights, arguments(group.scheme.inputs)
    rows = {**inputs, "dynamic": "local" if group.scheme.inputs == NVFP4() else True} if inputs else None
    if rows and rows["strategy"] == "channel":
        rows["strategy"] = "token"
    return {
        "targets": list(group.targets),
        "weights": arguments(weights),
        "input_activations": rows,
        "output_activations": None,
        "format": group.kept,
    }


def _patterns(settings: Settings, name: str) -> tuple[str, ...]:
    found = settings.names(name)
    for pattern in found:
        try:
            re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
        except re.error as fault:
            raise settings.fault(name, f"patterns that can be matched ({pattern}: {fault})") from fault
    return found


def _matches(module: str, target: str) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), module) is not None
    return target in {module, "Linear"}


def _rank(target: str) -> int:
    return 2 if target == "Linear" else int(target.startswith("re:"))
