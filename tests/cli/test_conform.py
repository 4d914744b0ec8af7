"""`moesaic conform`: the package's backends, single cases, bad input."""

import json
import subprocess
import sys

import pytest

from moesaic import BACKENDS, Machine, Reference
from moesaic.conformance import base_case

COMMAND = (sys.executable, "-c", "from moesaic.cli.app import main; main()", "conform")
CASE = repr(base_case(Reference.capabilities))


def plain(backend):
    return base_case(backend.capabilities).problem


@pytest.mark.slow
def test_the_backends_of_the_package_keep_their_contract():
    """Without run-time type checks and in one process: under pytest a kit takes eight times as long."""
    asked = (*COMMAND, "--device", "cpu", "--quick", "--json")
    done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    document = json.loads(done.stdout)
    assert list(document) == ["machine", "commit", "quick", "seconds", "conforms", "backends"]
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


def test_mutants_are_tried_alone(moesaic):
    for beside in (("cpu",), ("--check", "two_runs"), ("--case", CASE), ("--device", "cpu")):
        answer = moesaic("conform", "--mutants", *beside)
        assert answer.code == 2, answer
        assert "--mutants" in answer.err
