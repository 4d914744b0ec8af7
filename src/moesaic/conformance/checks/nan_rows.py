"""NaN that a model produced stays where it is, and is seen there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from typing_extensions import override

from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.feeding import CALM
from moesaic.conformance.subject import Subject
from moesaic.errors import Nonconformance
from moesaic.quant import Plain


@final
@dataclass(frozen=True)
class NanRows(Check):
    """One element of one token is NaN: its row comes back as NaN in every column, and all other rows keep their bits.

    Meant for F06 (a clamp that turns NaN into its limit), F19 and F50 (a scale over all rows, a NaN stored as zero).
    """

    name: ClassVar[str] = "nan_rows"
    meaning: ClassVar[str] = "NaN in a live row reaches all of that row and nothing else"
    with_all_constants: ClassVar[bool] = True

    @override
    def run(self, subject: Subject, case: Case) -> None:
        given = subject.oracle.contents(case)
        tokens = torch.nonzero(given.active.any(1)).flatten().tolist() if case.padding < 1 else []
        prepared = subject.prepare(case)
        calm = subject.rows(case, subject.feed(case, CALM), prepared)
        for token in (tokens[0], tokens[-1]) if tokens else ():
            hidden = given.hidden_states.clone()
            hidden[token, token % hidden.shape[1]] = math.nan
            contents = replace(given, hidden_states=hidden)
            fed = subject.feed(case, CALM, contents=contents)
            struck = fed.batch.rows.cpu()[fed.live].isnan().any(-1)
            got = subject.rows(case, fed, prepared)
            if not bool(got[struck].isnan().all()):
                kept = int((~got[struck].isnan()).sum())
                raise Nonconformance("a row with a NaN in it", "NaN in every column", f"{kept} columns that are not")
            if isinstance(case.problem.scheme.inputs, Plain):
                subject.same(case, got[~struck], calm[~struck], "rows beside a row with a NaN in it")
            else:  # a scale that rows share may be another without the value that became NaN
                wanted = subject.exact(case, contents, subject.oracle.weights(case))
                subject.compare(case, got[~struck], wanted[~struck], "rows beside a row with a NaN in it")
