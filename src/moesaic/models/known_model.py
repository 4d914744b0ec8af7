"""KnownModel: the expert layer of a published model as a `Problem`, and what else a user asks about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from moesaic.problem import Problem

AICONFIGURATOR = "ai-dynamo/aiconfigurator, model configurations as published"
AICONFIGURATOR_OLD = "ai-dynamo/aiconfigurator, an older commit"
TRANSFORMERS = "transformers 5.23, defaults of the configuration class"
SLIME = "THUDM/slime, model scripts"
TENSORRT_LLM = "TensorRT-LLM, unit test with the published configuration"
SGLANG = "SGLang, expert_pack_config.py"
VLLM = "vLLM, model code"
PUBLIC_CODE = "the model's public code"


@final
@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """One published configuration. Only what its source states: nothing is guessed.

    `problem`: the whole layer on one rank, in bfloat16, tokens in Standard layout. `model_hidden_size`: differs from
    `problem.hidden_size` where experts see a latent space. `router`: the rule, and the factor on its weights.
    `shared`: experts beside the routed ones that every token passes. `stored`: how the experts are usually
    quantized. `same_layer`: other models with an equal layer. `note`: what a `Problem` cannot say.
    """

    name: str
    problem: Problem
    model_hidden_size: int
    router: str
    shared: str
    stored: str
    source: str
    same_layer: tuple[str, ...] = ()
    note: str = ""

    @property
    def weight_bytes(self) -> int:
        """Bytes of one layer's expert weights as the problem stores them, biases not counted."""
        return self.problem.num_experts * self.problem.num_weights * self.problem.dtype.itemsize
