"""`moesaic explain` says which tuned table is used, or why none."""

from dataclasses import replace

from moesaic import HopperGrouped, Problem, SwiGLU, known_machine
from moesaic.tuning import CostModel, Origin, write_table
from tests.tuning.examples import table as tuned_table

FLAGS = ("--experts", "8", "--top-k", "2", "--hidden", "64", "--intermediate", "32", "--activation", "SwiGLU()")
PROBLEM = Problem(num_experts=8, top_k=2, hidden_size=64, intermediate_size=32, activation=SwiGLU())
H200 = known_machine("h200")


def test_a_tuned_table_that_is_used_is_named(moesaic, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = write_table(tmp_path / "moesaic" / "tables", tuned_table(problem=PROBLEM, origin=Origin.of(H200)))
    answer = moesaic("explain", *FLAGS, "--machine", "h200")
    [line] = [line for line in answer.out.splitlines() if line.startswith("table")]
    assert str(path) in line
    assert "4 sizes, 1 to 1024 tokens, measured on NVIDIA H200, torch 2.13.0, triton 3.6.0" in line
    document = moesaic("explain", *FLAGS, "--machine", "h200", "--json").document
    assert document["table"] == {"files": [str(path)], "rows": [1, 8, 512, 1024], "ignored": []}


def test_why_no_tuned_table_is_used(moesaic, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = tmp_path / "moesaic" / "tables"
    none = moesaic("explain", *FLAGS, "--machine", "h200")
    assert f"table    none, so the cost model chooses: there is no table of these sizes in {directory}" in none.out
    older = write_table(directory, tuned_table(problem=PROBLEM, origin=replace(Origin.of(H200), triton="3.5.1")))
    other = write_table(directory, tuned_table(problem=replace(PROBLEM, bias=True), origin=Origin.of(H200)))
    (directory / f"{older.stem}-cut.json").write_text('{"format": 1')
    found = moesaic("explain", *FLAGS, "--machine", "h200")
    assert "none, so the cost model chooses: no table is of this problem, device, compiler and kernels" in found.out
    assert f"ignored: {older} is of another triton 3.5.1, not 3.6.0" in found.out
    assert f"ignored: {other} is of another bias True, not False" in found.out
    assert f"ignored: {directory / f'{older.stem}-cut.json'} cannot be read: " in found.out
    document = moesaic("explain", *FLAGS, "--machine", "h200", "--json").document["table"]
    assert (document["files"], document["rows"], len(document["ignored"])) == ([], [], 3)


def test_a_backend_with_one_form_has_no_table(moesaic):
    answer = moesaic("explain", *FLAGS, "--machine", "cpu-amx")
    assert "table" not in answer.out
    assert moesaic("explain", *FLAGS, "--machine", "cpu-amx", "--json").document["table"] is None


def test_a_backend_that_is_told_how_to_choose_says_so(moesaic, monkeypatch):
    monkeypatch.setattr("moesaic.cli.backend_choice.BACKENDS", (HopperGrouped(CostModel(products=False)),))
    answer = moesaic("explain", *FLAGS, "--machine", "h200")
    assert "table    none: hopper_grouped chooses by CostModel(products=False)" in answer.out
