"""The layer: `bind` weights to the backend that runs them, and compose it with a router and a dispatcher."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from moesaic.backends import BACKENDS
from moesaic.backends.base import Backend
from moesaic.batches import Batch, BatchedBatch, GroupedBatch
from moesaic.checks import instance, whole_number
from moesaic.custom_op import BoundBackend, run_as_operator
from moesaic.dispatch.base import Dispatcher
from moesaic.errors import BackendError, BatchError, GradientError, ProblemError, RouterError, WeightsError
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.resolve import Resolution, resolve
from moesaic.routers.base import Router
from moesaic.weights import ExpertWeights


@final
class Experts:
    """A problem bound to a backend and to the weights which that backend prepared. Built by `bind`.

    Copying and pickling go through the canonical weights and prepare them again, since a packed form has no copy.
    """

    def __init__(self, resolution: Resolution, weights: ExpertWeights) -> None:
        self.resolution = resolution
        self.problem = resolution.problem
        self.backend = resolution.backend
        self._sources = tuple(weakref.ref(t) for t in weights.tensors)  # which keep nothing alive
        self._trainable = self._any_source_is_trainable()
        self._device = weights.gate_up.data.device
        with torch.autocast(self._device.type, enabled=False):
            prepared = self.backend.prepare(weights, self.problem)
        self._bound = BoundBackend(self.backend, prepared, self.problem)

    def __repr__(self) -> str:
        return f"Experts({self.backend!r}, {self.problem!r})"

    def __reduce__(self) -> tuple[type[Experts], tuple[Resolution, ExpertWeights]]:
        return Experts, (self.resolution, self.canonical())

    def __call__(self, batch: Batch) -> Tensor:
        """The rows of `batch` in the same places, in the problem's dtype (`backends/base.py` states the contract).

        Raises BatchError if the batch is not of the problem, GradientError if gradients are needed and the backend
        computes none.
        """
        self._check(batch)
        rows = self._run(batch)
        if rows.shape != batch.rows.shape or rows.dtype != batch.rows.dtype:
            raise BackendError(
                f"the backend {self.backend.name} returned {rows.dtype} of shape {tuple(rows.shape)}, but its contract "
                f"is {batch.rows.dtype} of shape {tuple(batch.rows.shape)}: its run is wrong"
            )
        return rows

    def _run(self, batch: Batch) -> Tensor:
        if torch.is_grad_enabled() and (self._is_trainable() or _requires_grad(batch)):
            if not self.backend.capabilities.differentiable:
                raise GradientError(
                    f"the backend {self.backend.name} computes no gradients, but an input or a weight requires them: "
                    "call it under torch.no_grad(), or bind a problem with differentiable=True"
                )
            # Outside of any graph: the operator has no backward, and torch 2.13 traces no grouped product in float32.
            if torch.compiler.is_compiling():
                return cast("Callable[[Batch], Tensor]", torch.compiler.disable(self._run_eagerly))(batch)
            return self._bound.run(batch)
        if torch.compiler.is_compiling():
            return run_as_operator(batch, self._bound)
        return self._bound.run(batch)

    def _is_trainable(self) -> bool:
        """Whether a weight that is still there requires gradients now; in a traced graph, when it was bound."""
        return self._trainable if torch.compiler.is_compiling() else self._any_source_is_trainable()

    def _any_source_is_trainable(self) -> bool:
        return any(t is not None and t.requires_grad for t in (source() for source in self._sources))

    def _run_eagerly(self, batch: Batch) -> Tensor:
        return self._bound.run(batch)

    def canonical(self) -> ExpertWeights:
        """The weights in canonical form again, bit for bit; tensors may be shared with the layer."""
        with torch.autocast(self._device.type, enabled=False):  # it would reach torch's own products
            return self.backend.canonical(self._bound.prepared, self.problem)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor that the layer keeps alive, in its backend's own form."""
        return self.backend.tensors(self._bound.prepared)

    def workspace(self, num_rows: int) -> int:
        """The most bytes that one call allocates for `num_rows` rows (tokens under Standard), without running it."""
        rows = whole_number("workspace", "num_rows", num_rows, ProblemError, at_least=0)
        return self.backend.workspace(self.problem, rows)

    def _check(self, batch: Batch) -> None:
        if not isinstance(batch, Batch):
            raise BatchError(
                f"the experts take a batch, not a {batch.__class__.__name__}: StandardBatch(rows, routing)"
            )
        problem = self.problem
        if not problem.layout.accepts(batch.layout):
            raise BatchError(f"the batch is {batch.layout!r}, but the problem was bound with layout={problem.layout!r}")
        self.check_rows(batch.rows)
        if isinstance(batch, GroupedBatch | BatchedBatch):
            if batch.counts.shape[0] != problem.num_experts:
                raise BatchError(
                    f"counts has {batch.counts.shape[0]} entries, but the problem has {problem.num_experts} experts"
                )
        elif batch.routing.topk_ids.shape[1] > problem.top_k:
            raise BatchError(
                f"the routing has {batch.routing.topk_ids.shape[1]} slots a token, but the problem was bound with "
                f"top_k={problem.top_k}: bind a problem with the larger top_k"
            )

    def check_rows(self, rows: Tensor) -> None:
        """Raise BatchError unless dtype, columns and device of `rows` `[..., H]` are those of problem and weights.

        A layer asks before its tokens travel: a rank that found out afterwards would leave the others waiting.
        """
        problem = self.problem
        if not isinstance(rows, Tensor) or rows.layout != torch.strided or not rows.ndim:
            dense = isinstance(rows, Tensor)
            found = f"{rows.layout} of shape {tuple(rows.shape)}" if dense else f"a {rows.__class__.__name__}"
            raise BatchError(f"the rows are {found}, but experts need a dense torch.Tensor [..., H]")
        if rows.dtype != problem.dtype:
            raise BatchError(
                f"the rows are {rows.dtype}, but the problem has dtype={problem.dtype}: convert the rows, or bind "
                "another problem"
            )
        if rows.shape[-1] != problem.hidden_size:
            raise BatchError(
                f"the rows have {rows.shape[-1]} columns, but the problem has hidden_size={problem.hidden_size}: bind "
                "another problem"
            )
        if rows.device != self._device:
            raise BatchError(
                f"the rows are on {rows.device}, but the weights were bound on {self._device}; move the rows"
            )


