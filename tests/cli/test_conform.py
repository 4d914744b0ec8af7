"""`moesaic conform`: the package's backends, single cases, bad input."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from moesaic import BACKENDS, Cpu, Machine, Reference
from moesaic.conformance import CHECKS, base_case
from moesaic.conformance.checks import in_turn
from tests.conformance import wrong

COMMAND = (sys.executable, "-c", "from moesaic.cli.app import main; main()", "conform")
CPU_CASE = repr(base_case(Cpu.capabilities))
CASE = repr(base_case(Reference.capabilities))


def plain(backend):
    return base_case(backend.capabilities).problem


@pytest.mark.slow
def test_the_backends_of_the_package_keep_their_contract():
    """Without run-time type checks and in one process: under pytest a kit takes eight times as long."""
    asked = (*COMMAND, "--device", "cpu", "--quick", "--json")
    done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    document = json.loads(done.stdout)
    assert list(document) == [
        *("machine", "commit", "quick", "seconds", "interrupted", "not_begun", "conforms", "backends")
    ]
    faults = [fault["command"] for backend in document["backends"] for fault in backend["faults"]]
    assert faults == []
    assert done.returncode == 0
    names = [b.name for b in (Reference(), *BACKENDS) if not b.reasons_against(plain(b), Machine.current("cpu"))]
    assert [backend["backend"] for backend in document["backends"]] == names
    for backend in document["backends"]:
        left = [cell for cell in backend["cells"] if not cell["executed"]]
        assert backend["conforms"] == (not left)
        assert ("conforms" in backend["verdict"]) == (not left)
        assert all(cell["reason"] for cell in left)


def test_one_check_on_one_case(moesaic):
    answer = moesaic("conform", "reference", "--check", "exactly_once", "--case", CASE)
    assert answer.code == 0, answer
    assert "reference: no fault found in the part that was asked for" in answer.out
    document = moesaic("conform", "cpu", "--check", "two_runs", "--case", CASE, "--json").document
    assert document["backends"][0]["counts"] == {"passed": 1}
    assert document["conforms"] is False


def test_without_a_name_every_backend_that_runs_here_is_tried(moesaic):
    document = moesaic("conform", "--device", "cpu", "--check", "exactly_once", "--case", CASE, "--json").document
    names = [backend["backend"] for backend in document["backends"]]
    assert names[0] == "reference"
    assert {"cpu", "torch_grouped"} <= set(names)


def test_bad_input_is_one_line(moesaic):
    moesaic("conform", "nobody").assert_bad_input("'nobody'", "reference", "torch_grouped")
    moesaic("conform", "cpu", "--check", "luck").assert_bad_input("'luck'", "equals_reference")
    moesaic("conform", "cpu", "--case", "Problem()").assert_bad_input("Problem")
    moesaic("conform", "cpu", "--case", "Standard()").assert_bad_input("needs the repr of a Case")
    moesaic("conform", "cpu", "--case", "__import__('os').system('true')").assert_bad_input("not understood")
    moesaic("conform", "cpu", "--device", "abacus").assert_bad_input("abacus")
    moesaic("conform", "cpu", "--check", "two_run").assert_bad_input("--check got 'two_run'", "nearest are two_runs")
    for limit in ("nan", "inf", "-inf", "0", "-3", "1e300"):
        moesaic("conform", "cpu", "--limit", limit).assert_bad_input(f"--limit got {float(limit):g}", "from 1 to 1e+06")


def test_off_a_terminal_each_finished_check_is_a_line_on_stderr(moesaic):
    answer = moesaic("conform", "cpu", "--case", CPU_CASE, "--json")
    lines = answer.err.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"cpu {check.name}" for check in in_turn(CHECKS)]
    assert all(re.fullmatch(r"cpu \w+: 1 (passed|skipped), \d+\.\d s", line) for line in lines), answer.err


def test_equal_faults_are_told_once_with_what_they_share(moesaic):
    biased = "tests.conformance.wrong:DropsBias"
    answer = moesaic("conform", biased, "--check", "equals_reference", "--quick", "--device", "cpu")
    assert answer.code == 1
    said = re.findall(
        r"^failed equals_reference: (\d+) of (\d+) cases, exactly those with bias=True$", answer.out, re.MULTILINE
    )
    assert len(said) == 1
    [repeat] = re.findall(r"^  (moesaic conform .*)$", answer.out, re.MULTILINE)
    assert repeat.endswith(" --device cpu")
    again = moesaic(*shlex.split(repeat)[1:], "--json")
    assert again.code == 1
    [report] = again.document["backends"]
    assert report["counts"] == {"failed": 1}
    assert report["faults"][0]["command"] == report["groups"][0]["command"] == repeat


MODULE = """
import ctypes
import os
from tests.conformance import wrong
print("a banner")
os.write(1, b"by number\\n")
ctypes.CDLL(None).printf(b"out of C\\n")
Right = wrong.Right
"""


@pytest.mark.parametrize("closed", ["", "2>&-", "0<&- 2>&-"])
def test_what_a_module_prints_while_it_is_imported_is_not_among_the_answer(tmp_path, closed):
    (tmp_path / "acme_prints.py").write_text(MODULE)
    command = f'exec "$0" -c "from moesaic.cli.app import main; main()" conform "$@" {closed}'
    asked = ("acme_prints:Right", "--check", "two_runs", "--case", repr(base_case(wrong.DECLARED)), "--json")
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(  # noqa: S603
        ("sh", "-c", command, sys.executable, *asked),  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=paths,
    )
    assert done.returncode == 0, done
    [report] = json.loads(done.stdout)["backends"]
    assert report["counts"] == {"passed": 1}
    printed = set() if "2>&-" in closed else {"a banner", "by number", "out of C"}
    assert set(done.stderr.splitlines()[:-1]) == printed


def test_mutants_are_tried_alone(moesaic):
    for beside in (("cpu",), ("--check", "two_runs"), ("--case", CASE), ("--device", "cpu")):
        answer = moesaic("conform", "--mutants", *beside)
        assert answer.code == 2, answer
        assert "--mutants" in answer.err
