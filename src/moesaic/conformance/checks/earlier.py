"""What was prepared and computed before: other layers, larger batches, a batch that held something else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

from typing_extensions import override

from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.checks.ownership import batch_tensors
from moesaic.conformance.feeding import CALM, NAN
from moesaic.conformance.oracle import placed
from moesaic.conformance.subject import Subject
from moesaic.conformance.turned import turned


@final
@dataclass(frozen=True)
class OtherLayers(Check):
    """Two layers of one problem with other weights in turn, then other weights in the memory of the first ones.

    Meant for F93 and F109: weights that are kept by problem, so that those prepared last (or first) serve every layer
    of a model, or by address, which the weights of a layer that is gone leave to the next.
    """

    name: ClassVar[str] = "other_layers"
    meaning: ClassVar[str] = "each prepared value computes with the weights that it was prepared from"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        fed, given = subject.feed(case, CALM), subject.weights(case)
        others = subject.oracle.weights(replace(case, seed=case.seed + 2))
        mine = subject.prepare(case, given)
        wanted = subject.rows(case, fed, mine)
        other = subject.prepare(case, placed(others, subject.place))
        subject.same(case, subject.rows(case, fed, mine), wanted, "rows after another layer was prepared")
        got = subject.rows(case, fed, other)
        exact = subject.exact(case, subject.oracle.contents(case), others)
        subject.compare(case, got, exact, "rows of a layer that was prepared second")
        subject.same(case, subject.rows(case, fed, mine), wanted, "rows after another layer was run")
        del mine  # and with it the right to find the first weights where they were
        for there, theirs in zip(given.tensors, others.tensors, strict=True):
            there.copy_(theirs)
        again = subject.rows(case, fed, subject.prepare(case, given))
        subject.same(case, again, got, "rows of a layer whose weights lie where another layer's were")


@final
@dataclass(frozen=True)
class SmallerCall(Check):
    """A call with more tokens, then one with fewer, both of other tokens. Meant for F15, F93 and F102.

    What the larger call left in memory that is kept for the next one, its ids, counts or sums, is not part of it.
    """

    name: ClassVar[str] = "smaller_call"
    meaning: ClassVar[str] = "a call after a larger one equals the reference"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        larger = replace(case, num_tokens=2 * case.num_tokens + 5, seed=case.seed + 2)
        smaller = replace(case, num_tokens=max(2, case.num_tokens // 2), seed=case.seed + 4)
        prepared, contents = subject.prepare(case), subject.oracle.contents(smaller)
        subject.run(larger, subject.feed(larger, NAN).batch, prepared)
        got = subject.rows(smaller, subject.feed(smaller, NAN, contents=contents), prepared)
        exact = subject.exact(smaller, contents, subject.oracle.weights(case))
        subject.compare(smaller, got, exact, "rows of a call after a larger one")


@final
@dataclass(frozen=True)
class ContentsInPlace(Check):
    """The tensors of one batch are given other contents between two calls, as a model's buffers are.

    Meant for F97 without a graph: routing, counts or rows that are kept by the address or the identity of a tensor.
    """

    name: ClassVar[str] = "contents_in_place"
    meaning: ClassVar[str] = "a batch whose tensors hold something else now is computed as it is now"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared, mine = subject.prepare(case), subject.feed(case, CALM)
        subject.run(case, mine.batch, prepared)
        contents = turned(case, subject.oracle.contents(case), 1)
        other = subject.feed(case, CALM, contents=contents)
        for before, after in zip(batch_tensors(mine.batch), batch_tensors(other.batch), strict=True):
            before.copy_(after)
        got = subject.run(case, mine.batch, prepared)[other.live.to(subject.device)].cpu()
        exact = subject.exact(case, contents, subject.oracle.weights(case))
        subject.compare(case, got, exact, "rows of a batch whose tensors were given other contents")
