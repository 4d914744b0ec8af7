import dataclasses
from pathlib import Path

import pytest

from moesaic import ACTIVATIONS, BACKENDS, Accepts, Reference, SwiGLU
from moesaic.cli.declarations import FLAGS
from moesaic.cli.matrix_page import matrix_page

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"


def row_of(page: str, label: str) -> list[str]:
    [line] = [line for line in page.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def altered(**changes):
    """A reference backend that declares something else."""
    declared = dataclasses.replace(Reference.capabilities, **changes)
    return type("Altered", (Reference,), {"name": "altered", "capabilities": declared})()


def test_written_checked_and_printed_are_one_page(moesaic, tmp_path):
    file = tmp_path / "matrix.md"
    assert moesaic("matrix", "--write", str(file)).code == 0
    page = file.read_text()
    assert moesaic("matrix").out == page == moesaic("matrix").out
    checked = moesaic("matrix", "--check", str(file))
    assert (checked.code, checked.out, checked.err) == (0, "", "")
    assert file.read_text() == page


def test_check_shows_what_differs(moesaic, tmp_path):
    file = tmp_path / "matrix.md"
    moesaic("matrix", "--write", str(file))
    page = file.read_text()
    file.write_text(page.replace("| `bias` | yes", "| `bias` | no", 1))
    checked = moesaic("matrix", "--check", str(file))
    assert checked.code == 1
    assert "-| `bias` | no" in checked.out
    assert "+| `bias` | yes" in checked.out
    assert f"moesaic matrix --write {file}" in checked.out
    assert file.read_text() != page


def test_check_sees_a_missing_line_end(moesaic, tmp_path):
    file = tmp_path / "matrix.md"
    moesaic("matrix", "--write", str(file))
    file.write_text(file.read_text().rstrip("\n"))
    assert moesaic("matrix", "--check", str(file)).code == 1


def test_json_has_exactly_the_documented_keys(moesaic, tmp_path):
    file = tmp_path / "matrix.md"
    file.write_text("old\n")
    document = moesaic("matrix", "--check", str(file), "--json").document
    assert list(document) == ["matrix", "up_to_date", "differences"]
    assert document["up_to_date"] is False
    assert document["matrix"] == moesaic("matrix").out
    assert any(line.startswith("-old") for line in document["differences"])


def test_every_declaration_is_on_the_page():
    page = matrix_page((*BACKENDS, Reference()))
    heads = [line for line in page.splitlines() if line.startswith("|  |")]
    for head in heads:
        assert head == f"|  | {' | '.join([*(b.name for b in BACKENDS), 'reference (oracle)'])} |"
    for flag in FLAGS:
        wanted = ["yes" if getattr(b.capabilities, flag) else "no" for b in (*BACKENDS, Reference())]
        assert row_of(page, f"`{flag}`") == wanted
    for activation in ACTIVATIONS:
        cells = row_of(page, f"`{activation()!r}`")
        for backend, cell in zip((*BACKENDS, Reference()), cells, strict=True):
            accepted = [a for a in backend.capabilities.activations if a.activation is activation]
            assert (cell == "-") is (not accepted)


@pytest.mark.parametrize(
    ("changes", "label", "cell"),
    [
        ({"bias": False}, "`bias`", "no"),
        ({"activations": ()}, "`ReLU2(limit=None)`", "-"),
        (
            {"activations": (Accepts(SwiGLU, scalar=("limit",), per_expert=("beta",)),)},
            "`SwiGLU(alpha=1.0, beta=0.0, limit=None)`",
            "each expert: beta; one for all: limit",
        ),
        ({"layouts": ()}, "`Standard()`", "no"),
        ({"dtypes": ()}, "`bfloat16`", "no"),
        ({"features": ("amx_bf16",)}, "needs", "amx_bf16"),
        ({"max_top_k": 32}, "most slots for a token", "32"),
        ({"row_bytes": 16}, "rows are a multiple of", "16 bytes"),
    ],
)
def test_a_changed_declaration_changes_its_cell(changes, label, cell):
    assert row_of(matrix_page((altered(**changes),)), label) == [cell]


def test_the_page_in_the_documentation_is_up_to_date(moesaic):
    assert moesaic("matrix", "--check", str(PAGE)).code == 0, "run: make matrix"
