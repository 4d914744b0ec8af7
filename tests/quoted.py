"""What a page quotes: the cells of its tables, and its words without line breaks."""

from tests.rank_processes import ROOT


def cells(page, first_cell):
    """The rows of the table whose head begins so, as lists of cells."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    body = lines[next(i for i, line in enumerate(lines) if line.startswith(f"| {first_cell} |")) + 2 :]
    body = body[: next(i for i, line in enumerate(body) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in body]


def words(page):
    """Its text in one line."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())
