"""The memory of loading: the bytes of the checkpoint, never a plain copy of an expert layer."""

import gc
import warnings
import weakref
from functools import partial

import pytest
import torch
import transformers

from moesaic import CpuJitQuantized, CpuQuantized
from moesaic.integrations.transformers import load, patch
from moesaic.integrations.transformers.discovery import find_layers
from moesaic.integrations.transformers.state import held_bytes, packed_weights
from tests.backends.peak_memory import peak_bytes
from tests.checkpoints.examples import named
from tests.integrations.stored import quantized

LAYERS, SIZE = 4, 256
PLAIN_LAYER = 8 * 3 * SIZE * SIZE * 2
"""Bytes of the experts of one layer in bfloat16."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A model whose experts are nearly all of it."""
    sizes = {"hidden_size": SIZE, "moe_intermediate_size": SIZE, "num_hidden_layers": LAYERS}
    return quantized("qwen3_moe", named("ct-int4"), tmp_path_factory.mktemp("memory"), **sizes)


def peak_of(call, directory):
    """(result, bytes beyond the mapped files): torch counts those as if they were allocated."""
    transformers.logging.disable_progress_bar()
    kept = []
    gc.collect()  # or what other tests left is freed meanwhile, and counted
    peak = peak_bytes(lambda: kept.append(call()))
    return kept[0], peak - sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def test_the_peak_of_loading_is_the_packed_model(directory, monkeypatch):
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # or threads that torch does not watch read the files
    kind = transformers.Qwen3MoeForCausalLM
    model, peak = peak_of(partial(load, kind, directory, dtype=torch.bfloat16), directory)
    packed = sum(held_bytes(layer.module) for layer in find_layers(model))
    rest = sum(p.numel() * p.element_size() for p in model.parameters() if not p.is_meta)
    assert packed < 0.32 * LAYERS * PLAIN_LAYER
    assert peak <= packed + rest + PLAIN_LAYER // 100
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, theirs = peak_of(partial(kind.from_pretrained, directory, dtype=torch.bfloat16), directory)
    assert theirs > LAYERS * PLAIN_LAYER, "the comparison cannot see a plain copy"


def test_patching_copies_nothing_where_codes_are_used_in_place(directory):
    model = load(transformers.Qwen3MoeForCausalLM, directory, dtype=torch.float32)
    packed = held_bytes(find_layers(model)[0].module)
    assert peak_bytes(partial(patch, model)) < packed  # of which two thirds are the grid that finds the activation


def test_packed_layers_are_released_one_by_one(directory, monkeypatch):
    model, seen = load(transformers.Qwen3MoeForCausalLM, directory, dtype=torch.bfloat16), []
    codes = [weakref.ref(packed_weights(layer.module).gate_up.data.untyped_storage()) for layer in find_layers(model)]
    for kind in (CpuQuantized, CpuJitQuantized):  # in bfloat16 both make codes of their own

        def counted(self, weights, problem, prepare=kind.prepare):
            gc.collect()
            seen.append(sum(code() is not None for code in codes))
            return prepare(self, weights, problem)

        monkeypatch.setattr(kind, "prepare", counted)
    patch(model)
    assert seen == [4, 3, 2, 1]
