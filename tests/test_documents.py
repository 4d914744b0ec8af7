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


def gpu_rows(file):
    """The rows of a result of the GPU."""
    return json.loads((ROOT / "benchmarks/results" / file).read_text(encoding="utf-8"))["rows"]


def hopper_table(first):
    """Tokens -> the other cells of the Hopper page's table whose head names `first` before the other shapes."""
    lines = (ROOT / "docs/performance/hopper.md").read_text(encoding="utf-8").splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"| tokens | {first} |"))
    shapes = [cell.strip() for cell in lines[begin].split("|")[2:-1]]
    body = lines[begin + 2 :]
    end = next(i for i, line in enumerate(body) if not line.startswith("|"))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in body[:end]]
    return {(shape, int(row[0])): cell for row in cells for shape, cell in zip(shapes, row[1:], strict=True)}


def test_the_hopper_pages_layer_is_that_of_the_results():
    rows = [row for row in gpu_rows("gpu_layer_h200.json") if row["layer"] == "hopper_grouped"]
    measured = {
        (r["shape"], r["tokens"]): f"{r['microseconds']:.1f} "
        f"({r['microseconds'] / r['floor_microseconds']:.2f}, {r['teraflops']:.0f})"
        for r in rows
    }
    assert hopper_table("qwen3_30b") == measured


def test_the_hopper_pages_peers_are_those_of_the_results():
    rows = gpu_rows("gpu_peers_h200.json")
    quoted = hopper_table("mixtral_8x7b")
    assert set(quoted) == {(row["shape"], row["tokens"]) for row in rows}
    for (shape, tokens), cell in quoted.items():
        times = {r["peer"]: r["us"] for r in rows if (r["shape"], r["tokens"]) == (shape, tokens)}
        ours = times.pop("moesaic hopper_grouped")
        best = min(times.values())
        assert cell.startswith(f"{ours:.1f} / {best:.1f} = {best / ours:.2f} (")


def test_the_quantized_pages_table_is_that_of_the_results():
    rows, peers = gpu_rows("gpu_quantized_h200.json"), gpu_rows("quantized_peers.json")
    lines = (ROOT / "docs/performance/quantized.md").read_text(encoding="utf-8").splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("| layer, weights |"))
    tokens = [int(cell) for cell in lines[begin].split("|")[3:-1]]
    body = [line.split(" | ") for line in lines[begin + 2 :]]
    body = body[: next(i for i, line in enumerate(body) if len(line) < 3)]
    subject, faster = None, []
    for head, kind, *cells in body:
        if head.startswith("| ") and "`" in head:
            shape, scheme = head.removeprefix("| ").rstrip("`").split(", `")
            subject = [r for r in rows if (r["shape"], r["scheme"]) == (shape, scheme)]
            other = [r for r in peers if (r["shape"], r["scheme"]) == (shape, scheme)]
        for number, cell in zip(tokens, cells, strict=True):
            ours = chosen([r for r in subject if r["tokens"] == number])
            best = min((r["microseconds"] for r in other if r["tokens"] == number), default=0)
            wanted = {
                "us": f"{ours['microseconds']:.0f}",
                "of the floor": f"{ours['microseconds'] / ours['floor']:.2f}",
            }
            quoted = wanted[kind] if kind in wanted else f"{ours['microseconds'] / best:.2f}"
            assert cell.removesuffix(" |") == quoted, (head, kind, number)
            if kind not in wanted:
                faster.append(ours["microseconds"] < best)
    page = " ".join(" ".join(lines).split())
    assert f"Faster than the best whole-layer peer in {sum(faster)} of {len(faster)} cells" in page


def chosen(rows):
    """Of one number of tokens what `TritonQuantized` computes with: by the mean rows of an expert."""
    by, first = {row["impl"]: row for row in rows}, rows[0]
    experts, slots = {"qwen3_30b": (128, 8), "dsv3_ep8": (32, 8), "mixtral": (8, 2), "gptoss_120b": (128, 4)}[
        first["shape"]
    ]
    mean = first["tokens"] * slots / experts
    if first["scheme"] == "nvfp4" and mean >= 512:
        return by["read back"]
    least = {("nvfp4", "qwen3_30b"): 0.33, ("mxfp4", "qwen3_30b"): 0.66, ("mxfp4", "gptoss_120b"): 0.125}
    products = mean >= least.get((first["scheme"], first["shape"]), 4 if first["scheme"] == "int4" else 32)
    return by.get("in products" if products else "in triton", by["triton_quantized"])


def test_the_pages_count_what_the_conformance_results_hold():
    def counts(file):
        text = (ROOT / "benchmarks/results" / file).read_text(encoding="utf-8")
        return {name: kit["counts"] for name, kit in json.loads(text)["backends"].items()}

    page = (ROOT / "docs/design/progress.md").read_text(encoding="utf-8")
    assert f"{sum(kit['passed'] for kit in counts('conform_hopper_h200.json').values())} checks passed" in page
    for file in ("conform_quantized_h200.json", "conform_hopper_quick_h200.json"):
        found = counts(file)
        assert all(set(kit) == {"passed", "skipped"} for kit in found.values())
        assert f"{sum(kit['passed'] for kit in found.values())} checks passed (`{file}`)" in page
