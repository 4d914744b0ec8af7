"""README and docs: links lead somewhere, and quoted figures are those of the committed results."""

import json
import re
from pathlib import Path

import pytest
from plot_layers import FILES, drawing

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_refers_to_a_process_group_is_in_a_function(page):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    programs = [block for block in blocks if "process_group()" in block or "init_process_group" in block]
    module_level = [
        line for block in programs for line in block.splitlines() if re.match(r"\w[\w, ]* = |try:|dist\.", line)
    ]
    assert not module_level, "a reference that outlives the group may abort the process at its end"


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


def gpu_document(file):
    """A result of the GPU."""
    return json.loads((ROOT / "benchmarks/results" / file).read_text(encoding="utf-8"))


def gpu_cells(file):
    """(shape, scheme, tokens) -> (moesaic's row, the best row of a peer's whole layer or None, all of the cell)."""
    found = {}
    for row in gpu_document(file)["rows"]:
        found.setdefault((row["shape"], row["scheme"], row["tokens"]), []).append(row)
    return {
        key: (
            next(row for row in rows if row["role"] == "moesaic"),
            min(
                (r for r in rows if r["role"] == "peer" and r["scope"] == "layer" and "wrong" not in r),
                key=lambda row: row["microseconds"],
                default=None,
            ),
            rows,
        )
        for key, rows in found.items()
    }


def hopper_table(first):
    """(column, tokens) -> cell of the Hopper page's table whose first cell is `first`."""
    lines = (ROOT / "docs/performance/hopper.md").read_text(encoding="utf-8").splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    columns = [cell.strip() for cell in lines[begin].split("|")[2:-1]]
    body = lines[begin + 2 :]
    end = next(i for i, line in enumerate(body) if not line.startswith("|"))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in body[:end]]
    return {
        (column, int(row[0])): cell
        for row in rows
        for column, cell in zip(columns, row[1:], strict=True)
        if cell  # who has no row there leaves it empty
    }


MODELS = ("qwen3_30b", "mixtral", "dsv3_ep8", "gptoss_120b")


def of_models(file):
    """(shape, tokens) -> rows, of the layers of models."""
    return {(s, tokens): found for (s, _, tokens), found in gpu_cells(file).items() if s in MODELS}


def of_floor(row):
    return row["microseconds"] / row["floor_microseconds"]


@pytest.mark.parametrize(
    "name", ["layer", "layer_untuned", "layer_skew", "layer_hot", "layer_sizes", "quantized", "quantized_words"]
)
def test_nobody_is_wrong_in_the_gpu_results(name):
    assert not [row for row in gpu_document(f"gpu_{name}_h200.json")["rows"] if "wrong" in row]


def test_the_hopper_pages_layer_is_that_of_the_results():
    measured = {
        key: f"{own['microseconds']:.1f} ({of_floor(own):.2f}, {own['teraflops']:.0f})"
        for key, (own, _, _) in of_models("gpu_layer_h200.json").items()
    }
    assert hopper_table("tokens") == measured


def test_the_hopper_pages_peers_are_those_of_the_results():
    names = {"vllm": "vLLM", "torch_grouped_mm": "grouped_mm"}
    wanted, ratios = {}, []
    for key, (own, peer, _) in of_models("gpu_layer_h200.json").items():
        if peer is not None:
            ours, theirs = own["microseconds"], peer["microseconds"]
            name = names.get(peer["impl"], peer["impl"])
            wanted[key] = f"{ours:.1f} / {theirs:.1f} = {theirs / ours:.2f} ({name})"
            ratios.append(theirs / ours)
    assert hopper_table("tokens, ours / theirs") == wanted
    said = f"t least as fast as the best peer in {sum(r >= 1 for r in ratios)} of {len(ratios)} cells"
    assert said in words("docs/performance/hopper.md")
    for text in (said, f"from {min(ratios):.2f} to {max(ratios):.2f} times"):
        assert text in words("README.md")


def test_the_hopper_pages_bound_is_that_of_the_results():
    bounds = {
        key: (own, next((row for row in rows if row["impl"] == "cublas"), None))
        for key, (own, _, rows) in of_models("gpu_layer_h200.json").items()
    }
    assert hopper_table("tokens, TFLOP/s of cuBLAS") == {
        key: f"{own['teraflops']:.0f} / {most['teraflops']:.0f}" for key, (own, most) in bounds.items() if most
    }


