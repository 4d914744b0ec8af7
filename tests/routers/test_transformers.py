"""The router modules of transformers as a second oracle: same logits in, same experts and weights out."""

import importlib
from types import SimpleNamespace

import pytest
import torch

from moesaic.routers import (
    BiasedSigmoidTopK,
    BiasedSoftmaxTopK,
    ExpertScaledSoftmaxTopK,
    GroupedSigmoidTopK,
    GroupedSoftmaxTopK,
    HashedTopK,
    SigmoidTopK,
    SoftmaxTopK,
    SparseMixer,
    SqrtSoftplusTopK,
    TopKSoftmax,
    ZeroExpertTopK,
)

pytest.importorskip("transformers", minversion="5.24")  # 5.17 lacks families and answers otherwise

E, K, G, KEPT, Z, SCALE = 12, 3, 4, 2, 5, 2.5
CONFIG = {
    "hidden_size": 16,
    "num_experts": E,
    "num_local_experts": E,
    "n_routed_experts": E,
    "num_experts_per_tok": K,
    "top_k_experts": K,
    "norm_topk_prob": True,
    "routed_scaling_factor": SCALE,
    "n_group": G,
    "topk_group": KEPT,
    "topk_method": "group_limited_greedy",
    "scoring_func": "sqrtsoftplus",
    "zero_expert_num": Z,
    "moe_norm_min": 1e-12,
    "output_multiplier": 0.7,
    "router_jitter_noise": 0.05,
    "input_jitter_noise": 0.0,
    "rms_norm_eps": 1e-6,
    "vocab_size": 29,
}
"""One configuration that has the fields of every family."""


def grouped_sigmoid(module, **changes):
    fields = {"bias": module.e_score_correction_bias, "epsilon": 1e-20, "scaling_factor": SCALE}
    return GroupedSigmoidTopK(E, K, num_groups=G, top_groups=KEPT, **{**fields, **changes})


def biased_sigmoid(module, **fields):
    return BiasedSigmoidTopK(E, K, bias=module.e_score_correction_bias, **fields)


def sqrt_softplus(module):
    return SqrtSoftplusTopK(E, K, bias=module.e_score_correction_bias, epsilon=1e-20, scaling_factor=SCALE)


CASES = [
    ("mixtral.MixtralTopKRouter", {}, lambda m: SoftmaxTopK(E, K, renormalize=True)),
    ("qwen3_moe.Qwen3MoeTopKRouter", {}, lambda m: SoftmaxTopK(E, K, renormalize=True)),
    ("qwen3_next.Qwen3NextTopKRouter", {}, lambda m: SoftmaxTopK(E, K, renormalize=True)),
    ("qwen2_moe.Qwen2MoeTopKRouter", {"norm_topk_prob": False}, lambda m: SoftmaxTopK(E, K)),
    ("olmoe.OlmoeTopKRouter", {"norm_topk_prob": False}, lambda m: SoftmaxTopK(E, K)),
    ("jamba.JambaTopKRouter", {}, lambda m: SoftmaxTopK(E, K)),
    ("deepseek_v2.DeepseekV2TopkRouter", {"topk_method": "greedy"}, lambda m: SoftmaxTopK(E, K, scaling_factor=SCALE)),
    (
        "deepseek_v2.DeepseekV2TopkRouter",
        {},
        lambda m: GroupedSoftmaxTopK(E, K, num_groups=G, top_groups=KEPT, scaling_factor=SCALE),
    ),
    ("deepseek_v3.DeepseekV3TopkRouter", {}, grouped_sigmoid),
    (
        "deepseek_v3.DeepseekV3TopkRouter",
        {"norm_topk_prob": False},
        lambda m: grouped_sigmoid(m, renormalize=False, epsilon=0.0),
    ),
    ("glm4_moe.Glm4MoeTopkRouter", {}, grouped_sigmoid),
    (
        "glm4_moe.Glm4MoeTopkRouter",
        {"n_group": 1, "topk_group": 1},
        lambda m: biased_sigmoid(m, epsilon=1e-20, scaling_factor=SCALE),
    ),
    ("nemotron_h.NemotronHTopkRouter", {}, grouped_sigmoid),
    ("mimo_v2_flash.MiMoV2FlashTopkRouter", {}, grouped_sigmoid),
    ("muse_spark.MuseSparkTopkRouter", {}, lambda m: biased_sigmoid(m, epsilon=1e-15, scaling_factor=SCALE)),
    ("inkling2.Inkling2TopKRouter", {"scoring_func": "sigmoid"}, lambda m: biased_sigmoid(m, scaling_factor=SCALE)),
    ("step3p7.Step3p7TopKRouter", {}, biased_sigmoid),
    ("minimax_m3_vl.MiniMaxM3VLTopKRouter", {}, biased_sigmoid),
    ("deepseek_v4.DeepseekV4TopKRouter", {}, sqrt_softplus),
    (
        "deepseek_v4.DeepseekV4HashRouter",
        {},
        lambda m: HashedTopK(E, m.tid2eid, epsilon=1e-20, scaling_factor=SCALE),
    ),
    (
        "ernie4_5_moe.Ernie4_5_MoeTopKRouter",
        {},
        lambda m: BiasedSoftmaxTopK(E, K, bias=m.moe_statics.e_score_correction_bias[0], floor=1e-12),
    ),
    (
        "gemma4.Gemma4TextRouter",
        {},
        lambda m: ExpertScaledSoftmaxTopK(E, K, expert_scale=m.per_expert_scale),
    ),
    ("gpt_oss.GptOssTopKRouter", {}, lambda m: TopKSoftmax(E, K)),
    ("phimoe.PhimoeTopKRouter", {"num_experts_per_tok": 2}, lambda m: SparseMixer(E, jitter=0.05)),
    ("llama4.Llama4Router", {"num_experts_per_tok": 1}, lambda m: SigmoidTopK(E, 1)),
    (
        "longcat_flash.LongcatFlashTopkRouter",
        {},
        lambda m: ZeroExpertTopK(E, K, num_zero_experts=Z, bias=m.e_score_correction_bias, scaling_factor=SCALE),
    ),
]


