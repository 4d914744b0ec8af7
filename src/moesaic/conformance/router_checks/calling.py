"""How a router may be called: rows apart from each other, inputs unchanged, no tokens, nothing read on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from typing_extensions import override

from moesaic.batches import Routing
from moesaic.conformance.frozen_value import is_frozen, is_one_value
from moesaic.conformance.piece import PieceCheck, equal_bits, kept_form
from moesaic.conformance.router_checks.subject import RouterSubject, same_routing
from moesaic.errors import Nonconformance, RouterError


@final
@dataclass(frozen=True)
class RowsAlone(PieceCheck[RouterSubject]):
    """A token's routing does not depend on its neighbours, their number or its place. Meant for F96."""

    name: ClassVar[str] = "rows_alone"
    meaning: ClassVar[str] = "a token is routed as if it were alone"

    @override
    def run(self, subject: RouterSubject) -> None:
        logits = subject.spread_logits(64, seed=2)
        every = subject.route(logits)
        tokens = [0, 5, 63] if subject.vocabulary is None else [0]  # whose ids follow their place
        for token in tokens:
            alone = subject.route(logits[token : token + 1])
            same_routing(alone, _row(every, token), f"token {token} alone")
        if subject.vocabulary is None:
            turned = subject.route(logits.flip(0))
            same_routing(_row(turned, 63), _row(every, 0), "token 0 among the others in reverse")
        few = subject.route(logits[:7])
        same_routing(_row(few, 6), _row(every, 6), "token 6 among fewer others")


@final
@dataclass(frozen=True)
class LogitsUnchanged(PieceCheck[RouterSubject]):
    """Logits, token ids and the router's own tensors keep their bytes; strides are followed. Meant for F27."""

    name: ClassVar[str] = "logits_unchanged"
    meaning: ClassVar[str] = "the inputs keep their bytes, and a second call gives the same bits"

    @override
    def run(self, subject: RouterSubject) -> None:
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            logits = subject.spread_logits().to(dtype)
            kept = logits.clone()
            first = subject.route(logits)
            kept_weights = first.topk_weights.clone()
            equal_bits(logits, kept, f"{dtype} logits after a call")
            second = subject.route(logits)
            equal_bits(second.topk_ids, first.topk_ids, "topk_ids of a second call")
            equal_bits(second.topk_weights, kept_weights, "topk_weights of a second call")
            strided = torch.stack((logits, -logits), dim=-1)[..., 0]
            same_routing(subject.route(strided), first, "logits with strides")


@final
@dataclass(frozen=True)
class NoTokens(PieceCheck[RouterSubject]):
    """No tokens give no rows, of the same dtypes and K. Meant for F25."""

    name: ClassVar[str] = "no_tokens"
    meaning: ClassVar[str] = "zero tokens are routed to zero rows"

    @override
    def run(self, subject: RouterSubject) -> None:
        some = subject.route(subject.spread_logits(2))
        none = subject.route(torch.zeros(0, subject.columns))
        shape = (0, some.topk_ids.shape[1])
        kept_form(none.topk_ids, torch.int32, shape, "topk_ids of no tokens")
        kept_form(none.topk_weights, torch.float32, shape, "topk_weights of no tokens")


@final
@dataclass(frozen=True)
class NothingOnTheHost(PieceCheck[RouterSubject]):
    """Routed on the meta device, where no value can be read: shapes follow from fields and T. Meant for F98."""

    name: ClassVar[str] = "nothing_on_the_host"
    meaning: ClassVar[str] = "no value of a tensor is read on the host"

    @override
    def run(self, subject: RouterSubject) -> None:
        router, logits = subject.router.to("meta"), subject.spread_logits(5)
        ids = None if subject.vocabulary is None else subject.token_ids(5).to("meta")
        wanted = tuple(subject.route(logits).topk_ids.shape)
        try:
            got = router(logits.to("meta"), ids)
        except (RuntimeError, NotImplementedError) as fault:
            raise Nonconformance("a call on a device without values", "a routing", f"{fault}") from fault
        kept_form(got.topk_ids, torch.int32, wanted, "topk_ids on a device without values")


@final
@dataclass(frozen=True)
class OtherExperts(PieceCheck[RouterSubject]):
    """Logits of another number of experts are refused. Meant for F41."""

    name: ClassVar[str] = "other_experts"
    meaning: ClassVar[str] = "logits of another number of experts are refused"

    @override
    def applies(self, subject: RouterSubject) -> str | None:
        return None if subject.router.stated("num_experts") else "the router states no num_experts"

    @override
    def run(self, subject: RouterSubject) -> None:
        for columns in (subject.columns - 1, subject.columns + 1):
            try:
                subject.route(torch.zeros(3, columns))
            except RouterError:
                continue
            raise Nonconformance(f"{columns} logits for {subject.columns}", "a RouterError", "a routing")


@final
@dataclass(frozen=True)
class OneRouter(PieceCheck[RouterSubject]):
    """Frozen; without tensors its repr reads back and equal ones have one hash. Meant for F75, F93."""

    name: ClassVar[str] = "one_value"
    meaning: ClassVar[str] = "a frozen value; without tensors, with one repr and one hash"

    @override
    def run(self, subject: RouterSubject) -> None:
        is_frozen(subject.router)
        if subject.is_plain:
            is_one_value(subject.router)


def _row(routing: Routing, token: int) -> Routing:
    identity = routing.identity_weights
    return Routing(
        routing.topk_ids[token : token + 1],
        routing.topk_weights[token : token + 1],
        None if identity is None else identity[token : token + 1],
    )
