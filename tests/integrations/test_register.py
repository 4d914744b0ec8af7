"""register: the name in both maps, and experts that are bound by their first call."""

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, use_experts_implementation

from moesaic.errors import PatchError
from moesaic.integrations.transformers import GapCode, patch, register, unpatch
from tests.integrations.families import ids, output, tiny


@pytest.mark.parametrize("name", ["moesaic", "moesaic_by_another_name"])
def test_the_name_is_known_wherever_transformers_looks(name):
    register(name)
    assert ALL_EXPERTS_FUNCTIONS[name] is ALL_FP8_EXPERTS_FUNCTIONS[name]
    model = tiny("mixtral")
    wanted = output(model)
    model.set_experts_implementation(name)
    torch.testing.assert_close(output(model), wanted)


def test_a_model_can_be_loaded_with_the_name(tmp_path):
    register()
    model = tiny("gpt_oss")
    wanted = output(model)
    model.save_pretrained(tmp_path)
    loaded = model.__class__.from_pretrained(tmp_path, experts_implementation="moesaic").eval()
    torch.testing.assert_close(output(loaded), wanted)
    assert loaded.get_experts_implementation() == {"": "moesaic"}
    loaded.save_pretrained(tmp_path / "again")
    again = model.__class__.from_pretrained(tmp_path / "again", experts_implementation="eager").eval()
    torch.testing.assert_close(output(again), wanted, rtol=0, atol=0)


def test_a_layer_bound_by_its_first_call_is_given_back_before_patching():
    register()
    model = tiny("mixtral")
    model.set_experts_implementation("moesaic")
    wanted = output(model)
    with pytest.raises(PatchError, match="patched already"):
        patch(model)
    unpatch(model)
    assert model.get_experts_implementation() == {"": "moesaic"}
    assert len(patch(model).covered) == 2
    torch.testing.assert_close(output(model), wanted)


def test_a_layer_that_cannot_be_bound_says_why_in_its_first_call():
    register()
    model = tiny("mixtral")
    model.model.layers[1].mlp.experts.act_fn = ACT2FN["mish"]
    model.set_experts_implementation("moesaic")
    with pytest.raises(PatchError, match=r"activation not recognised.*set_experts_implementation"):
        output(model)


def test_patching_in_part_a_model_that_was_registered_does_not_go_in_circles():
    register()
    model = tiny("mixtral")
    model.model.layers[1].mlp.experts.act_fn = ACT2FN["mish"]
    model.set_experts_implementation("moesaic")
    assert len(patch(model).covered) == 1
    with pytest.raises(PatchError, match="activation not recognised"):
        output(model)


def fp8_experts():
    """One module as transformers puts it into a model with FP8 weights."""

    class TinyFP8Experts(FP8Experts):
        pass

    config = tiny("mixtral").config
    kind = use_experts_implementation(TinyFP8Experts, experts_interface=ALL_FP8_EXPERTS_FUNCTIONS)
    return kind(config, block_size=(128, 128))


def test_fp8_experts_say_that_they_are_not_served():
    register()
    module = fp8_experts()
    module.config._experts_implementation = "moesaic"
    with pytest.raises(PatchError, match=r"FP8 experts as transformers loads them.*transformers\.load"):
        module(torch.randn(5, 32), torch.zeros(5, 2, dtype=torch.int64), torch.ones(5, 2))


def test_fp8_experts_beside_others_run_as_before(monkeypatch):
    fp8 = fp8_experts()

    def answer(module, hidden_states, top_k_index, top_k_weights):
        return torch.full_like(hidden_states, 7)

    monkeypatch.setitem(ALL_FP8_EXPERTS_FUNCTIONS._global_mapping, "answer", answer)
    model = tiny("mixtral")
    model.model.layers[1].mlp.experts = fp8
    fp8.config = model.config
    model.config._experts_implementation = "answer"
    (layer,) = patch(model).not_covered
    assert [gap.code for gap in layer.gaps] == [GapCode.SCHEME]
    assert fp8(torch.randn(5, 32), torch.zeros(5, 2, dtype=torch.int64), torch.ones(5, 2)).unique() == 7


def test_stand_alone_experts_without_a_model_are_bound_too():
    register()
    model = tiny("mixtral")
    holder = nn.ModuleList([model.model.layers[0].mlp])
    model.set_experts_implementation("moesaic")
    with torch.no_grad():
        assert torch.isfinite(holder[0](torch.randn(1, ids().shape[1], 32))).all()
