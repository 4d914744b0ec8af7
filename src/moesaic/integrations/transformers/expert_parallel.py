"""Expert-parallel models of transformers through moesaic's dispatchers: tokens travel as `AllToAll` or `AllGather` do.

    register_expert_parallel()
    config = DistributedConfig(tp_size=2, ep_size=2, ep_implementation="moesaic_all_to_all")
    model = AutoModelForCausalLM.from_pretrained(directory, distributed_config=config)

What computes the experts is another choice, `experts_implementation="moesaic"` or any other. Modules that need
torch.distributed are imported when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from moesaic.errors import PatchError


def register_expert_parallel() -> None:
    """Make `moesaic_all_to_all` and `moesaic_all_gather` known to transformers.

    From 5.23 on they are names for `DistributedConfig.ep_implementation`; in 5.17 they are styles, which
    `dispatched_plan` puts into a model's plan.
    """
    if find_spec("transformers.distributed.expert_parallel") is not None:
        from moesaic.integrations.transformers.ep_implementation import register  # noqa: PLC0415 - not in 5.17
    else:
        from moesaic.integrations.transformers.ep_style import register  # noqa: PLC0415 - the other of the two
    register()


def dispatched_plan(plan: Mapping[str, str], dispatcher: str) -> dict[str, str]:
    """For transformers 5.17: the plan of a configuration (`base_model_ep_plan`), with `dispatcher` in it.

    Give it back to the configuration before the model is loaded with `enable_expert_parallel=True`. Raises PatchError
    for another name, or a plan without the rule that brings tokens to experts.
    """
    from moesaic.integrations.transformers.dispatched import DISPATCHERS  # noqa: PLC0415 - see above

    if dispatcher not in DISPATCHERS:
        raise PatchError(f"the dispatcher is {dispatcher!r}, but it needs one of {', '.join(map(repr, DISPATCHERS))}")
    if "moe_tp_experts" not in plan.values():
        raise PatchError(f"the plan {dict(plan)} has no rule 'moe_tp_experts', which says where experts are reached")
    # "ep_router" makes ids local before they get here, and is left out: a dispatcher needs those of the whole model.
    return {
        module: dispatcher if style == "moe_tp_experts" else style
        for module, style in plan.items()
        if style != "ep_router"
    }