def _facts(experts: Experts) -> dict[str, str]:
    """What the ranks of a layer must be told alike: backend and problem, but for the experts that each rank holds."""
    problem, activation = experts.problem, experts.problem.activation
    local = activation.given_per_expert()  # constants of this rank's experts, which others need not share
    constants = [field.name for field in fields(activation) if field.name not in local]
    shared = [field.name for field in fields(problem) if field.name not in {"num_experts", "activation"}]
    return {
        "backend": experts.backend.name,
        "problem.activation": activation.__class__.__name__,
        **{f"problem.activation.{name}": repr(getattr(activation, name)) for name in constants},
        **{f"problem.{name}": repr(getattr(problem, name)) for name in shared},
    }


def _requires_grad(batch: Batch) -> bool:
    if isinstance(batch, GroupedBatch | BatchedBatch):
        return batch.rows.requires_grad
    return batch.rows.requires_grad or batch.routing.topk_weights.requires_grad


def bind(
    problem: Problem,
    weights: ExpertWeights,
    *,
    machine: Machine | None = None,
    backends: Sequence[Backend[Any]] = BACKENDS,
) -> Experts:
    """Choose the backend for `problem` and prepare `weights` for it.

    `machine` is by default the one the weights lie on. `backends=(Cpu(),)` uses that one or fails with its reasons.
    A backend may keep the tensors of `weights`, or a packed copy: drop your references to have one copy, and bind
    again after changing them (`load_state_dict`, an optimizer's step), since a copy does not follow.
    Raises WeightsError if the weights do not fit, NoBackendError with every reason if nobody serves the problem.
    """
    instance("bind", "problem", problem, Problem, ProblemError, example="Problem(num_experts=8, ...)")
    instance("bind", "weights", weights, ExpertWeights, WeightsError, example="ExpertWeights.plain(gate_up, down)")
    weights.check(problem)
    device = weights.gate_up.data.device
    there = machine if machine is not None else Machine.current(device)
    if there.device != device.type:
        raise WeightsError(
            f"the weights are on {device}, but the machine is a {there.device} device ({there.name}): move them, "
            "or ask resolve(problem, machine, backends) what would run there"
        )
    resolution = resolve(problem, there, backends)
    return Experts(resolution, weights)


