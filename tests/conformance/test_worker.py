"""A backend that raises, hangs or dies costs one job, and the next one is run."""

import importlib
from dataclasses import dataclass
from typing import ClassVar

import pytest

from moesaic import Capabilities, Machine
from moesaic.conformance import CHECKS, Status, Worker, base_case, conform
from moesaic.errors import BackendError
from tests.conformance import wrong

CPU = Machine.current("cpu")
CASE = base_case(wrong.DECLARED)
THREE = [c for c in CHECKS if c.name in ("equals_reference", "one_token", "token_order")]


@pytest.mark.parametrize(
    ("backend", "status", "said"),
    [
        (wrong.Raises(), Status.ERRORED, "ZeroDivisionError"),
        (wrong.Hangs(), Status.HUNG, "no answer within 5 seconds"),
        (wrong.Dies(), Status.CRASHED, "SIGSEGV"),
    ],
    ids=lambda v: getattr(v, "name", None),
)
def test_the_kit_goes_on(backend, status, said):
    with Worker(limit=5) as worker:
        report = conform(backend, CPU, checks=THREE, cases=[CASE], execution=worker)
    assert [o.status for o in report.outcomes] == [Status.PASSED, status, Status.PASSED]
    assert said in report.faults[0].detail
    assert "--check one_token --case 'Case(" in report.faults[0].command(backend.name)


def test_what_a_process_printed_before_it_died_is_kept():
    with Worker(limit=60) as worker:
        report = conform(wrong.Dies(), CPU, checks=THREE[1:2], cases=[CASE], execution=worker)
    assert "kernel: illegal address" in report.faults[0].detail


MODULE = """
import time
from dataclasses import dataclass
from typing import ClassVar
from moesaic import Capabilities
from tests.conformance import wrong
time.sleep(1.5)

@dataclass(frozen=True)
class Imports(wrong.Around):
    name: ClassVar[str] = "imports"
    capabilities: ClassVar[Capabilities] = wrong.DECLARED
    def prepare(self, weights, problem):
        import acme_compiler_one, acme_compiler_two
        return weights
"""


def test_the_time_that_imports_take_is_not_that_of_a_call(tmp_path, monkeypatch):
    (tmp_path / "acme_slow_import.py").write_text(MODULE)
    for name in ("acme_compiler_one", "acme_compiler_two"):
        (tmp_path / f"{name}.py").write_text("import time; time.sleep(0.7)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with Worker(limit=1) as worker:
        backend = importlib.import_module("acme_slow_import").Imports()
        report = conform(backend, CPU, checks=THREE, cases=[CASE], execution=worker)
    assert [o.status for o in report.outcomes] == [Status.PASSED] * 3


def test_a_backend_that_cannot_be_sent_says_what_to_change():
    @dataclass(frozen=True)
    class Local(wrong.Around):
        name: ClassVar[str] = "local"
        capabilities: ClassVar[Capabilities] = wrong.DECLARED

    with Worker() as worker, pytest.raises(BackendError, match="the top of a module"):
        conform(Local(), CPU, checks=THREE, cases=[CASE], execution=worker)
