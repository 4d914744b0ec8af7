"""The table of models against numbers written down a second time, in another form."""

import re

import pytest

from moesaic import GeGLU, ReLU2, SiTU, Standard, SwiGLU, SwiGLUStep
from moesaic.errors import ModelError
from moesaic.models import MODELS, UNSIZED, KnownModel, known_model
from moesaic.parsing import parse
from moesaic.vocabulary import VOCABULARY

GPT_OSS = SwiGLU(1.702, 1.0, 7.0)

# name: H of the experts, I, E, K, H of the model, activation, factor on the weights
EXPECTED = {
    "mixtral-8x7b": (4096, 14336, 8, 2, 4096, SwiGLU(), 1),
    "mixtral-8x22b": (6144, 16384, 8, 2, 6144, SwiGLU(), 1),
    "qwen1.5-moe-a2.7b": (2048, 1408, 60, 4, 2048, SwiGLU(), 1),
    "qwen2-57b-a14b": (3584, 2560, 64, 8, 3584, SwiGLU(), 1),
    "qwen3-30b-a3b": (2048, 768, 128, 8, 2048, SwiGLU(), 1),
    "qwen3-235b-a22b": (4096, 1536, 128, 8, 4096, SwiGLU(), 1),
    "qwen3-coder-480b-a35b": (6144, 2560, 160, 8, 6144, SwiGLU(), 1),
    "qwen3-next-80b-a3b": (2048, 512, 512, 10, 2048, SwiGLU(), 1),
    "qwen3.5-35b": (2048, 512, 256, 8, 2048, SwiGLU(), 1),
    "qwen3.5-122b": (3072, 1024, 256, 8, 3072, SwiGLU(), 1),
    "qwen3.5-397b": (4096, 1024, 512, 10, 4096, SwiGLU(), 1),
    "deepseek-v2-lite": (2048, 1408, 64, 6, 2048, SwiGLU(), 1),
    "deepseek-v2": (5120, 1536, 160, 6, 5120, SwiGLU(), 16),
    "deepseek-v3": (7168, 2048, 256, 8, 7168, SwiGLU(), 2.5),
    "deepseek-r1": (7168, 2048, 256, 8, 7168, SwiGLU(), 2.5),
    "deepseek-v3.2": (7168, 2048, 256, 8, 7168, SwiGLU(), 2.5),
    "deepseek-v4-flash": (4096, 2048, 256, 6, 4096, SwiGLU(limit=10), 1.5),
    "deepseek-v4-pro": (7168, 3072, 384, 6, 7168, SwiGLU(limit=10), 2.5),
    "kimi-k2": (7168, 2048, 384, 8, 7168, SwiGLU(), 2.827),
    "kimi-k2.5": (7168, 2048, 384, 8, 7168, SwiGLU(), 2.827),
    "kimi-k3": (3584, 3072, 896, 16, 7168, SiTU(4.0, 25.0), 1),
    "kimi-linear-48b": (2304, 1024, 256, 8, 2304, SwiGLU(), 2.446),
    "glm-4.5": (5120, 1536, 160, 8, 5120, SwiGLU(), 2.5),
    "glm-4.7": (5120, 1536, 160, 8, 5120, SwiGLU(), 2.5),
    "glm-4.5-air": (4096, 1408, 128, 8, 4096, SwiGLU(), 1),
    "glm-5": (6144, 2048, 256, 8, 6144, SwiGLU(), 2.5),
    "glm-5.1": (6144, 2048, 256, 8, 6144, SwiGLU(), 2.5),
    "glm-5.2": (6144, 2048, 256, 8, 6144, SwiGLU(), 2.5),
    "gpt-oss-20b": (2880, 2880, 32, 4, 2880, GPT_OSS, 1),
    "gpt-oss-120b": (2880, 2880, 128, 4, 2880, GPT_OSS, 1),
    "llama-4-scout": (5120, 8192, 16, 1, 5120, SwiGLU(), 1),
    "llama-4-maverick": (5120, 8192, 128, 1, 5120, SwiGLU(), 1),
    "minimax-m2.5": (3072, 1536, 256, 8, 3072, SwiGLU(), 1),
    "minimax-m2.7": (3072, 1536, 256, 8, 3072, SwiGLU(), 1),
    "minimax-m3": (6144, 3072, 128, 4, 6144, GPT_OSS, 2),
    "nemotron-3-nano-30b-a3b": (2688, 1856, 128, 6, 2688, ReLU2(), 2.5),
    "nemotron-3-super-120b": (1024, 2688, 512, 22, 4096, ReLU2(), 5),
    "nemotron-3-ultra-550b": (2048, 5120, 512, 22, 8192, ReLU2(), 5),
    "jamba-v0.1": (4096, 14336, 16, 2, 4096, SwiGLU(), 1),
    "olmoe-1b-7b": (2048, 1024, 64, 8, 2048, SwiGLU(), 1),
    "phi-3.5-moe": (4096, 6400, 16, 2, 4096, SwiGLU(), 1),
    "gemma-4-26b-a4b": (2816, 704, 128, 8, 2816, GeGLU("tanh"), 1),
    "step-3.7-flash": (4096, 1280, 288, 8, 4096, SwiGLU(), 3),
    "step-3.7-flash-clamped": (4096, 1280, 288, 8, 4096, SwiGLUStep(7.0), 3),
    "mimo-v2-flash": (4096, 2048, 256, 8, 4096, SwiGLU(), 1),
    "longcat-flash": (6144, 2048, 512, 12, 6144, SwiGLU(), 6),
    "ernie-4.5-21b-a3b": (2560, 1536, 64, 6, 2560, SwiGLU(), 1),
    "inkling2": (4608, 2304, 384, 8, 4608, SiTU(4.0, 25.0), 8),
}

