"""The kit on trial: every mutant of a backend or a dispatcher is killed by the check meant for it; no control is."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from moesaic.conformance.mutants import Verdict, verdict
from moesaic.conformance.mutants.every import BACKENDS, DISPATCHERS, MUTANTS
from moesaic.conformance.mutants.kill_matrix import KillMatrix, controls_of

PAGE = Path(__file__).parents[2] / "docs" / "mutants.md"
UNPROVEN = {
    "backend": {"fresh_memory", "token_order", "two_runs", "capture", "host_reads", "stream_and_device"},
    "dispatcher": {"garbage_ids", "two_runs", "undefined_rows"},
    "activation": set(),
    "router": {"groups"},
    "format": set(),
}
"""Checks that find nothing alone; docs/conformance.md says why each is kept."""


@pytest.mark.parametrize("mutant", [*BACKENDS, *DISPATCHERS], ids=lambda mutant: mutant.name)
def test_the_check_meant_for_it_finds_it(mutant):
    found = verdict(mutant, [mutant.check])
    assert found.as_meant
    assert found.found[mutant.check]


@pytest.mark.parametrize("mutant", controls_of([*BACKENDS, *DISPATCHERS]), ids=lambda mutant: mutant.name)
def test_nothing_is_found_in_a_control(mutant):
    # The command line tries all cases; here every sixth.
    few = replace(mutant.judge, stride=6) if mutant.judge.kind == "backend" else mutant.judge
    assert dict(few.faults(mutant.control, few.checks)) == {}


def test_a_setting_that_is_left_changed_is_blamed_on_nothing_else():
    names = {"F93_float32_precision_left_lowered", "F93_precision_of_one_library_left_lowered"}
    chosen = [mutant for mutant in BACKENDS if mutant.name in names]
    assert len(chosen) == 2
    for mutant in chosen:
        assert list(replace(mutant.judge, stride=6).faults(mutant.subject, mutant.judge.checks)) == ["torch_settings"]


def test_there_are_enough_and_each_is_named_after_its_fault():
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) >= 60
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"F\d\d+_\w+", name) for name in names)
    assert all(mutant.meaning and "|" not in mutant.meaning for mutant in MUTANTS)


def test_the_page_lists_every_mutant_as_it_is():
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| F")]
    listed = [(name.removeprefix("| "), meaning, check) for name, meaning, check, _ in rows]
    assert listed == [(mutant.name, mutant.meaning, mutant.check) for mutant in MUTANTS], (
        "docs/mutants.md is out of date: moesaic conform --mutants > docs/mutants.md"
    )
    text = PAGE.read_text(encoding="utf-8")
    assert f"{len(MUTANTS)} of {len(MUTANTS)} mutants are killed, 0 not by the check meant" in text
    assert "accused" not in text


@pytest.mark.parametrize("kind", UNPROVEN)
def test_every_check_finds_something_that_no_other_finds_or_is_justified(kind):
    table = PAGE.read_text(encoding="utf-8").split(f"### What each {kind} check finds")[1].split("\n## ")[0]
    nothing = {row.split(" | ")[0].removeprefix("| ") for row in table.splitlines() if row.endswith("| - |")}
    assert nothing == UNPROVEN[kind]


def test_a_survivor_and_a_control_that_is_accused_are_told():
    dead, alive = Verdict("F01_a", "x", {"x": "wrong"}), Verdict("F01_b", "x", {})
    other, control = Verdict("F01_c", "x", {"y": "wrong"}), Verdict("control of F01_a", "", {})
    matrix = KillMatrix((dead, alive, other), (control,))
    assert matrix.survivors == ("F01_b",)
    assert matrix.not_as_meant == ("F01_c",)
    assert not matrix.is_clean
    assert KillMatrix((dead,), (control,)).is_clean
    assert not KillMatrix((dead,), (dead,)).is_clean
    document = json.loads(json.dumps(matrix.as_document()))
    assert (document["killed"], document["total"]) == (2, 3)
    assert (document["controls_passed"], document["controls_total"]) == (1, 1)
    assert document["survivors"] == ["F01_b"]
