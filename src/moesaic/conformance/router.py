"""RouterConformance: the kit for routers as a pytest class of three lines.

class TestMine(RouterConformance):
    router = Mine(num_experts=8, top_k=2)
"""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from moesaic.conformance.piece import PieceCheck, PieceConformance
from moesaic.conformance.router_checks import ROUTER_CHECKS, RouterSubject, RoutingExample
from moesaic.routers import Router


class RouterConformance(PieceConformance):
    """Derive from it, name the class `Test...` and set `router`; pytest then collects one test per promise.

    The other attributes are facts about the rule that no call can tell; `RouterSubject` says what each means. A check
    that needs one which is not stated is skipped.
    """

    router: ClassVar[Router]
    num_logits: ClassVar[int | None] = None
    scaling: ClassVar[float] = 1.0
    renormalised: ClassVar[bool | None] = None
    bias: ClassVar[str | None] = None
    groups: ClassVar[tuple[int, int] | None] = None
    vocabulary: ClassVar[int | None] = None
    group_score: ClassVar[str | None] = None
    by_score: ClassVar[bool] = True
    examples: ClassVar[tuple[RoutingExample, ...]] = ()
    checks: ClassVar[tuple[PieceCheck[RouterSubject], ...]] = ROUTER_CHECKS

    @classmethod
    @override
    def subject(cls) -> RouterSubject:
        return RouterSubject(
            cls.router,
            num_logits=cls.num_logits,
            scaling=cls.scaling,
            renormalised=cls.renormalised,
            bias=cls.bias,
            groups=cls.groups,
            vocabulary=cls.vocabulary,
            by_score=cls.by_score,
            examples=cls.examples,
            group_score=cls.group_score,
        )
