"""How model families name the tensors of their experts."""

from moesaic.checkpoints.naming.base import Arrangement as Arrangement
from moesaic.checkpoints.naming.base import Naming as Naming
from moesaic.checkpoints.naming.base import Piece as Piece
from moesaic.checkpoints.naming.base import TensorNames as TensorNames
from moesaic.checkpoints.naming.flattened import Flattened as Flattened
from moesaic.checkpoints.naming.per_expert import PerExpert as PerExpert
from moesaic.checkpoints.naming.stacked import Stacked as Stacked

PROJ: Naming = PerExpert("gate_proj", "up_proj", "down_proj")
"""Qwen, DeepSeek-V2/V3, Kimi-K2, GLM, OLMoE, dots, Ernie, Hunyuan, MiMo, Jamba, Nemotron-H and most others."""

W1_W3_W2: Naming = PerExpert("w1", "w3", "w2")
"""Mixtral, MiniMax, PhiMoE, LFM2, Kimi-Linear, Kimi-K3, DeepSeek-V4, Mistral-Large-4: w1 is gate, w3 is up."""

GPT_OSS: Naming = Stacked(
    "experts",
    ("gate_up_proj",),
    "down_proj",
    separator="_",
    bare=True,
    transposed=None,
    interleaved=True,
    biased=True,
    of_models=frozenset({"gpt_oss"}),
)
"""gpt-oss: gate and up alternate, biases; plain weights are transposed, MXFP4 blocks are not."""

NAMINGS: tuple[Naming, ...] = (
    PROJ,
    W1_W3_W2,
    PerExpert("fc1", "fc3", "fc2"),  # the vision tower of dots3
    GPT_OSS,
    Stacked(
        "experts",
        ("gate_up_proj",),
        "down_proj",
        separator="_",
        bare=True,
        transposed=None,
        biased=True,
        of_models=frozenset({"openai_privacy_filter"}),
    ),
    # Llama-4, Qwen3-VL-MoE (transposed), Gemma-4, Muse-Spark and what transformers keeps stacked. Not biased: of a
    # model with biases that is not listed above nobody knows whether gate and up alternate as gpt-oss's do.
    Stacked(
        "experts",
        ("gate_up_proj",),
        "down_proj",
        separator="_",
        bare=True,
        transposed=None,
        norm_name="post_expert_norm.weight",
    ),
    Stacked("experts", ("w13",), "w2", separator="_", interleaved=True),  # Inkling, Inkling2
    Stacked("experts", ("fc1",), "fc2", transposed=True),  # Aria
    Stacked("block_sparse_moe|mlp", ("input_linear",), "output_linear"),  # Granite, JetMoE
    Stacked("moe", ("gate_proj", "up_proj"), "down_proj"),  # Step-3.5, Step-3.7
    Flattened(r"experts\.mlp", "w1", "v1", "w2"),  # DBRX
)
"""Every naming; the first that knows a tensor's name, and suits the model, reads it."""
