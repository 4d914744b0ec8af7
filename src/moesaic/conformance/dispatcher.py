"""DispatcherConformance: the kit for dispatchers as a pytest class of three lines.

class TestMine(DispatcherConformance):
    fleet = OneRank(num_experts=10, num_ranks=1, dispatcher=Mine())
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from moesaic.conformance.dispatch_checks import DISPATCH_CHECKS, DispatchCheck
from moesaic.conformance.equals_one_rank import EqualsOneRank
from moesaic.conformance.fleet_subject import FleetSubject
from moesaic.conformance.noting import pytest_command, repeated_by
from moesaic.conformance.traffic import Traffic, traffic_of
from moesaic.dispatch.fleet import Fleet


class DispatcherConformance:
    """Derive from it, name the class `Test...` and set `fleet`; pytest then collects one test per check and traffic.

    A dispatcher that runs in several processes is put into `OneRank` in each of them, and every process runs the same
    tests in the same order. `hidden_sizes`, `dtypes`: what the transport takes; the first of each is used throughout.
    `max_tokens`: the most a rank may hand in. `duplicate_ids`: whether a token may name an expert twice.
    """

    fleet: ClassVar[Fleet[Any]]
    hidden_sizes: ClassVar[tuple[int, ...]] = (65, 2880)
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.bfloat16)
    max_tokens: ClassVar[int] = 8
    duplicate_ids: ClassVar[bool] = True
    device: ClassVar[str] = "cpu"

    def test_promise(self, request: Any, check: DispatchCheck, traffic: Traffic) -> None:
        """One promise on one traffic."""
        with repeated_by(pytest_command(request)):
            check.run(FleetSubject(self.fleet, torch.device(self.device)), traffic)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """What pytest calls for each test method of the class."""
        import pytest  # noqa: PLC0415

        if "traffic" in metafunc.fixturenames:
            given = [
                pytest.param(check, traffic, id=f"{check.name}-{short(traffic)}") for check, traffic in self.trials()
            ]
            metafunc.parametrize(("check", "traffic"), given)

    def trials(self) -> Iterator[tuple[DispatchCheck, Traffic]]:
        """Every check on every traffic; a real layer, which costs most, once for each hidden size and dtype."""
        shapes: set[tuple[int, torch.dtype]] = set()
        for traffic in traffic_of(
            self.fleet,
            hidden_sizes=self.hidden_sizes,
            dtypes=self.dtypes,
            max_tokens=self.max_tokens,
            duplicate_ids=self.duplicate_ids,
        ):
            yield from ((check, traffic) for check in DISPATCH_CHECKS)
            shape = (traffic.hidden_size, traffic.dtype)
            if shape not in shapes:
                yield EqualsOneRank(), traffic
            shapes.add(shape)


def short(traffic: Traffic) -> str:
    """Traffic as the name of a test."""
    flags = (
        f"hot{traffic.hot}" if traffic.hot is not None else "",
        "duplicates" if traffic.duplicates else "",
        f"inactive{traffic.inactive:g}",
        f"rotation{traffic.rotation}" if traffic.rotation else "",
    )
    sizes = f"T{'+'.join(map(str, traffic.tokens))} K{traffic.top_k} H{traffic.hidden_size}"
    return " ".join((sizes, str(traffic.dtype).removeprefix("torch."), f"seed{traffic.seed}", *filter(None, flags)))
