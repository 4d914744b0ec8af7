"""BackendConformance as an author meets it: three lines in a file of their own, run by a pytest of their own."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = """
from moesaic.conformance import BackendConformance
from tests.conformance import wrong

class TestMine(BackendConformance):
    backend = wrong.{backend}
    quick = True
"""
PIECES = """
from dataclasses import dataclass
from moesaic import Activation
from moesaic.conformance import ActivationConformance, DispatcherConformance
from tests.conformance.test_dispatcher import FLEETS, LosesLastRank

Slabs = FLEETS["TestSlabs"]

@dataclass(frozen=True)
class Accuses(Activation):
    gated = False
    def formula(self, rows, at):
        return rows[:, :1]

class TestActivation(ActivationConformance):
    activation = Accuses()

class TestFleet(DispatcherConformance):
    fleet = LosesLastRank(num_experts=10, num_ranks=4, inner=Slabs.fleet)
    hidden_sizes = (65,)
    duplicate_ids = False
"""


@pytest.fixture
def printed(tmp_path):
    """What pytest prints of a file."""

    def run(text, *options):
        file = tmp_path / "test_mine.py"
        file.write_text(text)
        command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-c", os.devnull, str(file), *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(  # noqa: S603
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout

    return run


@pytest.fixture
def outcome(printed):
    """Passed, failed and skipped tests of a class for a backend."""

    def run(backend, *options):
        last = printed(FILE.format(backend=f"{backend}()"), *options).strip().splitlines()[-1]
        return {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}

    return run


def test_one_test_for_each_promise_and_case(outcome):
    seen = outcome("Right")
    assert seen.keys() == {"passed", "skipped"}  # one empty parameter set: no cell is left
    assert seen["passed"] > 1000
    assert seen["skipped"] == 1


def test_a_wrong_backend_fails_where_its_fault_is(outcome):
    seen = outcome("DropsBias", "-k", "equals_reference")
    assert 0 < seen["failed"] < seen["passed"]


def test_a_malformed_declaration_is_one_failure_and_nothing_is_run(outcome):
    seen = outcome("Malformed")
    assert seen == {"failed": 1, "skipped": 2}


def test_a_failure_says_how_it_is_repeated(printed):
    seen = printed(FILE.format(backend="DropsBias()"), "-k", "equals_reference", "-x")
    [command] = set(re.findall(r"^E\s+repeat: (moesaic conform .*)$", seen, re.MULTILINE))
    name, *options = shlex.split(command)[2:]
    assert name == "tests.conformance.wrong:DropsBias"
    assert options[:3] == ["--check", "equals_reference", "--case"]
    assert "bias=True" in options[3]


def test_a_failure_of_another_kit_says_how_it_is_repeated(printed):
    seen = printed(PIECES, "--maxfail=2", "-k", "TestFleet or shapes")
    commands = re.findall(r"^E\s+repeat: (pytest .*)$", seen, re.MULTILINE)
    assert len(commands) == 2
    assert any("test_mine.py::TestFleet::test_promise[" in shlex.split(command)[1] for command in commands)


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("Right", "TestMine.backend is the class Right, but it needs an instance: Right()"),
        ("DECLARED", "TestMine.backend is Capabilities("),
    ],
)
def test_a_backend_that_is_none_is_one_failure_with_one_clear_error(printed, backend, said):
    seen = printed(FILE.format(backend=backend))
    assert said in seen
    assert "1 failed, 2 skipped" in seen


def test_a_class_without_a_backend_is_one_failure(printed):
    seen = printed("from moesaic.conformance import BackendConformance\nclass TestMine(BackendConformance):\n  pass\n")
    assert "TestMine.backend is None, but it needs an instance of a Backend, for instance Reference()" in seen
    assert "1 failed, 2 skipped" in seen


def test_importing_the_kit_does_not_import_pytest():
    program = "import sys, moesaic.conformance; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0  # noqa: S603
