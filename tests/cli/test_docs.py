"""docs/cli.md: its commands run, and its JSON has the keys that the commands print."""

import json
import re
import shlex
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line)[1:] for line in re.findall(r"^\$ (moesaic .*)$", TEXT, re.MULTILINE)]
SLOW = ("bench", "demo", "quantize", "accuracy", "tune")


@pytest.mark.parametrize("arguments", [c for c in COMMANDS if c[0] not in SLOW and "--check" not in c], ids=" ".join)
def test_an_example_runs(moesaic, arguments):
    answer = moesaic(*arguments)
    assert answer.code == 0 or (answer.code == 1 and arguments[0] == "explain"), answer


@pytest.mark.parametrize("command", SLOW)
def test_the_options_of_slow_examples_exist(moesaic, command):
    known = moesaic(command, "--help").out
    options = {word for c in COMMANDS if c[0] == command for word in c if word.startswith("--")}
    assert options
    assert all(option in known for option in options)


def test_the_documented_json_has_the_tested_keys():
    explain, row, demo = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL))
    assert list(explain) == ["problem", "machine", "backend", "why", "verdicts", "table"]
    assert list(row) == [
        *("shape", "tokens", "dtype", "backend", "microseconds"),
        *("p10_microseconds", "p90_microseconds", "bound_microseconds"),
    ]
    assert list(demo) == ["bits_per_byte", "tokens_per_second", "backend", "layers"]
