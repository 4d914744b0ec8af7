"""One case for each convention: how it is written, and how `raw.py` reads it."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from moesaic import (
    FP8,
    INT4,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    ExpertWeights,
    Format,
    PerBlock,
    PerGroup,
    PerRow,
    PerTensor,
    Plain,
    Scheme,
)
from moesaic.checkpoints import (
    AWQ,
    GPTQ,
    CompressedTensors,
    FineGrainedFP8,
    GptOssMXFP4,
    Method,
    ModelOpt,
    Naming,
    Unquantized,
    write_experts,
)
from moesaic.checkpoints.naming import GPT_OSS, NAMINGS, PROJ, W1_W3_W2
from tests.checkpoints import raw
from tests.quant.examples import values

BF16, FP16, E8M0 = torch.bfloat16, torch.float16, torch.float8_e8m0fnu
L, LAYERS = 5, (2, 3)


@dataclass(frozen=True)
class Case:
    """Weights `[L, 2I, H]` in `stored`, written by `method` and `naming`; `read` is the function of raw.py."""

    name: str
    method: Method
    stored: Format
    read: Any
    hidden: int = 72
    inner: int = 40
    naming: Naming = PROJ
    block: str = "model.layers.{}.mlp.experts"
    config: dict = field(default_factory=dict)
    bias: bool = False

    def __str__(self):
        return self.name


PLAIN = Plain()


def ct(weights, inputs=PLAIN, kept=None):
    method = CompressedTensors.of_scheme(Scheme(weights, inputs))
    return method if kept is None else CompressedTensors((replace(method.groups[0], kept=kept),))


MISTRAL_LIKE = {"naming": W1_W3_W2, "block": "model.layers.{}.block_sparse_moe.experts"}
V4 = {"naming": W1_W3_W2, "block": "layers.{}.ffn.experts", "config": {"expert_dtype": "fp4"}}
NEMOTRON = {"block": "backbone.layers.{}.mixer.experts"}
GPT = {"naming": GPT_OSS, "config": {"model_type": "gpt_oss"}, "bias": True, "hidden": 96, "inner": 32}
INKLING = {"naming": next(n for n in NAMINGS if "w13" in repr(n)), "block": "model.llm.layers.{}.mlp.experts"}
ZERO_POINT = partial(INT4, zero_point=True)

CASES = (
    Case("bf16", Unquantized(), Plain(), raw.plain),
    Case(
        "deepseek-v3",
        FineGrainedFP8(),
        FP8(PerBlock()),
        partial(raw.scaled, tile=(128, 128), scale="weight_scale_inv"),
        hidden=136,
        inner=192,
    ),
    Case(
        "qwen3-fp8",
        FineGrainedFP8(),
        FP8(PerBlock(), scale=BF16),
        partial(raw.scaled, tile=(128, 128), scale="weight_scale_inv"),
        hidden=264,
        inner=96,
    ),
    Case(
        "minimax-m2",
        FineGrainedFP8((16, 24)),
        FP8(PerBlock(16, 24)),
        partial(raw.scaled, tile=(16, 24), scale="weight_scale_inv"),
        **MISTRAL_LIKE,
    ),
    Case(
        "fp8-tensor",
        FineGrainedFP8(None, scale_name="weight_scale"),
        FP8(PerTensor()),
        partial(raw.scaled, tile=(None, None)),
    ),
    Case(
        "deepseek-v4-fp8",
        FineGrainedFP8(ue8m0=True, scale_name="scale"),
        FP8(PerBlock(), scale=E8M0),
        partial(raw.scaled, tile=(128, 128), scale="scale"),
        **{**V4, "config": {}},
    ),
    Case(
        "deepseek-v4-fp4",
        FineGrainedFP8(ue8m0=True, fp4=True, scale_name="scale"),
        MXFP4(),
        partial(raw.mxfp4, data="weight", scale="scale"),
        **V4,
    ),
    Case(
        "inkling2",
        FineGrainedFP8((1, 32), ue8m0=True, scale_name="weight_scale"),
        MXFP8(),
        partial(raw.scaled, tile=(1, 32)),
        **INKLING,
    ),
    Case("gpt-oss", GptOssMXFP4(), MXFP4(), raw.blocks, **GPT),
    Case(
        "ct-int4",
        ct(INT4(PerGroup(32))),
        INT4(PerGroup(32), scale=BF16),
        partial(raw.packed_int4, group=32, asymmetric=False),
    ),
    Case(
        "ct-int4-odd-words",
        ct(INT4(PerGroup(32))),
        INT4(PerGroup(32), scale=BF16),
        partial(raw.packed_int4, group=32, asymmetric=False),
        hidden=70,
        inner=42,
    ),
    Case(
        "ct-int4-channel",
        ct(INT4(PerRow())),
        INT4(PerRow(), scale=FP16),
        partial(raw.packed_int4, group=0, asymmetric=False),
    ),
    Case(
        "ct-int4-asymmetric",
        ct(ZERO_POINT(PerGroup(32))),
        ZERO_POINT(PerGroup(32), scale=BF16),
        partial(raw.packed_int4, group=32, asymmetric=True),
        hidden=76,
        inner=44,
    ),
    Case(
        "ct-w4afp8",
        ct(INT4(PerGroup(16)), FP8(PerRow()), "int-quantized"),
        INT4(PerGroup(16), scale=BF16),
        partial(raw.scaled, tile=(1, 16)),
    ),
    Case(
        "ct-w4afp8-packed",
        ct(INT4(PerGroup(16)), FP8(PerRow())),
        INT4(PerGroup(16), scale=BF16),
        partial(raw.packed_int4, group=16, asymmetric=False),
    ),
    Case(
        "ct-w8a16",
        ct(INT8(PerGroup(32)), kept="pack-quantized"),
        INT8(PerGroup(32), scale=BF16),
        partial(raw.packed_int8, group=32),
        hidden=70,
        inner=41,
    ),
    Case(
        "ct-fp8-tensor",
        ct(FP8(PerTensor()), FP8(PerTensor())),
        FP8(PerTensor(), scale=BF16),
        partial(raw.scaled, tile=(None, None)),
    ),
    Case(
        "ct-fp8-channel",
        ct(FP8(PerRow()), FP8(PerRow())),
        FP8(PerRow(), scale=BF16),
        partial(raw.scaled, tile=(1, None)),
    ),
    Case(
        "ct-fp8-block",
        ct(FP8(PerBlock(16, 32)), FP8(PerGroup(128))),
        FP8(PerBlock(16, 32), scale=BF16),
        partial(raw.scaled, tile=(16, 32)),
    ),
    Case(
        "ct-int8", ct(INT8(PerRow()), INT8(PerRow())), INT8(PerRow(), scale=BF16), partial(raw.scaled, tile=(1, None))
    ),
    Case("ct-mxfp8", ct(MXFP8(), MXFP8()), MXFP8(), partial(raw.scaled, tile=(1, 32))),
    Case("ct-mxfp4", ct(MXFP4()), MXFP4(), raw.mxfp4, **{**MISTRAL_LIKE, "hidden": 48}),
    Case(
        "ct-nvfp4",
        ct(NVFP4(), NVFP4()),
        NVFP4(),
        partial(raw.nvfp4, data="weight_packed", factor="weight_global_scale", divides=True),
    ),
    Case("modelopt-fp8", ModelOpt("FP8"), FP8(PerTensor()), partial(raw.scaled, tile=(None, None)), **NEMOTRON),
    Case(
        "modelopt-nvfp4",
        ModelOpt("NVFP4"),
        NVFP4(),
        partial(raw.nvfp4, data="weight", factor="weight_scale_2", divides=False),
        **NEMOTRON,
    ),
    Case("modelopt-mxfp8", ModelOpt("MXFP8"), MXFP8(), partial(raw.scaled, tile=(1, 32))),
    Case("awq", AWQ(32), ZERO_POINT(PerGroup(32), scale=FP16), partial(raw.awq, group=32)),
    Case("awq-whole-rows", AWQ(-1), ZERO_POINT(PerRow(), scale=FP16), partial(raw.awq, group=1000)),
    Case("gptq", GPTQ(32, symmetric=False), ZERO_POINT(PerGroup(32), scale=FP16), partial(raw.gptq, group=32, less=1)),
    Case("gptq-symmetric", GPTQ(32), INT4(PerGroup(32), scale=FP16), partial(raw.gptq, group=32, less=1)),
    Case(
        "gptq-v2",
        GPTQ(32, symmetric=False, version=2),
        ZERO_POINT(PerGroup(32), scale=FP16),
        partial(raw.gptq, group=32, less=0),
    ),
)
"""Small odd sizes: with groups of 32 and blocks of 128 every last one is short."""


def weights_of(case, seed=0):
    """Random weights as the case stores them; no gate for Nemotron-H."""
    parts = 1 if case.block.startswith("backbone") else 2
    plain = ExpertWeights.plain(
        values(L, parts * case.inner, case.hidden, seed=seed, dtype=BF16),
        values(L, case.hidden, case.inner, seed=seed + 1, dtype=BF16),
        gate_up_bias=values(L, parts * case.inner, seed=seed + 2, dtype=BF16) if case.bias else None,
        down_bias=values(L, case.hidden, seed=seed + 3, dtype=BF16) if case.bias else None,
    )
    weights = plain.quantize(case.stored)
    if isinstance(case.method, GPTQ) and case.method.version == 1 and not case.method.symmetric:
        for projection in (weights.gate_up, weights.down):
            projection.scales["zero_point"].clamp_(min=1)  # which this version cannot hold
    return weights


def written(case, directory):
    """The weights by layer, and the directory where they are."""
    layers = {number: weights_of(case, seed=10 * number) for number in LAYERS}
    config = {"num_hidden_layers": 4, "num_local_experts": L, **case.config}
    write_experts(directory / "model", layers, case.method, naming=case.naming, block=case.block, config=config)
    return layers, directory / "model"


def named(name):
    return next(case for case in CASES if case.name == name)


def raw_matrix(case, found, layer, expert, projection):
    """The float64 values of gate, up or down of one expert, by raw.py."""
    block = case.block.format(layer)
    if case.naming == GPT_OSS or "w13" in repr(case.naming):
        return _raw_stacked(case, found, block, expert, projection)
    names = {"gate": case.naming.gate, "up": case.naming.up, "down": case.naming.down}
    return case.read(lambda suffix: found[f"{block}.{expert}.{names[projection]}.{suffix}"])


def _raw_stacked(case, found, block, expert, projection):
    """gpt-oss and Inkling: rows g0, u0, g1, u1."""
    stem = {True: ("gate_up_proj", "down_proj"), False: ("w13", "w2")}[case.naming == GPT_OSS][projection == "down"]

    def get(suffix):
        dtype, array = found[f"{block}.{stem}_{suffix}"]
        return dtype, array[expert]

    rows = case.read(get)
    return {"gate": rows[0::2], "up": rows[1::2], "down": rows}[projection]
