"""patch and unpatch: the report, what is refused, what is left as it was."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from transformers.activations import ACT2FN

from moesaic import BACKENDS, OutputNorm, ReLU2, SwiGLU, TorchGrouped
from moesaic.errors import GradientError, PatchError
from moesaic.integrations.transformers import GapCode, patch, unpatch
from moesaic.integrations.transformers.recognise import top_k_of
from tests.integrations.families import here, ids, output, tiny
from tests.integrations.packing import Packing
from tests.unchecked import unchecked

GROUPED = (TorchGrouped(),)


def only_gap(model):
    """The one gap of the one layer that is not covered."""
    (not_covered,) = patch(model, backends=GROUPED).not_covered
    (gap,) = not_covered.gaps
    return gap


def experts(model, layer=-1):
    return model.model.layers[layer].mlp.experts


def test_the_report_says_what_runs_where():
    report = patch(tiny("gpt_oss"), backends=GROUPED)
    assert [layer.name for layer in report.layers] == ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]
    (first, _) = report.layers
    assert first.covered
    assert first.module == "GptOssExperts"
    assert first.backend == TorchGrouped()
    assert first.problem.activation == SwiGLU(alpha=1.702, beta=1.0, limit=7.0)
    assert (first.problem.num_experts, first.problem.top_k, first.problem.bias) == (8, 2, True)
    assert (first.problem.hidden_size, first.problem.intermediate_size) == (32, 48)
    text = str(report)
    assert text.startswith(
        "2 of 2 MoE layers run through moesaic\n  model.layers.0.mlp.experts  torch_grouped  problem 1"
    )
    assert text.count("Problem(") == 1


def test_a_latent_hidden_size_is_read_from_the_weights():
    (layer,) = patch(tiny("nemotron_h")).layers
    assert layer.problem.hidden_size == 16
    assert layer.problem.activation == ReLU2()


@pytest.mark.parametrize("family", here("muse_spark"))
def test_a_norm_of_expert_outputs_is_taken_over(family):
    (layer, _) = patch(tiny(family)).layers
    assert layer.problem.output_norm == OutputNorm(eps=1e-8)


@pytest.mark.parametrize(
    ("family", "changes", "top_k"),
    [("mixtral", {}, 2), ("ernie4_5_moe", {"moe_k": 3}, 3), ("gemma4", {}, 2), ("hunyuan_v1_moe", {"moe_topk": 4}, 4)],
)
def test_top_k_is_the_configurations(family, changes, top_k):
    assert patch(tiny(family, **changes)).layers[0].problem.top_k == top_k


def test_top_k_without_a_number_in_the_configuration_is_every_expert():
    assert top_k_of(SimpleNamespace(num_experts_per_tok=None, moe_topk=[2, 4, 3]), 8) == 4
    assert top_k_of(SimpleNamespace(num_experts_per_tok=None, moe_topk=[]), 8) == 8
    assert top_k_of(SimpleNamespace(), 8) == 8


def test_an_unknown_activation_is_reported_and_its_layer_runs_as_before():
    model = tiny("mixtral")
    experts(model).act_fn = ACT2FN["mish"]
    wanted = output(model)
    gap = only_gap(model)
    assert gap.code is GapCode.ACTIVATION
    assert "activation not recognised" in gap.text
    torch.testing.assert_close(output(model), wanted)


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_a_layer_that_is_not_covered_keeps_its_implementation(implementation):
    model = tiny("mixtral")
    model.set_experts_implementation(implementation)
    experts(model).act_fn = ACT2FN["mish"]
    wanted = output(model)
    assert not patch(model).layers[1].covered
    torch.testing.assert_close(output(model), wanted)
    unpatch(model)
    assert model.get_experts_implementation() == {"": implementation}


def test_a_flag_that_contradicts_the_gate_is_reported():
    model = tiny("mixtral")
    experts(model).is_concatenated = False
    assert only_gap(model).code is GapCode.ACTIVATION


def test_parameters_that_are_not_known_are_reported():
    model = tiny("mixtral")
    experts(model).scale = nn.Parameter(torch.ones(8))
    assert only_gap(model).code is GapCode.PARAMETERS


@pytest.mark.parametrize("family", here("muse_spark"))
def test_an_unknown_norm_is_reported(family):
    model = tiny(family)
    model.layers[0].mlp.experts.post_expert_norm = nn.RMSNorm(16, eps=1e-8)
    (layer,) = patch(model).not_covered
    assert [gap.code for gap in layer.gaps] == [GapCode.OUTPUT_NORM]


def test_weights_that_are_not_there_are_reported():
    model = tiny("mixtral")
    experts(model).to("meta")
    assert only_gap(model).code is GapCode.PLACEMENT


def test_weights_in_a_wrapper_are_reported():
    model = tiny("mixtral")
    plain = experts(model).down_proj.detach()
    experts(model).down_proj = nn.Parameter(TwoTensor(plain, plain))
    assert only_gap(model).code is GapCode.PLACEMENT


def test_stored_formats_that_are_not_served_are_reported():
    model = tiny("mixtral")
    experts(model).to(torch.float8_e4m3fn)
    assert only_gap(model).code is GapCode.SCHEME


def test_a_problem_without_a_backend_is_reported_with_every_reason():
    model = tiny("mixtral", hidden_size=36, intermediate_size=42, num_attention_heads=2)
    with pytest.raises(PatchError, match=r"backend: torch_grouped \(intermediate_size: needs a multiple of 4"):
        patch(model, backends=GROUPED)
    with pytest.raises(PatchError, match="no backends were given"):
        patch(model, backends=())


def test_experts_with_a_configuration_of_their_own_are_switched_too():
    model = tiny("mixtral")
    own = experts(model).config = copy.deepcopy(model.config)  # as in the vision tower of dots3_note
    wanted = output(model)
    patch(model, backends=(Packing(),))
    assert own._experts_implementation == "moesaic"
    torch.testing.assert_close(output(model), wanted)
    unpatch(model)
    assert own._experts_implementation == "eager"


def test_strict_refuses_a_model_that_is_covered_in_part():
    model = tiny("mixtral")
    experts(model).act_fn = ACT2FN["mish"]
    wanted = output(model)
    with pytest.raises(PatchError, match="strict=True") as raised:
        patch(model, strict=True)
    assert "activation not recognised" in str(raised.value)
    assert model.get_experts_implementation() == {"": "eager"}
    torch.testing.assert_close(output(model), wanted, rtol=0, atol=0)


def test_patching_twice_is_an_error():
    model = tiny("mixtral")
    patch(model)
    with pytest.raises(PatchError, match=r"patched already \(2 layers.*unpatch"):
        patch(model)


@pytest.mark.parametrize("backends", [BACKENDS, GROUPED, (Packing(),)], ids=lambda b: b[0].name)
@pytest.mark.parametrize("family", here("mixtral", "gpt_oss", "nemotron_h", "muse_spark", "aria"))
def test_unpatch_gives_everything_back(family, backends):
    model = tiny(family)
    wanted = output(model)
    before = {name: (value.clone(), value.is_contiguous()) for name, value in model.state_dict().items()}
    attributes = [set(vars(module)) for module in model.modules()]
    patch(model, backends=backends)
    unpatch(model)
    assert [set(vars(module)) for module in model.modules()] == attributes
    assert model.get_experts_implementation() == {"": "eager"}
    for name, value in model.state_dict().items():
        assert (torch.equal(value, before[name][0]), value.is_contiguous()) == (True, before[name][1])
    assert all(parameter.requires_grad and not parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(output(model), wanted, rtol=0, atol=0)
    model.load_state_dict({name: value for name, (value, _) in before.items()})
    model.to(torch.float64)
    patch(model.float())


def test_unpatching_an_unpatched_model_is_an_error():
    with pytest.raises(PatchError, match="not patched"):
        unpatch(tiny("mixtral"))


def test_only_models_of_transformers_are_patched():
    with unchecked(), pytest.raises(PatchError, match="a Linear cannot be patched"):
        patch(nn.Linear(2, 2))


@pytest.mark.parametrize("sentinel", [-1, 8, 2**40, -(2**40)])
def test_both_conventions_for_inactive_slots_are_served(sentinel):
    model = tiny("mixtral")
    module = experts(model)
    x, index = torch.randn(5, 32), torch.randint(0, 8, (5, 2))
    weights = torch.rand(5, 2)
    inactive = torch.tensor([[1, 0], [0, 0], [1, 1], [0, 1], [0, 0]], dtype=torch.bool)
    with torch.no_grad():
        wanted = module(x, index, weights.masked_fill(inactive, 0))
        patch(model)
        got = module(x, index.masked_fill(inactive, sentinel), weights.masked_fill(inactive, float("nan")))
    torch.testing.assert_close(got, wanted)


def test_router_weights_in_the_models_dtype_are_taken():
    model = tiny("mixtral").to(torch.bfloat16)
    module = experts(model)
    inputs = torch.randn(5, 32).bfloat16(), torch.randint(0, 8, (5, 2)), torch.rand(5, 2).bfloat16()
    with torch.no_grad():
        wanted = module(*inputs)
        patch(model)
        got = module(*inputs)
    assert got.dtype == torch.bfloat16
    assert (got - wanted).float().norm() < 0.02 * wanted.float().norm()


def test_fewer_slots_than_top_k_are_taken_and_more_are_not():
    model = tiny("mixtral")
    module = experts(model)
    patch(model)
    with torch.no_grad():
        assert module(torch.randn(5, 32), torch.zeros(5, 1, dtype=torch.int64), torch.ones(5, 1)).shape == (5, 32)
        with pytest.raises(ValueError, match="top_k=2"):
            module(torch.randn(5, 32), torch.zeros(5, 3, dtype=torch.int64), torch.ones(5, 3))


def test_autocast_casts_as_transformers_does():
    model = tiny("mixtral").to(torch.bfloat16)
    module = experts(model)
    inputs = torch.randn(5, 32), torch.randint(0, 8, (5, 2)), torch.rand(5, 2)
    patch(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert module(*inputs).dtype == torch.float32
    with torch.no_grad(), pytest.raises(ValueError, match="convert the rows"):
        module(*inputs)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("family", here("mixtral", "aria", "openai_privacy_filter"))
def test_gradients_of_a_differentiable_backend_are_those_of_eager(family, mode):
    wanted, model = tiny(family), tiny(family)
    with mode():
        patch(model, backends=GROUPED)
    for each in (wanted, model):
        first = each(input_ids=ids())[0]
        (first * torch.linspace(-1, 1, first.numel()).view(first.shape)).sum().backward()
    for (name, a), (_, b) in zip(wanted.named_parameters(), model.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-5 * a.grad.abs().max().item(), msg=name)


def test_a_step_of_an_optimizer_is_seen_by_the_backend():
    model = tiny("mixtral")
    patch(model, backends=GROUPED)
    before = output(model)
    with torch.no_grad():
        experts(model).down_proj.mul_(2)
    assert not torch.equal(output(model), before)


@pytest.mark.parametrize(
    ("family", "backends", "message"),
    [
        ("mixtral", (Packing(),), r"backend packing, which computes no gradients: call the model under torch.no_grad"),
        (
            "gpt_oss",
            GROUPED,
            r"without gate_up_proj, gate_up_proj_bias: the backend torch_grouped runs on a copy",
        ),
    ],
)
def test_gradients_that_would_be_lost_are_an_error(family, backends, message):
    model = tiny(family)
    patch(model, backends=backends)
    with pytest.raises(GradientError, match=message):
        model(input_ids=ids())
    assert output(model) is not None


def test_frozen_experts_let_gradients_through():
    model = tiny("gpt_oss")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("experts" not in name)
    patch(model, backends=GROUPED)
    model(input_ids=ids(), labels=ids()).loss.backward()
    assert model.model.embed_tokens.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("family", here("mixtral", "aria", "gpt_oss"))
def test_experts_that_are_unfrozen_later_are_an_error(family):
    model = tiny(family).requires_grad_(False)
    patch(model, backends=GROUPED)
    experts(model).down_proj.requires_grad_(True)
    with pytest.raises(GradientError, match="would train without down_proj"):
        model(input_ids=ids())


@pytest.mark.parametrize("backends", [GROUPED, (Packing(),)], ids=lambda b: b[0].name)
def test_a_patched_model_is_not_moved(backends):
    model = tiny("mixtral")
    wanted = output(model)
    patch(model, backends=backends)
    for move in (model.half, model.double, lambda: model.to("meta"), lambda: experts(model).to(torch.bfloat16)):
        with pytest.raises(PatchError, match=r"unpatch\(model\), move it"):
            move()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    torch.testing.assert_close(output(model.to("cpu").float().eval()), wanted)


@pytest.mark.parametrize("backends", [GROUPED, (Packing(),)], ids=lambda b: b[0].name)
def test_a_copy_of_a_patched_model_stands_on_its_own(backends):
    model = tiny("mixtral").requires_grad_(False)
    wanted = output(model)
    patch(model, backends=backends)
    other = copy.deepcopy(model)
    unpatch(model)
    model.to(torch.float64)
    torch.testing.assert_close(output(other), wanted)
    with pytest.raises(PatchError):
        other.double()
    unpatch(other)
    torch.testing.assert_close(output(other), wanted, rtol=0, atol=0)


def test_switching_away_from_a_released_layer_is_an_error():
    model = tiny("mixtral")
    wanted = output(model)
    patch(model, backends=(Packing(),))
    model.set_experts_implementation("eager")
    with pytest.raises(PatchError, match=r"is to run 'eager', but its weights were given to the backend packing"):
        output(model)
    model.set_experts_implementation("moesaic")
    torch.testing.assert_close(output(model), wanted)


def test_switching_away_from_weights_in_place_is_allowed():
    model = tiny("mixtral")
    wanted = output(model)
    patch(model, backends=GROUPED)
    model.set_experts_implementation("eager")
    torch.testing.assert_close(output(model), wanted, rtol=0, atol=0)
