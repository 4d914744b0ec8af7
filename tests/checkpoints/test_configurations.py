"""What quantization_config says: as published checkpoints have it, and what is refused with the fields there are."""

import pytest
import torch

from moesaic import FP8, INT4, INT8, MXFP4, MXFP8, NVFP4, PerBlock, PerGroup, PerRow, PerTensor, Plain, Scheme, SwiGLU
from moesaic.checkpoints import AWQ, GPTQ, Checkpoint, CompressedTensors, FineGrainedFP8, ModelOpt
from moesaic.checkpoints.methods import Settings, method_of
from moesaic.errors import CheckpointError
from tests.checkpoints.editing import configure, quantization
from tests.checkpoints.examples import CASES, named, written

E8M0 = torch.float8_e8m0fnu
KIMI = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": 32,
                "num_bits": 4,
                "observer": "minmax",
                "observer_kwargs": {},
                "strategy": "group",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "kv_cache_scheme": None,
    "global_compression_ratio": None,
}
PUBLISHED = {
    "deepseek-v3": (
        {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
        FineGrainedFP8(),
        FP8(PerGroup(128)),
    ),
    "deepseek-v3.2": (
        {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
        FineGrainedFP8(ue8m0=True),
        FP8(PerGroup(128), scale=E8M0),
    ),
    "qwen3-fp8": (
        {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": ["lm_head"],
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        FineGrainedFP8(),
        FP8(PerGroup(128)),
    ),
    "mxfp8": ({"quant_method": "mxfp8"}, FineGrainedFP8((1, 32)), MXFP8()),
    "static": (
        {"quant_method": "fp8", "activation_scheme": "static"},
        FineGrainedFP8(None, static=True),
        FP8(PerTensor()),
    ),
    "awq": (
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 128,
            "zero_point": True,
            "version": "GEMM",
            "modules_to_not_convert": None,
        },
        AWQ(128),
        Plain(),
    ),
    "gptq": (
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 128,
            "sym": True,
            "desc_act": False,
            "damp_percent": 0.01,
            "static_groups": False,
        },
        GPTQ(128),
        Plain(),
    ),
    "gptqmodel": (
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 32,
            "sym": False,
            "desc_act": True,
            "checkpoint_format": "gptq_v2",
            "dynamic": {r"-:.*\.mlp\.gate": {}},
        },
        GPTQ(32, symmetric=False, version=2, ordered=True),
        Plain(),
    ),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        ModelOpt("NVFP4"),
        NVFP4(),
    ),
}


def settings(fields):
    return Settings("config.json: quantization_config", fields)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_understood(name):
    fields, wanted, inputs = PUBLISHED[name]
    found = method_of(settings(fields))
    assert found == wanted
    assert found.inputs("model.layers.3.mlp.experts.0.up_proj") == inputs


def test_kimis_groups_patterns_and_names():
    found = method_of(settings(KIMI))
    assert found.convention("model.layers.1.mlp.experts.7.up_proj").of == INT4(PerGroup(32))
    assert "Plain" in repr(found.convention("model.layers.1.mlp.shared_experts.up_proj"))
    group = KIMI["config_groups"]["group_0"]
    weights = group["weights"]
    groups = {
        "linear": group,
        "pattern": {**group, "targets": [r"re:.*experts\.\d+\.down_proj"], "weights": {**weights, "group_size": 64}},
        "name": {**group, "targets": ["a.experts.2.down_proj"], "weights": {**weights, "symmetric": False}},
    }
    found = method_of(settings({**KIMI, "config_groups": groups}))
    modules = ("a.experts.1.up_proj", "a.experts.1.down_proj", "a.experts.2.down_proj")
    wanted = [INT4(PerGroup(32)), INT4(PerGroup(64)), INT4(PerGroup(32), zero_point=True)]
    assert [found.convention(module).of for module in modules] == wanted


