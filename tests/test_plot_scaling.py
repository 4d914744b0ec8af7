"""The drawing of what more ranks gain: its numbers, what cannot be drawn, and the page's own."""

import json
from xml.etree import ElementTree as ET

import pytest
from dispatching.scaling import axes, curves
from dispatching.subjects import DISPATCHERS
from plot_scaling import COLOURS, drawing
from plot_scaling import main as plot

from tests.rank_processes import ROOT

H200 = "benchmarks/results/expert_parallel_h200x2.json"


def document(size, times):
    """A document of `size` ranks; times of a layer by dispatcher, with 4 tokens a rank."""
    same = {"shape": "tiny", "tokens": 4, "routing": "uniform", "placement": "contiguous"}
    return {
        "num_ranks": size,
        "rows": [{**same, "dispatcher": name, "layer": {"median": us}} for name, us in times.items()],
    }


def test_scaling_is_tokens_a_second_over_one_rank_alone():
    alone, two = document(1, {"local": 100.0, "padded": 125.0}), document(2, {"local": 110.0, "padded": 160.0})
    lines = curves([two, alone], "tiny", 4, "uniform", "contiguous")
    assert lines == {"padded": {1: 100 / 125, 2: 2 * 100 / 160}}
    assert axes([two, alone]) == (["tiny"], [4])
    with pytest.raises(ValueError, match="no document has local with tiny, 4 tokens and uniform routing"):
        curves([document(2, {"padded": 1.0})], "tiny", 4, "uniform", "contiguous")
    with pytest.raises(ValueError, match=r"no document has a dispatcher with tiny, .* balanced placement"):
        curves([document(2, {"local": 1.0, "padded": 1.0})], "tiny", 4, "uniform", "balanced")
    tree = ET.fromstring(drawing([[("tiny & small", lines)]]))  # noqa: S314 - our own
    svg = "{http://www.w3.org/2000/svg}"
    assert len(tree.findall(f"{svg}circle[@class='dot-padded']")) == 2
    assert "tiny & small" in {text.text for text in tree.iter(f"{svg}text")}
    assert "prefers-color-scheme: dark" in tree.find(f"{svg}style").text
    assert set(COLOURS) == set(DISPATCHERS) - {"local"}


def test_what_cannot_be_drawn_is_one_line(tmp_path, capsys):
    good, wrong, out = tmp_path / "good.json", tmp_path / "wrong.json", tmp_path / "out.svg"
    good.write_text(json.dumps(document(2, {"local": 1.0, "padded": 1.0})), encoding="utf-8")
    for text in ("{", "[]", "{}", '{"num_ranks": 2, "rows": [{}]}', json.dumps(document(2, {"local": 0.0}))):
        wrong.write_text(text, encoding="utf-8")
        with pytest.raises(SystemExit, match=r"wrong\.json is no document that expert_parallel\.py wrote"):
            plot([str(good), str(wrong), "--out", str(out)])
    with pytest.raises(SystemExit, match=r"none\.json cannot be read: No such file"):
        plot([str(tmp_path / "none.json"), "--out", str(out)])
    with pytest.raises(SystemExit, match=r"balanced placement: measure one too"):
        plot([str(good), "--placement", "balanced", "--out", str(out)])
    with pytest.raises(SystemExit, match=r"cannot be written: No such file"):
        plot([str(good), "--out", str(tmp_path / "none" / "out.svg")])
    for options, said in (
        (("--placement", "odd"), "'odd'"),
        (("--routing", "odd"), "'odd'"),
        (("--tokens", "x"), "'x'"),
    ):
        with pytest.raises(SystemExit):
            plot([str(good), *options, "--out", str(out)])
        assert said in capsys.readouterr().err
    assert not out.exists()
    plot([str(good), "--out", str(out)])
    assert ET.parse(out).getroot().tag.endswith("svg")  # noqa: S314 - our own


def test_the_pages_drawing_is_that_of_the_results():
    documents = [json.loads((ROOT / H200).read_text(encoding="utf-8"))]
    panels = [
        [
            (f"{shape}, tokens a rank: {tokens}", curves(documents, shape, tokens, "uniform", "contiguous"))
            for shape in axes(documents)[0]
        ]
        for tokens in (64, 4096)
    ]
    note = "measured on two H200: 1 rank (local) and 2 ranks; 4 and 8 ranks were not run, no such machine was at hand"
    drawn_before = (ROOT / "docs/performance/expert_parallelism.svg").read_text(encoding="utf-8")
    assert drawing(panels, note) == drawn_before
    assert all(points[1] == 1.0 for row in panels for _, lines in row for points in lines.values())
