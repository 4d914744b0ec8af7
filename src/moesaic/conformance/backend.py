"""BackendConformance: the kit as a pytest class of three lines.

class TestMine(BackendConformance):
    backend = Mine()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from moesaic.backends.base import Backend
from moesaic.conformance.asked import backend_of
from moesaic.conformance.case import Case
from moesaic.conformance.cells import Cell, cells_of, touched, why_not
from moesaic.conformance.declaration import faults_of
from moesaic.conformance.execution import Job, declined
from moesaic.conformance.judge import jobs_of
from moesaic.conformance.noting import repeated_by
from moesaic.conformance.oracle import Oracle
from moesaic.conformance.spelling import spelling
from moesaic.conformance.subject import Subject
from moesaic.conformance.torch_state import kept
from moesaic.machine import Machine


class BackendConformance:
    """Derive from it, name the class `Test...` and set `backend`; pytest then collects one test per check and case.

    `quick`: fewer cases, the same declared cells. `device`: "cpu", "cuda"; None for what `Machine.current` finds.
    A declared cell that cannot be executed on this machine is a test that is skipped, with the reason. A failure ends
    with what repeats it outside pytest, on that case alone.
    """

    backend: ClassVar[Backend[Any]]
    quick: ClassVar[bool] = False
    device: ClassVar[str | None] = None

    def test_declaration(self) -> None:
        """The declaration is complete, of the right types and without contradictions."""
        for fault in faults_of(self._instance()):
            raise fault

    def test_promise(self, subject: Subject, job: Job) -> None:
        """One promise on one case."""
        import pytest  # noqa: PLC0415

        reason = declined(job)
        if reason is not None:
            pytest.skip(reason)
        repetition = spelling(job.backend, self.device).repetition(job.check.name, job.case)
        with repeated_by(repetition), kept(subject.device):
            job.check.run(subject, job.case)

    def test_cell(self, unexecuted: tuple[Cell, str]) -> None:
        """A declared cell that no job of this machine executes."""
        import pytest  # noqa: PLC0415

        pytest.skip(f"{unexecuted[0]}: {unexecuted[1]}")

    def _instance(self) -> Backend[Any]:
        return backend_of(f"{self.__class__.__name__}.backend", getattr(self, "backend", None))

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """What pytest calls for each test method of the class."""
        import pytest  # noqa: PLC0415

        if not isinstance(given := getattr(self, "backend", None), Backend) or faults_of(given):
            for name in {"job", "unexecuted"} & set(metafunc.fixturenames):  # test_declaration says what is wrong
                metafunc.parametrize(("subject", "job") if name == "job" else name, [])
            return
        machine = Machine.current(self.device)
        jobs = tuple(jobs_of(self.backend, machine, quick=self.quick))
        if "job" in metafunc.fixturenames:
            subject = Subject(self.backend, machine, Oracle())
            given = [pytest.param(subject, job, id=f"{job.check.name}-{short(job.case)}") for job in jobs]
            metafunc.parametrize(("subject", "job"), given)
        elif "unexecuted" in metafunc.fixturenames:
            done = {c for job in jobs for c in touched(job.case, job.check.name, self.backend, machine)}
            left = [(c, why_not(c, self.backend, machine)) for c in cells_of(self.backend) if c not in done]
            metafunc.parametrize("unexecuted", [pytest.param(pair, id=str(pair[0])) for pair in left])


def short(case: Case) -> str:
    """A case as the name of a test."""
    return " ".join(_parts(case))


def _parts(case: Case) -> Iterator[str]:
    problem = case.problem
    yield f"{problem.activation!r} {str(problem.dtype).removeprefix('torch.')} {case.fed!r}"
    if problem.layout != case.fed:
        yield f"as {problem.layout!r}"
    yield f"E{problem.num_experts} K{problem.top_k} H{problem.hidden_size} I{problem.intermediate_size}"
    yield f"T{case.num_tokens} skew{case.skew:g} padding{case.padding:g} seed{case.seed}"
    flags = ("bias", "weight_on_input", "differentiable", "graph_capture")
    yield from (flag for flag in flags if getattr(problem, flag))
    yield from ("norm",) if problem.output_norm is not None else ()
