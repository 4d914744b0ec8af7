"""The runs on two H200: rows of the committed results, and what pages say of them."""

import json
from itertools import product

from tests.quoted import words
from tests.rank_processes import ROOT

PAGE = "docs/performance/expert_parallelism.md"
SHAPES = ("qwen3_30b", "dsv3")
UNIFORM, ZIPF, BALANCED = TRAFFIC = (("uniform", "contiguous"), ("zipf_0.8", "contiguous"), ("zipf_0.8", "balanced"))
WAYS = ("dispatch", "combine")
PARTS = ("dispatch", "compute", "combine")
EXCHANGES = ("symmetric", "symmetric_fp8")


def document(name):
    return json.loads((ROOT / f"benchmarks/results/{name}_h200x2.json").read_text(encoding="utf-8"))


def measured(name):
    """(dispatcher, shape, tokens, routing, placement) -> row."""
    axes = ("dispatcher", "shape", "tokens", "routing", "placement")
    return {tuple(row[axis] for axis in axes): row for row in document(name)["rows"]}


NOW, EARLIER = measured("expert_parallel"), measured("expert_parallel_earlier")
RECORDER = document("load_recorder")["rows"]
PLANS = document("exchange_plans")


def median(dispatcher, shape, tokens, part, traffic=UNIFORM, run=NOW):
    return run[(dispatcher, shape, tokens, *traffic)][part]["median"]


def moving(dispatcher, shape, run=NOW):
    """Dispatch and combine of 4096 tokens, uniform routing."""
    return sum(median(dispatcher, shape, 4096, way, run=run) for way in WAYS)


def few(dispatcher, tokens=(1, 8, 64), shapes=SHAPES, ways=WAYS):
    """What each way takes, in every routing and placement."""
    return [NOW[(dispatcher, *axes, *traffic)][way] for *axes, traffic, way in product(shapes, tokens, TRAFFIC, ways)]


def planned(shape, wire="bf16"):
    """There and back by the plan that `ExchangePlan` gives: where it was run for FP8, the step is of 8 rows."""
    rows = {"qwen3_30b": 4, "dsv3": 2} if wire == "bf16" else {"qwen3_30b": 8}
    chosen = {"stripes": 528, "elements": 2048, "warps": 4, "shape": shape, "wire": wire, "rows": rows[shape]}
    (row,) = (row for row in PLANS["rows"] if chosen.items() <= row.items())
    return row


def span(values, form):
    """From the least to the greatest."""
    return f"{min(values):{form}} to {max(values):{form}}"


def assert_said(page, *said):
    text = words(page)
    assert not [one for one in said if one not in text]
