"""MoE layers are found wherever they are: behind the interface, beside it, in parts of a model, used twice."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from moesaic.errors import PatchError
from moesaic.integrations.transformers import GapCode, patch
from moesaic.integrations.transformers.discovery import find_layers
from tests.integrations.families import HERE, OUTSIDE, OUTSIDE_HERE, output, tiny

EXPECTED = {
    "dbrx": ["DbrxExperts"],
    "jetmoe": ["JetMoeMoE", "JetMoeMoA"] * 2,
    "llama4": ["Llama4TextMoe"] * 2,
    "longcat_flash": ["LongcatFlashMoE"],
    "nllb_moe": ["NllbMoeSparseMLP"] * 2,
    "step3p7": ["Step3p7SparseMoeBlock"],
    "switch_transformers": ["SwitchTransformersSparseMLP"] * 2,
}
"""The blocks that a report names; JetMoE has experts in its attention too."""


def test_every_family_outside_the_interface_is_looked_for():
    assert EXPECTED.keys() == OUTSIDE.keys()


@pytest.mark.parametrize("family", OUTSIDE_HERE)
def test_families_outside_the_interface_are_named_and_left_alone(family):
    model = tiny(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(PatchError, match="no layer can run through moesaic") as raised:
        patch(model)
    text = str(raised.value)
    assert f"0 of {len(EXPECTED[family])} MoE layers" in text
    for kind in EXPECTED[family]:
        assert f"interface: {kind} does not go through transformers' experts interface" in text
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("family", HERE)
def test_nothing_but_the_experts_is_named(family):
    found = find_layers(tiny(family))
    assert found
    assert all(layer.decorated for layer in found)


def test_a_dense_model_has_no_layers():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    with pytest.raises(PatchError, match="0 of 0 MoE layers"):
        patch(model)


class Stack(nn.Module):
    """Stacked expert weights in a class whose name says nothing."""

    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.zeros(4, 8, 6)), nn.Parameter(torch.zeros(4, 6, 8))


class Lists(nn.Module):
    """The older way: a list of dense experts."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.shared_experts = nn.Linear(6, 6)
        self.conv = nn.Conv1d(6, 6, 3)


@pytest.mark.parametrize(("kind", "name"), [(Stack, "block"), (Lists, "block.experts")])
def test_experts_are_found_by_their_structure(kind, name):
    assert [layer.name for layer in find_layers(nn.ModuleDict({"block": kind()}))] == [name]


def test_a_layer_that_is_used_twice_is_found_once():
    model = tiny("mixtral")
    model.model.layers[1].mlp.experts = model.model.layers[0].mlp.experts
    wanted = output(model)
    (layer,) = patch(model).layers
    assert layer.covered
    torch.testing.assert_close(output(model), wanted)


VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32,
          "deepstack_visual_indexes": [0], "num_hidden_layers": 1, "num_attention_heads": 2}  # fmt: skip


def test_experts_of_a_part_with_its_own_configuration_are_covered():
    text = tiny("qwen3_vl_moe").config.to_dict()
    config = AutoConfig.for_model("qwen3_vl_moe", text_config=text, vision_config=VISION)
    from transformers import Qwen3VLMoeForConditionalGeneration  # noqa: PLC0415 - slow to import

    torch.manual_seed(0)
    model = Qwen3VLMoeForConditionalGeneration(config).eval()
    model.set_experts_implementation("eager")
    wanted = output(model)
    report = patch(model)
    assert len(report.covered) == 2
    assert model.get_experts_implementation()["text_config"] == "moesaic"
    torch.testing.assert_close(output(model), wanted)


def test_gap_codes_are_told_apart_from_text():
    model = tiny("mixtral")
    model.model.layers[0].mlp = nn.ModuleDict({"experts": Stack()})
    (layer,) = patch(model).not_covered
    assert (layer.name, [gap.code for gap in layer.gaps]) == ("model.layers.0.mlp.experts", [GapCode.INTERFACE])
    assert (layer.problem, layer.backend) == (None, None)
