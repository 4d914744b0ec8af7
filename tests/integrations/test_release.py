"""Weights that a backend packs: released, saved, loaded, and given back when something fails."""

import copy
import gc
import weakref

import pytest
import torch

from moesaic import BACKENDS, Reference, TorchGrouped
from moesaic.errors import PatchError
from moesaic.integrations.transformers import patch, unpatch
from tests.integrations.families import here, output, tiny
from tests.integrations.packing import FailsOnLayer, Packing

SOME = here("mixtral", "gpt_oss", "nemotron_h", "muse_spark", "aria", "openai_privacy_filter")


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def storages(model):
    """Weak references to the memory of all experts' large weights."""
    large = [p for name, p in model.named_parameters() if "experts" in name and p.ndim == 3]
    return [weakref.ref(parameter.untyped_storage()) for parameter in large]


def alive(references):
    gc.collect()
    return [reference() is not None for reference in references]


@pytest.mark.parametrize("family", SOME)
def test_a_packed_layer_releases_the_models_weights(family):
    model = tiny(family)
    references = storages(model)
    patch(model, backends=(Packing(),))
    assert not any(alive(references))
    assert sum(parameter.is_meta for parameter in model.parameters()) >= len(references)


@pytest.mark.parametrize("backend", [TorchGrouped(), Reference()], ids=lambda b: b.name)
@pytest.mark.parametrize("family", here("mixtral", "aria", "openai_privacy_filter"))
def test_weights_that_a_backend_uses_as_they_are_stay(family, backend):
    model = tiny(family)
    references = storages(model)
    patch(model, backends=(backend,))
    assert all(alive(references))
    assert not any(parameter.is_meta for parameter in model.parameters())


def test_only_alternating_weights_are_copied_for_a_backend_that_uses_views():
    model = tiny("gpt_oss")
    patch(model, backends=(TorchGrouped(),))
    released = {name.rpartition(".")[2] for name, parameter in model.named_parameters() if parameter.is_meta}
    assert released == {"gate_up_proj", "gate_up_proj_bias"}


def test_layers_are_released_one_by_one(monkeypatch):
    model = tiny("mixtral", num_hidden_layers=4)
    references, seen = storages(model), []
    packed = Packing.prepare

    def prepare(self, weights, problem):
        seen.append(sum(alive(references)))
        return packed(self, weights, problem)

    monkeypatch.setattr(Packing, "prepare", prepare)
    patch(model, backends=(Packing(),))
    assert seen == [8, 6, 4, 2]  # two weights a layer: those of the layers before are gone


def test_an_alternating_weight_is_released_before_it_is_packed(monkeypatch):
    model = tiny("gpt_oss")
    references, seen = storages(model), []
    packed = Packing.prepare

    def prepare(self, weights, problem):
        seen.append(alive(references))
        return packed(self, weights, problem)

    monkeypatch.setattr(Packing, "prepare", prepare)
    patch(model, backends=(Packing(),))
    assert seen[0] == [False, True, True, True]


@pytest.mark.parametrize("backends", [BACKENDS, (Packing(),), (TorchGrouped(),)], ids=lambda b: b[0].name)
@pytest.mark.parametrize("family", SOME)
def test_state_dict_has_the_original_tensors(family, backends):
    model = tiny(family)
    before = state(model)
    patch(model, backends=backends)
    after = model.state_dict()
    assert list(after) == list(before)
    for name, value in before.items():
        assert torch.equal(after[name], value), name
        assert (after[name].dtype, after[name].is_contiguous()) == (value.dtype, True), name
    inner = model.get_submodule("model" if "model" in dict(model.named_children()) else "layers").state_dict()
    assert not any(value.is_meta for value in inner.values())


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "nemotron_h", "qwen3_moe"])
def test_save_pretrained_saves_the_original_weights(family, tmp_path):
    model = tiny(family)
    before, wanted = state(model), output(model)
    patch(model, backends=(Packing(),))
    model.save_pretrained(tmp_path)
    loaded = model.__class__.from_pretrained(tmp_path, experts_implementation="eager")
    assert loaded.config._experts_implementation == "eager"
    after = loaded.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    torch.testing.assert_close(output(loaded.eval()), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("backends", [(Packing(),), (TorchGrouped(),)], ids=lambda b: b[0].name)
def test_loading_into_a_patched_model_is_an_error(backends):
    model = tiny("mixtral")
    weights = state(model)
    patch(model, backends=backends)
    with pytest.raises(PatchError, match=r"call unpatch\(model\), load, and patch again"):
        model.load_state_dict(weights)


@pytest.mark.parametrize("fault", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_a_failure_on_the_third_layer_leaves_the_model_as_it_was(family, fault):
    model = tiny(family, num_hidden_layers=4)
    before, wanted = state(model), output(model)
    attributes = [set(vars(module)) for module in model.modules()]
    backend = FailsOnLayer(3, fault)
    with pytest.raises(type(fault)) as raised:
        patch(model, backends=(backend,))
    assert raised.value is fault
    assert "left as it was" in fault.__notes__[-1]
    assert len(backend.prepared) == 3
    assert [set(vars(module)) for module in model.modules()] == attributes
    assert model.get_experts_implementation() == {"": "eager"}
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(not parameter.is_meta and parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(output(model), wanted, rtol=0, atol=0)
    assert len(patch(model).covered) == 4


def test_a_failure_to_switch_leaves_the_model_as_it_was(monkeypatch):
    model = tiny("mixtral")
    wanted = output(model)
    fault = ValueError("not a valid implementation")

    def refuse(name):
        raise fault

    monkeypatch.setattr(model, "set_experts_implementation", refuse)
    with pytest.raises(ValueError, match="not a valid implementation") as raised:
        patch(model, backends=(Packing(),))
    assert raised.value is fault
    assert not any(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(output(model), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", SOME)
def test_the_default_backends_give_every_weight_back(family, dtype):
    # bfloat16 is packed by oneDNN on a CPU, in tensors without an address of their own.
    model = tiny(family).to(dtype)
    before, expected = state(model), output(model)
    patch(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    unpatch(model)
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(output(model), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_patched_model_is_copied_saved_and_loaded_whole(tmp_path, dtype):
    model = tiny("mixtral").to(dtype)
    patch(model)
    expected = output(model)
    torch.save(model, tmp_path / "model.pt")
    for again in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert torch.equal(output(again), expected)
        with pytest.raises(PatchError, match="moved or converted"):
            again.half()


def test_loading_into_a_patched_model_changes_nothing_at_all():
    model, other = tiny("mixtral"), tiny("mixtral")
    for parameter in other.parameters():
        parameter.data.add_(1)
    patch(model)
    before = state(model)
    with pytest.raises(PatchError, match="call unpatch"):
        model.load_state_dict(other.state_dict())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    unpatch(model)
    model.load_state_dict(other.state_dict())
