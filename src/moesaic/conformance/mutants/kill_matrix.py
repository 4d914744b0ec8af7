"""KillMatrix: which check found which mutant, and which controls were accused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import final

from moesaic.conformance.mutants.base import Mutant, Verdict, verdict
from moesaic.conformance.mutants.every import MUTANTS

Progress = Callable[[int, int], None]
"""Called with the number of mutants and controls that were tried, and of all."""


@final
@dataclass(frozen=True)
class KillMatrix:
    """The verdicts of mutants and of controls, which should be empty. `quick`: mutants met the check meant for them."""

    verdicts: tuple[Verdict, ...]
    controls: tuple[Verdict, ...]
    quick: bool = False

    @property
    def survivors(self) -> tuple[str, ...]:
        """The mutants that no check found."""
        return tuple(v.name for v in self.verdicts if not v.killed)

    @property
    def not_as_meant(self) -> tuple[str, ...]:
        """The mutants that were killed, and not by the check that is meant for them."""
        return tuple(v.name for v in self.verdicts if v.killed and not v.as_meant)

    @property
    def accused(self) -> tuple[Verdict, ...]:
        """The controls that a check found something in."""
        return tuple(v for v in self.controls if v.killed)

    @property
    def is_clean(self) -> bool:
        """Whether every mutant was killed as meant and no control was."""
        return not (self.survivors or self.not_as_meant or self.accused)

    def as_document(self) -> dict[str, object]:
        """The matrix for JSON."""
        return {
            "quick": self.quick,
            "killed": sum(v.killed for v in self.verdicts),
            "total": len(self.verdicts),
            "controls_passed": len(self.controls) - len(self.accused),
            "controls_total": len(self.controls),
            "survivors": list(self.survivors),
            "not_as_meant": list(self.not_as_meant),
            "accused": {v.name: dict(v.found) for v in self.accused},
            "killed_by": {v.name: list(v.found) for v in self.verdicts},
        }


def kill_matrix(*, quick: bool = False, processes: int = 2, progress: Progress | None = None) -> KillMatrix:
    """Try every mutant and every control, in processes whose output is thrown away. `quick`: the meant check only."""
    jobs = [*range(len(MUTANTS)), *(-1 - index for index in range(len(controls_of(MUTANTS))))]
    found: dict[int, Verdict] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_silent) as pool:
        pending = {pool.submit(_tried, job, quick=quick): job for job in jobs}
        for done in as_completed(pending):
            found[pending[done]] = done.result()
            if progress is not None:
                progress(len(found), len(jobs))
    verdicts = tuple(found[job] for job in jobs if job >= 0)
    return KillMatrix(verdicts, tuple(found[job] for job in jobs if job < 0), quick)


def controls_of(mutants: Iterable[Mutant]) -> tuple[Mutant, ...]:
    """One mutant of each control, so that every control is tried once with the judge of its kind."""
    chosen: list[Mutant] = []
    for mutant in mutants:
        if not any(each.control == mutant.control and each.judge.kind == mutant.judge.kind for each in chosen):
            chosen.append(mutant)
    return tuple(chosen)


def control_verdict(mutant: Mutant, checks: Sequence[str] | None = None) -> Verdict:
    """Try every check of its kind on the control of a mutant; what it finds is a fault of the kit."""
    chosen = mutant.judge.checks if checks is None else checks
    return Verdict(f"control of {mutant.name}", "", dict(mutant.judge.faults(mutant.control, chosen)))


def _tried(job: int, *, quick: bool) -> Verdict:
    if job < 0:
        return control_verdict(controls_of(MUTANTS)[-1 - job])
    mutant = MUTANTS[job]
    return verdict(mutant, (mutant.check,) if quick else None)


def _silent() -> None:
    """What torch's profiler prints is nobody's answer; one thread for each process is fastest at these sizes."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    with Path(os.devnull).open("ab") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
