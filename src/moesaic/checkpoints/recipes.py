"""Recipe: a format together with the convention in which checkpoints of that kind keep it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch

from moesaic.checkpoints.methods import AWQ, GPTQ, CompressedTensors, FineGrainedFP8, GptOssMXFP4, Method, ModelOpt
from moesaic.errors import CheckpointError
from moesaic.quant import (
    FP8,
    INT4,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    Format,
    PerBlock,
    PerGroup,
    PerRow,
    PerTensor,
    Plain,
    Scheme,
)

PLAIN, BF16, FP16, E8M0 = Plain(), torch.bfloat16, torch.float16, torch.float8_e8m0fnu


@final
@dataclass(frozen=True)
class Recipe:
    """Weights in the format `weights`, written as `method` says. Values are rounded to the nearest, none calibrated."""

    name: str
    weights: Format
    method: Method


def _served(name: str, weights: Format, inputs: Format) -> Recipe:
    """A recipe of compressed-tensors."""
    return Recipe(name, weights, CompressedTensors.of_scheme(Scheme(weights, inputs)))


def _packed(name: str, weights: Format) -> Recipe:
    """A recipe of compressed-tensors whose codes of 8 bits stand in words: weights only."""
    [group] = CompressedTensors.of_scheme(Scheme(weights, PLAIN)).groups
    return Recipe(name, weights, CompressedTensors((replace(group, kept="pack-quantized"),)))


RECIPES: tuple[Recipe, ...] = (
    Recipe("fp8-block", FP8(PerBlock()), FineGrainedFP8()),
    Recipe("fp8-block-ue8m0", FP8(PerBlock(), scale=E8M0), FineGrainedFP8(ue8m0=True, scale_name="scale")),
    Recipe("fp8-tensor", FP8(PerTensor()), ModelOpt("FP8")),
    _served("fp8-channel", FP8(PerRow()), FP8(PerRow())),
    _served("int8-channel", INT8(PerRow()), INT8(PerRow())),
    _packed("int8-w8a16", INT8(PerRow(), scale=BF16)),
    *(_served(f"int4-g{n}", INT4(PerGroup(n), scale=BF16), PLAIN) for n in (32, 64, 128)),
    *(_served(f"int4-asym-g{n}", INT4(PerGroup(n), zero_point=True, scale=BF16), PLAIN) for n in (32, 64, 128)),
    Recipe("awq", INT4(PerGroup(128), zero_point=True, scale=FP16), AWQ(128)),
    Recipe("gptq", INT4(PerGroup(128), scale=FP16), GPTQ(128)),
    _served("mxfp8", MXFP8(), MXFP8()),
    _served("mxfp4", MXFP4(), PLAIN),
    Recipe("mxfp4-gpt-oss", MXFP4(), GptOssMXFP4()),
    _served("nvfp4", NVFP4(), NVFP4()),
    Recipe("nvfp4-modelopt", NVFP4(), ModelOpt("NVFP4")),
)
"""What `moesaic quantize` writes, by name. Those without another name are of compressed-tensors."""


def recipe_named(name: str) -> Recipe:
    """The recipe of that name. Raises CheckpointError listing those there are."""
    for recipe in RECIPES:
        if recipe.name == name:
            return recipe
    raise CheckpointError(f"{name!r} is no format that is written: give one of {', '.join(r.name for r in RECIPES)}")