def module_with_random_tensors(path, changes):
    family, name = path.split(".")
    module = getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)
    module = module(SimpleNamespace(**{**CONFIG, **changes})).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.4)
            else:  # the table of a hash router
                tensor.copy_(torch.stack([torch.randperm(E, generator=generator)[:K] for _ in range(len(tensor))]))
    return module


def answer(path, module, hidden_states, token_ids):
    """(logits, ids, weights) of the module; slots in any order."""
    if path == "llama4.Llama4Router":
        scores, logits = module(hidden_states)
        return logits, scores.argmax(dim=-1, keepdim=True), scores.amax(dim=-1, keepdim=True)
    if path == "gemma4.Gemma4TextRouter":
        probabilities, weights, ids = module(hidden_states)
        return probabilities.log(), ids, weights
    logits, weights, ids = module(hidden_states, token_ids) if "Hash" in path else module(hidden_states)
    return logits, ids, weights


@pytest.mark.parametrize(("path", "changes", "build"), CASES, ids=[f"{path}-{changes}" for path, changes, _ in CASES])
@torch.no_grad()
def test_same_experts_and_weights(path, changes, build):
    generator = torch.Generator().manual_seed(1)
    hidden_states = torch.randn(31, CONFIG["hidden_size"], generator=generator)
    token_ids = torch.randint(0, CONFIG["vocab_size"], (31,), generator=generator)
    module = module_with_random_tensors(path, changes)
    logits, ids, weights = answer(path, module, hidden_states, token_ids)
    routing = build(module)(logits, token_ids)
    got, wanted = dense(routing.topk_ids.long(), routing.topk_weights), dense(ids, weights)
    if routing.identity_weights is not None:
        torch.testing.assert_close(routing.identity_weights, wanted[:, E:].sum(dim=-1))
        assert 0 < (routing.topk_ids < 0).sum() < routing.topk_ids.numel()
    torch.testing.assert_close(got[:, :E], wanted[:, :E])
    assert (got[:, :E] != 0).sum() == (ids < E).sum()


def dense(ids, weights):
    """Weights by expert, `[T, E + Z]`; ids below zero go nowhere."""
    table = torch.zeros(ids.shape[0], E + Z)
    return table.scatter_add(1, ids.clamp(min=0), weights.masked_fill(ids < 0, 0.0))
