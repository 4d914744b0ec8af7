"""README and docs: links lead somewhere, and quoted figures are those of the committed results."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
RESULTS = {
    "Xeon with AMX, 2 cores": "cpu_layer_amx_2_cores.json",
    "EPYC (Zen 4), 2 cores": "cpu_layer_zen4_2_cores.json",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page):
    text = page.read_text(encoding="utf-8")
    targets = [t.split("#")[0] for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
    named = re.findall(r"`((?:docs|src|tests|benchmarks|examples)/[\w/.-]+\.\w+)`", text)
    missing = [t for t in targets if t and not (page.parent / t).exists()]
    assert not missing + [n for n in named if not (ROOT / n).exists() and not n.endswith("/x.py")]


def speedups(file):
    """Tokens -> throughput of the cpu_jit backend over grouped_mm."""
    rows = json.loads((ROOT / "benchmarks/results" / file).read_text(encoding="utf-8"))["rows"]
    times = {(row["tokens"], row["layer"]): row["microseconds"] for row in rows}
    tokens = sorted({row["tokens"] for row in rows})
    return [times[t, "transformers grouped_mm"] / times[t, "moesaic cpu_jit"] for t in tokens]


def test_the_cpu_pages_table_is_that_of_the_results():
    page = (ROOT / "docs/performance/cpu.md").read_text(encoding="utf-8")
    quoted = [re.findall(r"([\d.]+)x \|", line) for line in page.splitlines() if re.match(r"\| \d+ \| [\d.]+x", line)]
    files = ("cpu_layer_amx_2_cores.json", "cpu_layer_amx_16_cores.json", "cpu_layer_zen4_2_cores.json")
    assert quoted == [[f"{r:.2f}" for r in row] for row in zip(*map(speedups, files), strict=True)]


@pytest.mark.parametrize("machine", RESULTS)
def test_the_readmes_figures_are_those_of_the_results(machine):
    row = next(line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if machine in line)
    assert re.findall(r"([\d.]+)x", row) == [f"{ratio:.2f}" for ratio in speedups(RESULTS[machine])]
