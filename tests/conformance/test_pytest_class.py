"""BackendConformance as an author meets it: three lines in a file of their own, run by a pytest of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = """
from moesaic.conformance import BackendConformance
from tests.conformance import wrong

class TestMine(BackendConformance):
    backend = wrong.{backend}()
    quick = True
"""


@pytest.fixture
def outcome(tmp_path):
    """Passed, failed and skipped tests of a class for a backend."""

    def run(backend, *options):
        file = tmp_path / "test_mine.py"
        file.write_text(FILE.format(backend=backend))
        command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-c", os.devnull, str(file), *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(  # noqa: S603
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        last = done.stdout.strip().splitlines()[-1]
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
    assert seen["failed"] == 1
    assert "passed" not in seen


def test_importing_the_kit_does_not_import_pytest():
    program = "import sys, moesaic.conformance; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0  # noqa: S603
