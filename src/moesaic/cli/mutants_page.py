"""The kill matrix as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from moesaic.conformance.mutants.base import DECLARATION, Mutant, Verdict
from moesaic.conformance.mutants.kill_matrix import KillMatrix

HEAD = """\
# Mutants: the kit on trial

{origin}

Each mutant is wrong in one way and named after its fault in the catalogue of public faults. *Meant* is the check that
has to find it; the others are those that found it as well in the run that wrote this page (a mutant that reads
uninitialised memory or changes from call to call may be found by more or fewer of them elsewhere).
"""

WHOLE = "Written by `moesaic conform --mutants > docs/mutants.md`; do not edit."
QUICK = "Written by `moesaic conform --mutants --quick`: each mutant met the check meant for it, and no other."


def mutants_page(matrix: KillMatrix, mutants: Sequence[Mutant]) -> str:
    """The page. `mutants` in the order of the verdicts of `matrix`."""
    verdicts = dict(zip((m.name for m in mutants), matrix.verdicts, strict=True))
    parts = [HEAD.format(origin=QUICK if matrix.quick else WHOLE), "\n".join(_summary(matrix))]
    for kind in dict.fromkeys(mutant.judge.kind for mutant in mutants):
        own = [mutant for mutant in mutants if mutant.judge.kind == kind]
        parts += [f"\n## {kind.capitalize()} mutants\n", "\n".join(_rows(own, verdicts, quick=matrix.quick))]
        if not matrix.quick:
            parts += [f"\n### What each {kind} check finds\n", "\n".join(_checks(own, verdicts))]
    return "\n".join(parts) + "\n"


def unproven(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict]) -> tuple[str, ...]:
    """The checks of one kind whose removal leaves every one of its mutants dead."""
    return tuple(check for check in _known(mutants) if not _alone(check, mutants, verdicts))


def _summary(matrix: KillMatrix) -> Iterator[str]:
    killed, passed = len(matrix.verdicts) - len(matrix.survivors), len(matrix.controls) - len(matrix.accused)
    yield f"- {killed} of {len(matrix.verdicts)} mutants are killed, {len(matrix.not_as_meant)} not by the check meant."
    yield f"- {passed} of {len(matrix.controls)} controls pass every check."
    yield from (f"- survives: {name}" for name in matrix.survivors)
    yield from (f"- not as meant: {name}" for name in matrix.not_as_meant)
    yield from (f"- accused: {v.name}: {next(iter(v.found.items()))}" for v in matrix.accused)


def _rows(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict], *, quick: bool) -> Iterator[str]:
    yield "| mutant | what is wrong | meant | also found by |"
    yield "|---|---|---|---|"
    for mutant in mutants:
        others = [check for check in verdicts[mutant.name].found if check != mutant.check]
        also = "not tried" if quick else ", ".join(others) or "-"
        yield f"| {mutant.name} | {mutant.meaning} | {mutant.check} | {also} |"


def _checks(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict]) -> Iterator[str]:
    yield "| check | meant | found | found by it alone |"
    yield "|---|--:|--:|---|"
    for check in _known(mutants):
        meant = sum(mutant.check == check for mutant in mutants)
        found = sum(check in verdicts[mutant.name].found for mutant in mutants)
        alone = _alone(check, mutants, verdicts)
        named = ", ".join(alone[:2]) + (f" and {len(alone) - 2} more" if len(alone) > 2 else "")
        yield f"| {check} | {meant} | {found} | {named or '-'} |"


def _known(mutants: Sequence[Mutant]) -> tuple[str, ...]:
    declared = (DECLARATION,) if any(mutant.check == DECLARATION for mutant in mutants) else ()
    return (*declared, *mutants[0].judge.checks)


def _alone(check: str, mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict]) -> tuple[str, ...]:
    return tuple(mutant.name for mutant in mutants if tuple(verdicts[mutant.name].found) == (check,))