@final
class MoE(nn.Module):
    """A whole MoE layer: route, dispatch, compute, combine, and add the shared expert.

    `shared` maps hidden states `[T, H]` to `[T, H]` and is added after the routed sum. Holds no parameters of its
    own beyond `shared`'s. Over several ranks every rank builds its layers in one order, and they compare what each was
    told: a difference is a DispatchError on all of them.
    """

    def __init__(
        self,
        router: Router,
        dispatcher: Dispatcher[Any],
        experts: Experts,
        *,
        shared: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        instance("MoE", "router", router, Router, RouterError, example="SoftmaxTopK(8, 2)")
        instance("MoE", "dispatcher", dispatcher, Dispatcher, ProblemError, example="Local()")
        instance("MoE", "experts", experts, Experts, ProblemError, example="bind(problem, weights)")
        # No call over padded ranks would notice another top_k; the others are judged below, on each rank by itself.
        chosen = {f"router.{name}": str(router.stated(name)) for name in ("top_k", "num_experts")}
        dispatcher.agree(experts.problem.num_experts, {**_facts(experts), **chosen})
        reachable = dispatcher.num_experts(experts.problem.num_experts)
        if router.stated("num_experts") not in (None, reachable):
            raise RouterError(
                f"the router is for {router.stated('num_experts')} experts, but {dispatcher.__class__.__name__} "
                f"reaches {reachable}: a token for any other would be dropped without a word"
            )
        if (router.stated("top_k") or 0) > experts.problem.top_k:
            raise RouterError(
                f"the router chooses {router.stated('top_k')} experts a token, but the experts were bound with "
                f"top_k={experts.problem.top_k}: bind a problem with the larger top_k"
            )
        if not experts.problem.layout.accepts(dispatcher.layout):
            raise ProblemError(
                f"{dispatcher.__class__.__name__} produces {dispatcher.layout!r}, but the experts were bound with "
                f"layout={experts.problem.layout!r}: bind a problem with the dispatcher's layout"
            )
        self.router = router
        self.dispatcher = dispatcher
        self.experts = experts
        self.shared = shared

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        p = self.experts.problem
        sizes = f"E={p.num_experts} K={p.top_k} H={p.hidden_size} I={p.intermediate_size}"
        return f"{self.router!r}, {self.dispatcher!r}, {self.experts.backend!r}, {sizes}, {p.activation!r}, {p.dtype}"

    def forward(
        self,
        hidden_states: Float[Tensor, "*batch H"],
        router_logits: Float[Tensor, "*batch E"],
        token_ids: Int[Tensor, "*batch"] | None = None,
    ) -> Float[Tensor, "*batch H"]:
        """The layer's output, in the dtype of `hidden_states`. `token_ids` is needed by hash routers only."""
        try:
            self.experts.check_rows(hidden_states)
            tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
            ids = None if token_ids is None else token_ids.reshape(-1)
            routing = self.router(router_logits.reshape(-1, router_logits.shape[-1]), ids)
        except BaseException:
            self.dispatcher.withdraw()  # or the other ranks would wait for the tokens of this one
            raise
        batch, receipt = self.dispatcher.dispatch(tokens, routing)
        output = self.dispatcher.combine(self.experts(batch), receipt)
        if routing.identity_weights is not None:
            # The sum is in float32: torch promotes the weights' float32 and any narrower dtype to it.
            output = (output + routing.identity_weights.unsqueeze(-1) * tokens).to(output.dtype)
        if self.shared is not None:
            output = (output + self.shared(tokens)).to(output.dtype)
        return output.reshape(hidden_states.shape)