SCHEMES = [
    Scheme(FP8(PerTensor()), FP8(PerTensor())),
    Scheme(FP8(PerRow()), FP8(PerRow())),
    Scheme(FP8(PerBlock()), FP8(PerGroup(128))),
    Scheme(INT8(PerRow()), INT8(PerRow())),
    Scheme(INT8(PerGroup(128)), Plain()),
    Scheme(INT4(PerGroup(128)), Plain()),
    Scheme(INT4(PerGroup(64), zero_point=True), Plain()),
    Scheme(INT4(PerRow()), FP8(PerRow())),
    Scheme(MXFP8(), MXFP8()),
    Scheme(MXFP4(), MXFP8()),
    Scheme(MXFP4(), MXFP4()),
    Scheme(NVFP4(), NVFP4()),
    Scheme(NVFP4(), Plain()),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_a_scheme_survives_the_words_of_compressed_tensors(scheme):
    method = CompressedTensors.of_scheme(scheme)
    assert method_of(settings(method.to_config())) == method
    assert method.groups[0].scheme == scheme


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_method_describes_itself(case):
    again = method_of(settings(case.method.to_config() or {}))
    assert again.inputs("model.x") == case.method.inputs("model.x")
    assert again.to_config() == case.method.to_config()


WRONG = [
    (
        {"quant_method": "bitsandbytes"},
        "quant_method is 'bitsandbytes'.*fp8, mxfp8, mxfp4, compressed-tensors, modelopt, awq or gptq",
    ),
    ({"bits": 4}, "quant_method is missing"),
    ({"quant_method": "awq", "bits": 8, "group_size": 128}, "bits is 8, but it needs 4"),
    ({"quant_method": "awq", "bits": 4}, "group_size is missing"),
    ({"quant_method": "awq", "bits": 4, "group_size": "128"}, "group_size is '128'.*whole number"),
    (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"},
        "version is 'gemv', but it needs one of 'gemm'",
    ),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False}, "zero_point is False"),
    ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "bits is 3"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size is 0"),
    (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"},
        "checkpoint_format is 'marlin'.*'gptq', 'gptq_v2'",
    ),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": 1}, "sym is 1, but it needs true or false"),
    (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:.*down": {"bits": 8}}},
        "dynamic is .*one setting for all",
    ),
    ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size is \[128\]"),
    ({"quant_method": "fp8", "weight_block_size": [0, 128]}, r"weight_block_size is \[0, 128\]"),
    ({"quant_method": "fp8", "scale_fmt": "e5m2"}, "scale_fmt is 'e5m2'"),
    ({"quant_method": "fp8", "expert_dtype": "fp6"}, "expert_dtype is 'fp6'"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo is 'W4A8_AWQ'.*'fp8', 'nvfp4', 'mxfp8'"),
    ({"quant_method": "modelopt"}, "quant_algo is missing"),
    ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
    ({"quant_method": "compressed-tensors", "config_groups": []}, r"config_groups is \[\]"),
    ({**KIMI, "format": "marlin-24"}, "group_0.format is 'marlin-24'|INT4.*is read from pack-quantized"),
    ({**KIMI, "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 3}}}}, "g.weights says 3 bits"),
    (
        {**KIMI, "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "block"}}}},
        "block_structure is missing",
    ),
    (
        {**KIMI, "config_groups": {"g": {"targets": ["re:*"], "weights": {"num_bits": 4, "group_size": 32}}}},
        r"targets is \['re:\*'\]",
    ),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=lambda value: str(value)[:60])
def test_what_is_not_read_is_refused_by_field(fields, message):
    with pytest.raises(CheckpointError, match=message):
        method_of(settings(fields))


def test_mixed_precision_of_modelopt_goes_by_module(tmp_path):
    _, directory = written(named("modelopt-nvfp4"), tmp_path)
    modules = {f"backbone.layers.{n}.mixer.experts": {"quant_algo": "NVFP4", "group_size": 16} for n in (2, 3)}
    quantization(directory, quant_algo="MIXED_PRECISION", quantized_layers=modules)
    assert Checkpoint(directory).scheme(3) == Scheme(NVFP4(), NVFP4())
    modules["backbone.layers.3.mixer.experts"]["quant_algo"] = "W4A16_AWQ"
    quantization(directory, quantized_layers=modules)
    with pytest.raises(CheckpointError, match="says W4A16_AWQ of backbone"):
        Checkpoint(directory).scheme(3)


def test_the_older_place_of_modelopts_configuration(tmp_path):
    _, directory = written(named("modelopt-fp8"), tmp_path)
    configure(directory, quantization_config=None)
    (directory / "hf_quant_config.json").write_text('{"producer": {}, "quantization": {"quant_algo": "FP8"}}')
    assert Checkpoint(directory).method == ModelOpt("FP8")


@pytest.mark.parametrize("part", ["text_config", "llm_config"])
def test_a_configuration_inside_the_configuration_counts_too(part, tmp_path):
    _, directory = written(named("deepseek-v3"), tmp_path)
    config = Checkpoint(directory).config
    inner = {**config, "num_experts": 4, "num_local_experts": None}
    (directory / "config.json").write_text("{}")
    configure(directory, **{part: inner}, num_experts=77)
    found = Checkpoint(directory)
    assert found.method == FineGrainedFP8()
    with pytest.raises(CheckpointError, match=r"5 experts .* says 4"):
        found.num_experts(3)


def test_deepseek_v4_says_the_dtype_of_experts_beside_the_quantization(tmp_path):
    _, directory = written(named("deepseek-v4-fp4"), tmp_path)
    assert Checkpoint(directory).method.fp4
    assert Checkpoint(directory).scheme(2) == Scheme(MXFP4(), FP8(PerGroup(128), scale=E8M0))


def test_the_problem_of_a_layer(tmp_path):
    _, directory = written(named("qwen3-fp8"), tmp_path)
    configure(directory, torch_dtype="float16")
    problem = Checkpoint(directory).problem(2, activation=SwiGLU(), top_k=2, num_experts=3)
    assert (problem.hidden_size, problem.intermediate_size, problem.num_experts) == (264, 96, 3)
    assert problem.scheme == Scheme(FP8(PerBlock(), scale=torch.bfloat16), FP8(PerGroup(128)))
    assert problem.dtype == torch.float16
    Checkpoint(directory).read(2, experts=range(3)).check(problem)
    _, directory = written(named("modelopt-fp8"), tmp_path / "without")
    with pytest.raises(CheckpointError, match="has 40 rows for an intermediate size of 40, which SwiGLU"):
        Checkpoint(directory).problem(2, activation=SwiGLU(), top_k=2)
