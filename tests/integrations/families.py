"""Tiny random models of every family that goes through transformers' experts interface, and those that do not."""

import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

COMMON = {
    "vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 64,
    "use_cache": False, "num_hidden_layers": 2, "first_k_dense_replace": 1, "sliding_window": 8,
    "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "moe_num_experts": 8, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "index_head_dim": 16, "index_n_heads": 2, "index_topk": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_head_dim": 8, "linear_num_heads": 2,
}  # fmt: skip
"""Sizes by the names that configurations use; a configuration gets those that it knows."""

LATENT = {"num_key_value_heads": 4}
SPARSE = {"mlp_layer_types": ["dense", "sparse"]}


def _rope(**more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2], **more}}


FAMILIES = {
    "afmoe": ("AfmoeForCausalLM", {}),
    "aria": ("AriaTextForCausalLM", {}),
    "axk1": ("AXK1ForCausalLM", LATENT),
    "axk2": ("AXK2ForCausalLM", LATENT),
    "bailing_hybrid": ("BailingHybridForCausalLM", {}),
    "beam": ("BeamForCausalLM", SPARSE),
    "cohere2_moe": ("Cohere2MoeForCausalLM", {}),
    "deepseek_ocr2": ("DeepseekOcr2TextModel", SPARSE),
    "deepseek_v2": ("DeepseekV2ForCausalLM", LATENT),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT),
    "deepseek_v32": ("DeepseekV32ForCausalLM", LATENT),
    "deepseek_v4": ("DeepseekV4ForCausalLM", {}),
    "diffusion_gemma": ("DiffusionGemmaEncoderTextModel", {"top_k_experts": 2}),
    "dots1": ("Dots1ForCausalLM", {"n_shared_experts": 1}),
    "dots3_note": ("Dots3NoteForCausalLM", LATENT),
    "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM", {}),
    "ernie4_5_vl_moe": ("Ernie4_5_VLMoeTextModel", {"moe_intermediate_size": [16, 16], **SPARSE, **_rope()}),
    "exaone_moe": ("ExaoneMoeForCausalLM", {}),
    "flex_olmo": ("FlexOlmoForCausalLM", {}),
    "flint": ("FlintForCausalLM", {"mlp_only_layers": [0]}),
    "gemma4": ("Gemma4ForCausalLM", {"enable_moe_block": True, "top_k_experts": 2, "vocab_size_per_layer_input": 64}),
    "glm4_moe": ("Glm4MoeForCausalLM", {}),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", LATENT),
    "glm4v_moe": ("Glm4vMoeTextModel", _rope(partial_rotary_factor=1.0)),
    "glm5_next": ("Glm5NextTextModel", {"index_kpool": 4, "qk_rope_head_dim": 0, **SPARSE, **LATENT}),
    "glm_moe_dsa": ("GlmMoeDsaForCausalLM", LATENT),
    "gpt_oss": ("GptOssForCausalLM", {}),
    "granitemoe": ("GraniteMoeForCausalLM", {}),
    "granitemoe_swa": ("GraniteMoeSWAForCausalLM", {}),
    "granitemoehybrid": ("GraniteMoeHybridForCausalLM", {"mamba_n_heads": 8, "mamba_d_state": 8}),
    "granitemoeshared": ("GraniteMoeSharedForCausalLM", {}),
    "hunyuan_v1_moe": ("HunYuanMoEV1ForCausalLM", {"moe_topk": 2}),
    "hy_v3": ("HYV3ForCausalLM", {}),
    "hy_v4": ("HYV4ForCausalLM", {}),
    "hy_v4_vl": ("HYV4VLTextModel", {**LATENT, **_rope()}),
    "inkling": ("InklingForCausalLM", {}),
    "inkling2": ("Inkling2ForCausalLM", {}),
    "inkling2_loop": ("Inkling2LoopForCausalLM", {}),
    "jamba": ("JambaForCausalLM", {}),
    "kimi_linear": ("KimiLinearForCausalLM", {}),
    "kolibri1": ("Kolibri1ForCausalLM", {}),
    "laguna": ("LagunaForCausalLM", {}),
    "lara_mini": ("LaraMiniForCausalLM", {}),
    "lfm2_moe": ("Lfm2MoeForCausalLM", {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    "mellum": ("MellumForCausalLM", {}),
    "mimo_v2_flash": ("MiMoV2FlashForCausalLM", {}),
    "minimax": ("MiniMaxForCausalLM", {}),
    "minimax_m2": ("MiniMaxM2ForCausalLM", {}),
    "minimax_m3_vl": ("MiniMaxM3VLForCausalLM", {}),
    "mistral4": ("Mistral4ForCausalLM", LATENT),
    "mistral_large4": ("MistralLarge4TextModel", LATENT),
    "mixtral": ("MixtralForCausalLM", {}),
    "muse_spark": ("MuseSparkTextModel", {"moe_hidden_size": 16}),
    "nemotron_h": (
        "NemotronHForCausalLM",
        {"layers_block_type": ["mamba", "moe"], "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8,
         "n_groups": 1, "moe_latent_size": 16, "moe_shared_expert_intermediate_size": 16},
    ),
    "olmoe": ("OlmoeForCausalLM", {}),
    "openai_privacy_filter": ("OpenAIPrivacyFilterModel", {}),
    "phimoe": ("PhimoeForCausalLM", {}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {}),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {}),
    "qwen3_next": ("Qwen3NextForCausalLM", {}),
    "qwen3_omni_moe": ("Qwen3OmniMoeThinkerTextModel", {}),
    "qwen3_vl_moe": ("Qwen3VLMoeTextModel", {}),
    "qwen4_exp": ("Qwen4ExpForCausalLM", {}),
    "solar_open": ("SolarOpenForCausalLM", {}),
    "unlimited_ocr": ("UnlimitedOcrTextModel", {}),
    "zaya": ("ZayaForCausalLM", {"num_experts_per_tok": 1}),
}  # fmt: skip
"""Family to the class that is tested and what its configuration needs beside COMMON."""

