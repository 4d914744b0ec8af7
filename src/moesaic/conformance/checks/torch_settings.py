"""Torch's settings around a call: an answer does not depend on them, and no call changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.batches import Batch
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check, has_plain_filling, has_plain_sizes, plain_case
from moesaic.conformance.feeding import CALM
from moesaic.conformance.settings import Setting, settings_for
from moesaic.conformance.subject import Subject
from moesaic.conformance.torch_state import TorchState, kept
from moesaic.custom_op import BoundBackend
from moesaic.errors import Nonconformance


@final
@dataclass(frozen=True)
class TorchSettings(Check):
    """`prepare`, `canonical` and `run` under each setting: prepared before and run there, prepared there and run after.

    Default dtype and device, gradients, inference mode, random state, number of threads, deterministic algorithms and
    autocast are varied; these and the precision of float32 products are the same after each of the three. Meant for
    F37 and F93: an output allocated in the default dtype, a fast path of inference mode, an override not undone.
    """

    name: ClassVar[str] = "torch_settings"
    meaning: ClassVar[str] = "torch's settings around a call change no answer, and are as before after it"
    before_all: ClassVar[bool] = True

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if not (has_plain_sizes(backend, case) and has_plain_filling(backend, case)):
            return "settings do not depend on sizes, and each is a dozen calls"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        backend, problem, fed = subject.backend, case.problem, subject.feed(case, CALM)
        with kept(subject.device), torch.no_grad():
            weights = subject.weights(case)
            prepared = _observed(subject.device, "prepare", lambda: backend.prepare(weights, problem))
            output = _observed(subject.device, "run", lambda: backend.run(fed.batch, prepared, problem))
            wanted = subject.checked(case, fed.batch, output)[fed.live.to(subject.device)].cpu()
            for setting in settings_for(subject.device):
                if setting.costly and case != plain_case(backend, case):
                    continue
                with kept(subject.device):
                    outputs = _outputs(subject, case, setting, fed.batch, prepared)
                for output in outputs:
                    got = subject.checked(case, fed.batch, output)[fed.live.to(subject.device)].cpu()
                    if setting.same_bits:
                        subject.same(case, got, wanted, f"rows under {setting.name}")
                    else:
                        subject.compare(case, got, wanted.double(), f"rows under {setting.name}")


def _outputs(subject: Subject, case: Case, setting: Setting, batch: Batch, before: Any) -> list[Any]:
    """What comes back of weights that were prepared `before` and run there, and of some prepared there and run after.

    Autocast is kept outside by the bound layer, so there the layer runs, and `canonical` is nobody's call.
    """
    backend, problem, weights = subject.backend, case.problem, subject.weights(case)

    def run(prepared: Any) -> Any:
        by_layer = BoundBackend(backend, prepared, problem)
        return by_layer.run(batch) if setting.through_layer else backend.run(batch, prepared, problem)

    def observed(what: str, call: Callable[[], Any]) -> Any:
        return _observed(subject.device, f"{what} under {setting.name}", call)

    with setting.entered():
        prepared = observed("prepare", lambda: backend.prepare(weights, problem))
        if not setting.through_layer:
            returned = observed("canonical", lambda: backend.canonical(prepared, problem)).tensors
            if not all(map(torch.equal, returned, subject.weights(case).tensors)):
                raise Nonconformance(f"canonical under {setting.name}", "the weights bit for bit", "others")
        there = observed("run", lambda: run(before))
    return [there, _observed(subject.device, f"run of what was prepared under {setting.name}", lambda: run(prepared))]


def _observed(device: torch.device, what: str, call: Callable[[], Any]) -> Any:
    """What `call` returns; raises Nonconformance if it raises or leaves a setting changed."""
    before = TorchState.now(device)
    try:
        answer = call()
    except (RuntimeError, TypeError, ValueError) as fault:
        raise Nonconformance(what, "an answer", f"{fault.__class__.__name__}: {fault}") from fault
    after = TorchState.now(device)
    changed = before.changed(after)
    if changed is not None:
        was, now = getattr(before, changed), getattr(after, changed)
        raise Nonconformance(f"torch's {changed} after {what}", f"{was} as before", f"{now}")
    return answer