def test_the_hopper_pages_odd_sizes_are_those_of_the_results():
    cells = gpu_cells("gpu_layer_sizes_h200.json")
    wanted, losses = {}, {}
    for number in sorted({tokens for _, _, tokens in cells}):
        even, odd = (of_floor(cells[shape, "bf16", number][0]) for shape in ("even", "odd"))
        losses[number] = odd / even
        wanted |= {
            ("of the floor, even", number): f"{even:.2f}",
            ("of the floor, odd", number): f"{odd:.2f}",
            ("odd / even", number): f"{odd / even:.2f}",
        }
    assert hopper_table("tokens, odd sizes") == wanted
    worst = max(losses, key=losses.get)
    lost = f"dd sizes lose at most {losses[worst] - 1:.0%} (at {worst} tokens)"
    assert lost in words("docs/performance/hopper.md")


@pytest.mark.parametrize(
    ("first", "file"),
    [("tokens, Zipf 1", "gpu_layer_skew_h200.json"), ("tokens, hot 50%", "gpu_layer_hot_h200.json")],
)
def test_the_hopper_pages_other_routings_are_those_of_the_results(first, file):
    even, wanted, losses = of_models("gpu_layer_untuned_h200.json"), {}, {}
    for cell, (own, _, _) in of_models(file).items():
        level = even[cell][0]
        assert own["microseconds"] > 0
        wanted[cell] = f"{of_floor(own):.2f} ({of_floor(level):.2f})"
        losses[cell] = of_floor(own) / of_floor(level)
    assert hopper_table(first) == wanted
    shape, tokens = worst = max(losses, key=losses.get)
    assert f"It loses at most {losses[worst] - 1:.0%} ({shape}, {tokens} tokens)" in words("docs/performance/hopper.md")


def test_the_hopper_pages_verdicts_are_those_of_the_results():
    """What was asked of 4096 and 16384 tokens, and of one, beside what the tables hold."""
    cells, page = of_models("gpu_layer_h200.json"), words("docs/performance/hopper.md")
    for tokens, asked in ((4096, "520, 660, 640, 430 TFLOP/s"), (16384, "625, 680, 660, 560")):
        speeds = [f"{cells[shape, tokens][0]['teraflops']:.0f}" for shape in MODELS]
        assert f"| {tokens} tokens: {asked} | {', '.join(speeds)}: " in page
        bounds = [next(r["teraflops"] for r in cells[shape, tokens][2] if r["impl"] == "cublas") for shape in MODELS]
        pairs = [f"{own} of {most:.0f}" for own, most in zip(speeds, bounds, strict=True)]
        assert f"{', '.join(pairs)} at {tokens}" in page
    first, mixtral, dsv3, gptoss = (f"{of_floor(cells[shape, 1][0]):.2f}" for shape in MODELS)
    assert f"| {first} and {gptoss}; {mixtral} and {dsv3}: " in page
    few = [of_floor(cells[s, 512][0]) for s in MODELS]
    assert f"| 512 tokens within 1.10 | {', '.join(f'{ratio:.2f}' for ratio in few)}. " in page


def test_the_drawings_are_those_of_the_results():
    document = gpu_document("gpu_layer_h200.json")
    for column, name in FILES.items():
        file = f"docs/performance/gpu_layer_h200_{name}.svg"
        assert drawing(document, column, MODELS, 2) == (ROOT / file).read_text(encoding="utf-8")
        assert f"]({file})" in (ROOT / "README.md").read_text(encoding="utf-8")


def words(page):
    """A page's text without its line breaks."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_the_quantized_pages_table_is_that_of_the_results():
    cells = gpu_cells("gpu_quantized_h200.json")
    lines = (ROOT / "docs/performance/quantized.md").read_text(encoding="utf-8").splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("| layer, weights |"))
    tokens = [int(cell) for cell in lines[begin].split("|")[3:-1]]
    body = [line.split(" | ") for line in lines[begin + 2 :]]
    body = body[: next(i for i, line in enumerate(body) if len(line) < 3)]
    subject, faster, seen = None, [], set()
    for head, kind, *quoted in body:
        if head.startswith("| ") and "`" in head:
            subject = tuple(head.removeprefix("| ").rstrip("`").split(", `"))
            seen.add(subject)
        for number, cell in zip(tokens, quoted, strict=True):
            ours, peer, _ = cells[(*subject, number)]
            wanted = {"us": f"{ours['microseconds']:.0f}", "of the floor": f"{of_floor(ours):.2f}"}
            if kind not in wanted:
                faster.append(ours["microseconds"] < peer["microseconds"])
                wanted[kind] = f"{ours['microseconds'] / peer['microseconds']:.2f}"
            assert cell.removesuffix(" |") == wanted[kind], (subject, kind, number)
    assert seen == {(shape, scheme) for shape, scheme, _ in cells}
    text = words("docs/performance/quantized.md")
    assert f"Faster than the best whole-layer peer in {sum(faster)} of {len(faster)} cells" in text


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
