"""A call depends on its arguments and on nothing that another call left behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.feeding import CALM, Fed
from moesaic.conformance.subject import Subject


@final
@dataclass(frozen=True)
class TwoRuns(Check):
    """The same call again (on CUDA 20 times) gives the same bits. Meant for F94, F95 and F99."""

    name: ClassVar[str] = "two_runs"
    meaning: ClassVar[str] = "runs agree bit for bit where determinism is declared and asked for"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if not case.problem.deterministic:
            return "equal bits are not asked for"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        fed, prepared = subject.feed(case, CALM), subject.prepare(case)
        first = subject.rows(case, fed, prepared)
        for _ in range(20 if subject.device.type == "cuda" else 3):
            subject.same(case, subject.rows(case, fed, prepared), first, "rows of a second run")


@final
@dataclass(frozen=True)
class OtherCalls(Check):
    """Calls of other tokens, before, between and in another thread, change nothing, and are right themselves.

    Meant for F93 and F97: state of one call that another one meets.
    """

    name: ClassVar[str] = "other_calls"
    meaning: ClassVar[str] = "calls that interleave or run in two threads do not meet"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared = subject.prepare(case)
        mine = subject.feed(case, CALM)
        # An even seed apart, so that both batches carry the count of valid rows, or neither.
        contents = subject.oracle.contents(replace(case, seed=case.seed + 2))
        other = subject.feed(case, CALM, contents=contents)
        result = subject.run(case, mine.batch, prepared)
        wanted = result[mine.live.to(subject.device)].cpu()
        wanted_other = subject.rows(case, other, prepared)
        exact = subject.exact(case, contents, subject.oracle.weights(case))
        subject.compare(case, wanted_other, exact, "rows of a second call, with other tokens")
        subject.same(case, result[mine.live.to(subject.device)].cpu(), wanted, "an output after another call")
        subject.same(case, subject.rows(case, mine, prepared), wanted, "rows after a call with other tokens")

        def repeated(fed: Fed) -> list[Tensor]:
            return [subject.rows(case, fed, prepared) for _ in range(3)]

        # A new thread has torch's default number of threads, with which a sum may have another order.
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
            for got, alone in zip(pool.map(repeated, (mine, other)), (wanted, wanted_other), strict=True):
                for rows in got:
                    subject.same(case, rows, alone, "rows while another thread calls")