NAMES = {name for model in MODELS for name in (model.name, *model.same_layer)}


def test_the_table_holds_these_models_and_no_others():
    assert set(EXPECTED) == NAMES
    assert len(MODELS) >= 30
    assert len(NAMES) == sum(1 + len(model.same_layer) for model in MODELS)
    assert [model.name for model in MODELS] == sorted(model.name for model in MODELS)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_numbers_of_a_model(name):
    hidden, intermediate, experts, top_k, model_hidden, activation, factor = EXPECTED[name]
    model = known_model(name)
    problem = model.problem
    assert (problem.hidden_size, problem.intermediate_size) == (hidden, intermediate)
    assert (problem.num_experts, problem.top_k) == (experts, top_k)
    assert model.model_hidden_size == model_hidden
    assert problem.activation == activation
    assert problem.bias is name.startswith("gpt-oss")
    assert problem.weight_on_input is name.startswith("llama-4")
    assert problem.layout == Standard()
    assert problem.output_norm is None
    assert re.findall(r"times ([\d.]+)", model.router) == ([] if factor == 1 else [str(factor)])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_problem_is_its_own_repr_and_every_fact_is_stated(model: KnownModel):
    assert parse(repr(model.problem), {value.__name__: value for value in VOCABULARY}) == model.problem
    for fact in (model.router, model.shared, model.stored, model.source):
        assert fact
    gates = 2 if model.problem.activation.gated else 1
    per_expert = model.problem.hidden_size * model.problem.intermediate_size * (gates + 1)
    assert model.weight_bytes == 2 * per_expert * model.problem.num_experts


def test_names_are_found_in_any_case():
    assert known_model("Mixtral-8x7B") is known_model("mixtral-8x7b")
    assert known_model("DeepSeek-R1").name == "deepseek-v3"


def test_an_unknown_name_lists_the_closest():
    with pytest.raises(ModelError, match=r"'qwen3-30b'.*qwen3-30b-a3b.*moesaic models"):
        known_model("qwen3-30b")
    with pytest.raises(ModelError, match="'#'; `moesaic models` lists all"):
        known_model("#")


def test_a_model_without_a_published_size_has_no_problem():
    for name, known in UNSIZED:
        assert name not in NAMES
        with pytest.raises(ModelError, match="is not published"):
            known_model(name)
        assert "4096" in known
