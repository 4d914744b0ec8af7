"""Expert-parallel models of transformers through moesaic's dispatchers, against the model that has all experts."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from moesaic.dispatch.threads import in_threads, ranks_in_threads
from moesaic.errors import PatchError
from moesaic.integrations.transformers import register
from moesaic.integrations.transformers.dispatched import DISPATCHERS, DispatchedExperts
from moesaic.integrations.transformers.expert_parallel import dispatched_plan
from tests.rank_processes import two_ranks

EXPERTS, HIDDEN = 6, 20


def experts(num_local=EXPERTS, first=0):
    """An experts module with `num_local` of the six experts."""
    config = Qwen3MoeConfig(hidden_size=HIDDEN, moe_intermediate_size=12, num_experts=num_local)
    config._experts_implementation = "eager"
    module, generator = Qwen3MoeExperts(config), torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        values = torch.randn(EXPERTS, *parameter.shape[1:], generator=generator) / parameter.shape[-1] ** 0.5
        parameter.data = values[first : first + num_local].clone()
    return module.requires_grad_(requires_grad=False)


def tokens(count, seed=0):
    """Hidden states, ids of five of the six experts, weights."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand(count, EXPERTS - 1, generator=generator).argsort(-1)[:, :3]
    return torch.randn(count, HIDDEN, generator=generator), ids, torch.rand(count, 3, generator=generator)


each_dispatcher = pytest.mark.parametrize("dispatcher", DISPATCHERS)


@each_dispatcher
@pytest.mark.parametrize("count", [0, 1, 5, 16])
def test_ranks_that_share_a_batch_take_a_share_each(dispatcher, count):
    ranks, batch, handed = ranks_in_threads(3, timeout=20.0), ranks_in_threads(3, timeout=20.0), tokens(count)

    def work(own, sharing):
        module = experts(2, 2 * own.rank)
        return DispatchedExperts(module, dispatcher, own.group, sharing.group, "cpu")(*handed)

    for got in in_threads(work, ranks, batch):
        torch.testing.assert_close(got, experts()(*handed) if count else torch.zeros(0, HIDDEN), rtol=1e-5, atol=1e-5)


@each_dispatcher
def test_ranks_with_batches_of_their_own(dispatcher):
    ranks, handed = ranks_in_threads(2, timeout=20.0), [tokens(7, 1), tokens(0, 2)]
    alone = [ranks_in_threads(1)[0] for _ in ranks]

    def work(own, sharing, given):
        return DispatchedExperts(experts(3, 3 * own.rank), dispatcher, own.group, sharing.group, "cpu")(*given)

    got, nothing = in_threads(work, ranks, alone, handed)
    torch.testing.assert_close(got, experts()(*handed[0]), rtol=1e-5, atol=1e-5)
    assert nothing.shape == (0, HIDDEN)


class Noting(nn.Module):
    """Experts that return what they get and note how it was handed to them."""

    def __init__(self, config):
        super().__init__()
        self.num_experts, self.config, self.calls = 3, config, []

    def forward(self, hidden_states, top_k_index, top_k_weights):
        self.calls.append((hidden_states, top_k_index, top_k_weights))
        return hidden_states.float()


def test_experts_elsewhere_are_told_in_transformers_convention_and_dtypes_are_kept():
    ranks, alone = ranks_in_threads(2, timeout=20.0), [ranks_in_threads(1)[0] for _ in range(2)]
    hidden, ids, weights = tokens(6)
    modules = [Noting(experts().config) for _ in ranks]

    def work(own, sharing, module):
        dispatched = DispatchedExperts(module, "moesaic_all_to_all", own.group, sharing.group, "cpu")
        return dispatched(hidden.bfloat16(), ids, weights.bfloat16())

    for output in in_threads(work, ranks, alone, modules):
        assert output.dtype == torch.bfloat16
        assert output.shape == hidden.shape
    for module in modules:
        ((rows, index, given),) = module.calls
        assert rows.is_contiguous()
        assert rows.dtype == torch.bfloat16
        assert (index.dtype, given.dtype) == (torch.int64, torch.float32)
        assert index.min() >= 0
        assert index.max() == 3  # one past the last
        assert torch.equal(given == 0, index == 3)


@each_dispatcher
def test_experts_whose_memory_fsdp_manages_are_not_given_to_a_backend(dispatcher):
    register()
    (own,), handed, module = ranks_in_threads(1), tokens(5), experts()
    module.__class__ = type("FSDPQwen3MoeExperts", (FSDPModule, module.__class__), {})  # as `fully_shard` makes it
    dispatched = DispatchedExperts(module, dispatcher, own.group, own.group, "cpu")
    torch.testing.assert_close(dispatched(*handed), experts()(*handed), rtol=1e-5, atol=1e-5)
    module.config._experts_implementation = "moesaic"
    with pytest.raises(PatchError, match=r"FSDPQwen3MoeExperts is managed by FSDP, .* load with fsdp_size=1"):
        dispatched(*handed)


def test_experts_that_get_no_token_are_not_run():
    ranks, alone = ranks_in_threads(2, timeout=20.0), [ranks_in_threads(1)[0] for _ in range(2)]
    hidden, ids, weights = tokens(6)
    modules = [Noting(experts().config) for _ in ranks]

    def work(own, sharing, module):
        dispatched = DispatchedExperts(module, "moesaic_all_to_all", own.group, sharing.group, "cpu")
        return dispatched(hidden, ids % 3, weights)

    in_threads(work, ranks, alone, modules)
    assert [len(module.calls) for module in modules] == [1, 0]


def test_the_plan_of_5_17_reaches_experts_through_a_dispatcher():
    plan = {
        "layers.*.mlp.gate": "ep_router",
        "layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
        "layers.*.mlp.experts": "moe_tp_experts",
    }
    assert dispatched_plan(plan, "moesaic_all_to_all") == {
        "layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
        "layers.*.mlp.experts": "moesaic_all_to_all",
    }
    with pytest.raises(PatchError, match="the dispatcher is 'all_to_all', but it needs one of 'moesaic_all_to_all', "):
        dispatched_plan(plan, "all_to_all")
    with pytest.raises(PatchError, match="has no rule 'moe_tp_experts'"):
        dispatched_plan({"layers.*.mlp.experts": "ep_dispatch_experts"}, "moesaic_all_to_all")


@pytest.mark.dist
def test_models_of_two_processes(tmp_path):
    ended = two_ranks("tests.integrations.expert_parallel_rank", tmp_path / "init", TRANSFORMERS_VERBOSITY="error")
    assert [status for status, *_ in ended] == [0, 0], ended
    for rank, (_, output, _) in enumerate(ended):
        name = ["AllToAll", "AllGather"][rank]
        differ = f"{name}: the ranks of a layer differ in dispatcher: AllToAll on rank 0, but AllGather on rank 1"
        assert output.splitlines() == [
            "Qwen3MoeForCausalLM moesaic_all_to_all eager",
            "Qwen3MoeForCausalLM moesaic_all_gather grouped_mm",
            "GptOssForCausalLM moesaic_all_to_all moesaic",
            "all experts are saved",
            "all experts are given back",
            "GptOssForCausalLM auto moesaic",
            "all experts are saved",
            "all experts are given back",
            "own batches moesaic_all_to_all",
            "style moesaic_all_to_all",
            "own batches moesaic_all_gather",
            "style moesaic_all_gather",
            "gradients are refused",
            differ,
        ]
