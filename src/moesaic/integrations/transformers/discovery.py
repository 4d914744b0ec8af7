"""Find the MoE layers of a model by their structure: those behind transformers' experts interface, and the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from torch import nn
from transformers import PreTrainedModel

DECORATED = frozenset({"config", "has_gate", "has_bias", "is_transposed", "is_concatenated"})
"""What `use_experts_implementation` sets on every module of a class that it decorates."""

EXPERTS_CLASS = re.compile(r"Experts?(?!Router|Gate)|(MoE|Moe|MoA|SparseMLP|M[oO][eE](Block|Layer|MLP|FFN))$")
"""What the classes of MoE blocks are called, behind the family's name (the Moe of OlmoeMLP or Qwen2MoeMLP is one)."""

SHARED_CLASS = re.compile(r"Shared")
"""Class names of experts that every token goes through: dense layers."""

SHARED_NAME = re.compile(r"shared_experts?$")
"""Names of their modules."""

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9_]*|[0-9_a-z]+")
"""One word of a class name."""


@final
@dataclass(frozen=True, eq=False)
class Found:
    """One MoE layer: an experts module behind the interface if `decorated`, else the outermost block."""

    name: str
    module: nn.Module
    decorated: bool


def find_layers(model: nn.Module) -> tuple[Found, ...]:
    """Every MoE layer, in the model's order, each once even if the model uses it twice."""
    return tuple(_walk("", model, model.__class__.__name__, set()))


def is_decorated(module: nn.Module) -> bool:
    """Whether the module's class goes through transformers' experts interface."""
    return vars(module).keys() >= DECORATED


def _walk(name: str, module: nn.Module, family: str, seen: set[nn.Module]) -> Iterator[Found]:
    if module in seen:
        return
    seen.add(module)
    if is_decorated(module):
        yield Found(name, module, decorated=True)
        return
    if isinstance(module, PreTrainedModel):
        family = module.__class__.__name__
    elif _looks_like_experts(name, module, family) and not any(map(is_decorated, module.modules())):
        yield Found(name, module, decorated=False)
        return
    for child_name, child in module.named_children():
        yield from _walk(f"{name}.{child_name}" if name else child_name, child, family, seen)


def _looks_like_experts(name: str, module: nn.Module, family: str) -> bool:
    kind = _behind(family, module.__class__.__name__)
    if SHARED_CLASS.search(kind) or SHARED_NAME.search(name):
        return False
    return bool(EXPERTS_CLASS.search(kind)) or _is_stack(module) or _is_list_of_experts(name, module)


def _behind(family: str, kind: str) -> str:
    """`kind` without the words that it begins with like `family`: Qwen2MoeMLP behind Qwen2MoeModel is MLP."""
    words, known = WORD.findall(kind), WORD.findall(family)
    same = 0
    while same < min(len(words), len(known)) and words[same] == known[same]:
        same += 1
    return "".join(words[same:])


def _is_stack(module: nn.Module) -> bool:
    """Two or more parameters `[E, ., .]` with one E."""
    stacked = [p.shape[0] for p in module.parameters(recurse=False) if p.ndim == 3]
    return len(stacked) > 1 and stacked[0] > 1 and len(set(stacked)) == 1


def _is_list_of_experts(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.ModuleDict) and name.endswith("experts") and len(module) > 1