NOT_TESTED = {}
"""Decorated families that are not in FAMILIES, and why; a new family has to be put into one of the two."""

OUTSIDE = {
    "dbrx": ("DbrxForCausalLM", {"d_model": 32, "n_heads": 4, "n_layers": 1, "max_seq_len": 32,
                                 "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
                                 "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4}}),
    "jetmoe": ("JetMoeForCausalLM", {"kv_channels": 8}),
    "llama4": ("Llama4ForCausalLM", {"intermediate_size_mlp": 48}),
    "longcat_flash": ("LongcatFlashForCausalLM",
                      {"num_layers": 1, "ffn_hidden_size": 32, "expert_ffn_hidden_size": 16}),
    "nllb_moe": ("NllbMoeForConditionalGeneration",
                 {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
                  "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                  "encoder_sparse_step": 2, "decoder_sparse_step": 2}),
    "step3p7": ("Step3p7TextModel", {"mlp_layer_types": ["dense", "sparse"]}),
    "switch_transformers": ("SwitchTransformersForConditionalGeneration",
                            {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_sparse_encoder_layers": 1,
                             "num_heads": 4, "num_sparse_decoder_layers": 1, "num_decoder_layers": 2}),
}  # fmt: skip
"""MoE families that do not go through the interface."""


def source_of(family):
    """The modeling file of a family; None if this transformers does not have it."""
    path = Path(transformers.__file__).parent / "models" / family / f"modeling_{family}.py"
    return path if path.exists() else None


def decorated_families():
    """Every family whose modeling file uses the decorator."""
    models = Path(transformers.__file__).parent / "models"
    found = [path for path in models.glob("*/modeling_*.py") if "@use_experts_implementation" in path.read_text()]
    return sorted({path.parent.name for path in found})


def is_decorated_here(family):
    """Whether the installed transformers has the family behind the interface (5.17 has 54 of them)."""
    path = source_of(family)
    return path is not None and "@use_experts_implementation" in path.read_text()


HERE = [family for family in FAMILIES if is_decorated_here(family)]
OUTSIDE_HERE = [family for family in OUTSIDE if source_of(family) is not None]


def here(*families):
    """Those of `families` that the installed transformers has behind the interface."""
    return [family for family in families if is_decorated_here(family)]


def tiny(family, **changes):
    """A tiny random model in float32, in eager experts mode; every parameter is large enough to count."""
    name, extra = {**FAMILIES, **OUTSIDE}[family]
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    kind = vars(module)[name]
    known = set(inspect.signature(kind.config_class.__init__).parameters)
    config = kind.config_class(**{k: v for k, v in COMMON.items() if k in known} | extra | changes)
    torch.manual_seed(0)
    model = kind(config).eval()
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim > 1 or re.search(r"bias|experts", parameter_name):
                parameter.copy_(torch.randn(parameter.shape, generator=g) * 0.3)
    if family in FAMILIES:
        model.set_experts_implementation("eager")
    return model


def ids(num_tokens=7):
    """Token ids, two sequences, no special ones."""
    return torch.randint(3, 64, (2, num_tokens), generator=torch.Generator().manual_seed(1))


def output(model, **inputs):
    """The logits, or the last hidden state of a model without a head."""
    with torch.no_grad():
        found = model(**({"input_ids": ids()} | inputs))
    first = found[0]
    assert isinstance(model, PreTrainedModel)
    assert torch.isfinite(first).all()
    return first.clone()
