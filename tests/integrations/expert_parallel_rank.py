"""One of two ranks, as a process: `python -m tests.integrations.expert_parallel_rank RANK FILE`.

It makes expert-parallel models of transformers in many ways and compares each with the model that has all experts. Each
line says what held.
"""

import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.distributed import DistributedConfig
from transformers.distributed.expert_parallel import apply_expert_parallelism
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
from transformers.distributed.utils import initialize_distributed_mesh

from moesaic.errors import DispatchError, GradientError
from moesaic.integrations.transformers import register, unpatch
from moesaic.integrations.transformers.dispatched import DISPATCHERS
from moesaic.integrations.transformers.ep_style import DispatcherStyle
from moesaic.integrations.transformers.expert_parallel import register_expert_parallel
from moesaic.integrations.transformers.state import state_of

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_experts_per_tok": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
}
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])


def qwen():
    """Six experts, of which one gets no token."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(**SIZES, moe_intermediate_size=32, num_experts=6)
    return Qwen3MoeForCausalLM(config).eval()


def gpt_oss():
    """Biases, gate and up that alternate, transposed weights."""
    torch.manual_seed(1)
    config = GptOssConfig(**SIZES, intermediate_size=32, num_local_experts=4, pad_token_id=0)
    model = GptOssForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


def spread(model, **config):
    """As `from_pretrained(..., distributed_config=...)` does it, which needs accelerate, on a model that is there."""
    given = DistributedConfig(**config)
    _, meshes = initialize_distributed_mesh(given)
    return model.maybe_distribute_model(model, given, meshes)


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


def say(text):
    sys.stdout.write(f"{text}\n")


def shared_batch(make, dispatcher, implementation):
    """Both ranks hold the same batch: of a single token one of them takes none."""
    whole, model = make(), make()
    model = spread(model, tp_size=2, ep_size=2, ep_implementation=dispatcher)
    model.set_experts_implementation(implementation)
    for ids in (IDS, IDS[:1, :1]):
        torch.testing.assert_close(logits(model, ids), logits(whole, ids), rtol=1e-5, atol=1e-5)
    say(f"{model.__class__.__name__} {dispatcher} {implementation}")
    return whole, model


def saved(whole, model):
    """What `save_pretrained` would write: every expert, though the backend holds this rank's, in a form of its own."""
    released = [module for module in model.modules() if (bound := state_of(module)) is not None and bound.released]
    assert released  # a layer whose experts here got no token yet is not bound
    assert_every_expert(whole, model)
    say("all experts are saved")


def given_back(whole, model):
    """The same once the backend holds nothing any more; the model computes what it did."""
    unpatch(model)
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert_every_expert(whole, model)
    torch.testing.assert_close(logits(model), logits(whole), rtol=1e-5, atol=1e-5)
    say("all experts are given back")


def assert_every_expert(whole, model):
    wanted, found = whole.state_dict(), model.state_dict()
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        got = found[name].full_tensor() if isinstance(found[name], DTensor) else found[name]
        assert torch.equal(got, value), name


def own_batches(dispatcher):
    """Each rank holds tokens of its own, not even as many."""
    rank, whole, model = dist.get_rank(), qwen(), qwen()
    mesh = init_device_mesh("cpu", (1, 2, 1), mesh_dim_names=("pp", "ep", "tp"))
    plan = model._expand_parallel_plan(model.ep_plan)
    model = apply_expert_parallelism(model, mesh["ep"], mesh["tp"], plan, ep_implementation=dispatcher)
    ids = IDS[: 2 - rank, : 7 - rank]
    torch.testing.assert_close(logits(model, ids), logits(whole, ids), rtol=1e-5, atol=1e-5)
    say(f"own batches {dispatcher}")
    return model, ids


def gradients_are_refused(model, ids):
    try:
        model(ids)
    except GradientError:
        say("gradients are refused")


def styles(dispatcher):
    """The rule of transformers 5.17, on the experts of one layer."""
    whole, model = qwen().model.layers[0].mlp.experts, qwen().model.layers[0].mlp.experts
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    for name in ("gate_up_proj", "down_proj"):
        ALL_PARALLEL_STYLES["grouped_gemm"].shard_param(model, name, mesh)
    assert model.num_experts == 3
    DispatcherStyle(dispatcher).install_forward(model, mesh)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(5, 64, generator=generator)
    ids = torch.rand(5, 6, generator=generator).argsort(-1)[:, :2]
    weights = torch.rand(5, 2, generator=generator)
    with torch.no_grad():
        torch.testing.assert_close(model(hidden, ids, weights), whole(hidden, ids, weights), rtol=1e-5, atol=1e-5)
    say(f"style {dispatcher}")


def ranks_that_differ():
    name = ["moesaic_all_to_all", "moesaic_all_gather"][dist.get_rank()]
    try:
        spread(qwen(), tp_size=2, ep_size=2, ep_implementation=name)
    except DispatchError as fault:
        say(fault)


def main():
    rank, file = sys.argv[1:]
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*torch.jit|.*barrier|.*_get_pg_default_device|.*device_id")
    os.environ["LOCAL_RANK"] = rank
    torch.set_num_threads(1)
    start = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=2, timeout=start)
    try:
        register()
        register_expert_parallel()
        shared_batch(qwen, "moesaic_all_to_all", "eager")
        shared_batch(qwen, "moesaic_all_gather", "grouped_mm")
        for dispatcher in ("moesaic_all_to_all", "auto"):  # the second is transformers' own
            whole, model = shared_batch(gpt_oss, dispatcher, "moesaic")
            saved(whole, model)
            given_back(whole, model)
        for dispatcher in DISPATCHERS:
            model, ids = own_batches(dispatcher)
            styles(dispatcher)
        gradients_are_refused(model, ids)
        ranks_that_differ()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
