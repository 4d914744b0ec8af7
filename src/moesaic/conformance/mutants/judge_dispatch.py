"""DispatchJudge: the checks of dispatchers, on a fleet that one process plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import torch
from typing_extensions import override

from moesaic.conformance.dispatch_checks import DISPATCH_CHECKS, DispatchCheck
from moesaic.conformance.equals_one_rank import EqualsOneRank
from moesaic.conformance.execution import described
from moesaic.conformance.fleet_subject import FleetSubject
from moesaic.conformance.mutants.base import Judge
from moesaic.conformance.strangers import Raised, attempt
from moesaic.conformance.traffic import Traffic, traffic_of
from moesaic.errors import Nonconformance

LAYER = EqualsOneRank()
"""The check that puts a real layer behind the dispatcher."""


@final
@dataclass(frozen=True)
class DispatchJudge(Judge):
    """`max_tokens` and `duplicate_ids`: what the transport of the fleet takes."""

    kind: ClassVar[str] = "dispatcher"

    max_tokens: int = 8
    duplicate_ids: bool = True

    @property
    @override
    def checks(self) -> tuple[str, ...]:
        return tuple(check.name for check in (*DISPATCH_CHECKS, LAYER))

    @override
    def faults(self, subject: Any, checks: Sequence[str]) -> Mapping[str, str]:
        traffic = tuple(
            traffic_of(
                subject,
                hidden_sizes=(65,),
                dtypes=(torch.float32, torch.bfloat16),
                max_tokens=self.max_tokens,
                duplicate_ids=self.duplicate_ids,
            )
        )
        fleet = FleetSubject(subject, torch.device("cpu"))
        # A real layer costs most: as in the kit, it is tried on the first traffic of each dtype.
        few = tuple({given.dtype: given for given in reversed(traffic)}.values())
        tried = ((check, _first(check, fleet, traffic)) for check in DISPATCH_CHECKS if check.name in checks)
        found = {check.name: fault for check, fault in tried if fault is not None}
        layer = _first(LAYER, fleet, few) if LAYER.name in checks else None
        return found if layer is None else {**found, LAYER.name: layer}


def _first(check: DispatchCheck, fleet: FleetSubject, traffic: Sequence[Traffic]) -> str | None:
    for given in traffic:
        found = attempt(partial(check.run, fleet, given))
        if isinstance(found, Raised):  # whatever a dispatcher raises is a fault that was found
            said = str(found.fault) if isinstance(found.fault, Nonconformance) else described(found.fault)
            return f"{said} ({given!r})"
    return None
