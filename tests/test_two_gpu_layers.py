"""What the pages say of layers and of counting on two H200: every figure is that of the committed results."""

import json

import pytest

from tests.quoted import cells
from tests.rank_processes import ROOT
from tests.two_gpus import (
    BALANCED,
    EARLIER,
    EXCHANGES,
    NOW,
    PAGE,
    PARTS,
    RECORDER,
    SHAPES,
    TRAFFIC,
    UNIFORM,
    ZIPF,
    assert_said,
    median,
    moving,
    planned,
    span,
)


def test_nccl_takes_as_many_times_as_long_as_the_pages_say():
    over_nccl = [
        min(
            (moving(name, shape, EARLIER), name)
            for name in ("padded", "padded_fp8", "padded_grouped", "all_to_all", "all_gather")
            if (name, shape, 4096, *UNIFORM) in EARLIER
        )
        for shape in SHAPES
    ]
    assert {name for _, name in over_nccl} == {"padded"}
    times = [moving("padded", shape) / moving("symmetric", shape) for shape in SHAPES]
    assert_said(PAGE, f"the fastest over NCCL: {times[0]:.1f} times with qwen3_30b, {times[1]:.1f} with dsv3")
    assert_said("docs/design/progress.md", f"4096 tokens, {times[0]:.1f} and {times[1]:.1f} times as fast as")
    assert {f"{one:.1f}" for one in times} == {"5.3"}
    gains = [
        2 * median("local", *axes, "layer") / median(name, *axes, "layer")
        for name, *axes in (
            ("symmetric", "qwen3_30b", 64),
            ("symmetric", "dsv3", 64),
            ("symmetric", "qwen3_30b", 4096),
            ("symmetric", "dsv3", 4096),
            ("symmetric_fp8", "qwen3_30b", 4096),
            ("symmetric_fp8", "dsv3", 4096),
            ("padded", "qwen3_30b", 4096),
        )
    ]
    said = [f"{gain:.2f}" for gain in gains]
    assert_said(
        PAGE,
        f"{said[0]} times the tokens a second with qwen3_30b at 64 tokens and {said[1]} with dsv3",
        f"{said[2]} and {said[3]} at 4096, with FP8 {said[4]} and {said[5]}. Over NCCL two ranks of qwen3_30b are at "
        f"{said[6]} there",
    )
    assert_said(
        "README.md",
        f"{said[2]} times the tokens a second of one with all experts for qwen3_30b's layer and {said[3]} times for",
        f"{times[0]:.1f} times as fast as over NCCL with both",
    )


def test_a_layer_is_as_far_above_its_longer_part_as_the_page_says():
    def over(shape, name):
        return ", ".join(f"{NOW[(name, shape, 4096, *traffic)]['layer_over_max']:.3f}" for traffic in TRAFFIC)

    said = [
        f"{shape} {over(shape, 'symmetric')}, with FP8 {over(shape, 'symmetric_fp8')}"
        for shape in ("dsv3", "qwen3_30b")
    ]
    assert_said(PAGE, "; ".join(said))
    layers = {
        (name, shape, tokens, traffic): f"{median(name, shape, tokens, 'layer', traffic):.0f}"
        for name in ("symmetric", "symmetric_fp8", "padded")
        for shape in SHAPES
        for tokens in (64, 4096)
        for traffic in TRAFFIC
    }

    def both(shape, tokens, names=("symmetric", "padded"), word="against"):
        return f" {word} ".join(layers[name, shape, tokens, UNIFORM] for name in names)

    def moved(shape, tokens):
        return [layers["symmetric", shape, tokens, traffic] for traffic in (ZIPF, BALANCED)]

    large, small = moved("dsv3", 4096), moved("qwen3_30b", 4096)
    few_large, few_small = (" to ".join(moved(shape, 64)) for shape in ("dsv3", "qwen3_30b"))
    level = {
        (shape, tokens, traffic): NOW[("symmetric", shape, tokens, *traffic)]["balancedness"]
        for shape in SHAPES
        for tokens in (512, 4096)
        for traffic in (ZIPF, BALANCED)
    }
    fp8 = [layers["symmetric_fp8", shape, 4096, UNIFORM] for shape in SHAPES]
    assert_said(
        PAGE,
        f"a layer takes {layers['symmetric', 'qwen3_30b', 4096, UNIFORM]} us against "
        f"{layers['padded', 'qwen3_30b', 4096, UNIFORM]} over NCCL with qwen3_30b, {both('dsv3', 4096)} with dsv3; at "
        f"64 tokens {both('qwen3_30b', 64)}, and {both('dsv3', 64)}",
        f"the layer of dsv3 goes from {large[0]} us to {large[1]}, that of qwen3_30b from {' to '.join(small)}; at 64 "
        f"tokens {few_large} and {few_small}",
        f"contiguous {level['qwen3_30b', 4096, ZIPF]:.3f} with qwen3_30b and {level['dsv3', 4096, ZIPF]:.3f} with "
        f"dsv3, balanced {level['qwen3_30b', 4096, BALANCED]:.4f} and {level['dsv3', 4096, BALANCED]:.3f}",
        f"{level['qwen3_30b', 512, BALANCED]:.3f} with qwen3_30b, {level['dsv3', 512, BALANCED]:.3f} with dsv3 "
        f"(contiguous: {level['qwen3_30b', 512, ZIPF]:.3f}, {level['dsv3', 512, ZIPF]:.3f})",
        f"from {layers['symmetric', 'qwen3_30b', 4096, UNIFORM]} to {fp8[0]}; that of dsv3, {fp8[1]} against "
        f"{layers['symmetric', 'dsv3', 4096, UNIFORM]}",
    )
    assert_said(
        "docs/design/progress.md",
        f"Zipf 0.8, contiguous to balanced: {' to '.join(large)} us and {' to '.join(small)}",
        "{:.3f} with dsv3, {:.3f} with qwen3_30b, with FP8 {:.3f} and {:.3f} (1.15 asked: not met with qwen3".format(
            *(NOW[(name, shape, 4096, *UNIFORM)]["layer_over_max"] for name in EXCHANGES for shape in reversed(SHAPES))
        ),
    )


def test_halves_come_to_what_the_page_says():
    name, shape = "symmetric", "qwen3_30b"
    there, compute, back = (median(name, shape, 4096, part) for part in PARTS)
    row, coded = (NOW[(one, shape, 4096, *UNIFORM)] for one in EXCHANGES)
    layer, more = row["layer"]["median"], row["layer"]["median"] - there - compute - back
    rounds = [one for one in RECORDER if (one["tokens"], one["routing"]) == (4096, "uniform")]
    in_turn = [(one["recorder"]["without"], one["compute"]["median"]) for one in rounds]
    busy = [NOW[(one, shape, 4096, *ZIPF)]["layer_over_max"] for one in EXCHANGES]
    link = row["dispatch_megabytes"] / 0.33
    halves, flops = median("local", shape, 4096, "layer"), 32768 * 6 * 2048 * 768 / 1e6
    open_, longest = (there + back) / 2, coded["compute"]["median"]
    fp8 = halves + (coded["dispatch"]["median"] + coded["combine"]["median"]) / 2
    plan, of_codes = planned(shape), planned(shape, "fp8")
    searched = halves + (plan["there"]["median"] + plan["back"]["median"]) / 2
    searched_fp8 = halves + (of_codes["there"]["median"] + plan["back"]["median"]) / 2
    kept = halves * 8 / 132
    worst = max(found["layer_over_max"] for key, found in NOW.items() if key[:3] == (name, "dsv3", 4096))
    assert_said(
        PAGE,
        f"a layer takes {layer:.1f} us: dispatch {there:.1f}, computing {compute:.1f}, combine {back:.1f}, and "
        f"{more:.0f} more",
        f"That is {row['layer_over_max']:.3f} of max(compute, wire); 1.15 asked is {1.15 * compute:.0f} us",
        f"With FP8 there it is {coded['layer']['median']:.1f}, {coded['layer_over_max']:.3f}",
        f"it is {in_turn[0][0]:.1f} and {in_turn[1][0]:.1f}, {in_turn[0][0] / in_turn[0][1]:.3f} and "
        f"{in_turn[1][0] / in_turn[1][1]:.3f} of computing there",
        f"{busy[0]:.3f} and {busy[1]:.3f}; with dsv3 {worst:.3f} at most",
        f"{row['layer_over_max']:.3f} would be {(compute + more + 2 * link) / compute:.2f}",
        f"on its 64 experts, 512 an expert, in {compute:.1f} us",
        f"with 128 experts: {halves:.1f} us, so half of it, {halves / 2:.1f}, since the grouped products reach "
        f"{flops / halves:.0f} TFLOP/s instead of {flops / compute:.0f}",
        f"two halves compute {halves:.1f} us, {halves - compute:.0f} more",
        f"in the open, {open_:.1f} us: {halves + open_:.0f} us, {(halves + open_) / compute:.3f}, if everything else",
        f"With FP8 there it is {fp8:.0f}, {fp8 / longest:.3f}. With the exchanges as the search of a plan timed them "
        f"{searched / compute:.3f}, and {searched_fp8 / longest:.3f} with FP8; at 330 GB/s "
        f"{(halves + link) / compute:.3f}",
        f"{halves:.1f} and one combine, {halves + back:.0f} us, {(halves + back) / compute:.3f}",
        f"eight are 6 % of {halves:.0f} us, {kept:.0f} more: {(halves + open_ + kept) / compute:.3f}, and "
        f"{(fp8 + kept) / longest:.3f} with FP8",
        f"So {(halves + open_) / compute:.2f} is the best that can be hoped for and "
        f"{(halves + open_ + kept) / compute:.2f} more likely, at {row['layer_over_max']:.2f} without; with FP8 "
        f"{fp8 / longest:.2f} and {(fp8 + kept) / longest:.2f}, at {coded['layer_over_max']:.2f}",
    )
    file = ROOT / "benchmarks/results/gpu_layer_earlier_h200.json"
    alone = {
        found["tokens"]: found["microseconds"] / 2
        for found in json.loads(file.read_text(encoding="utf-8"))["rows"]
        if (found["shape"], found["layer"]) == (shape, "hopper_grouped")
    }
    assert_said(
        PAGE,
        f"two halves take {2 * alone[4096]:.0f}, 1024 and 3072 tokens take {alone[2048]:.0f} + "
        f"{(alone[4096] + alone[8192]) / 2:.0f}, and four pieces of 1024 take {4 * alone[2048]:.0f}",
    )
    assert_said(
        "docs/design/progress.md",
        f"{(halves + open_) / compute:.2f} of max(compute, wire) at best for qwen3_30b, {fp8 / longest:.2f} with FP8, "
        f"by arithmetic, where {row['layer_over_max']:.2f} and {coded['layer_over_max']:.2f} are measured",
    )


def test_computing_differs_between_rows_as_the_page_says():
    names = (*EXCHANGES, "padded")
    same, zipf = ([median(name, "dsv3", 4096, "compute", traffic) for name in names] for traffic in (UNIFORM, ZIPF))
    sums = [row["layer_over_sum"] for key, row in NOW.items() if key[0] == "symmetric" and key[2] in (64, 4096)]
    assert_said(
        PAGE,
        f"the sum of its parts ({span(sums, '.2f')} in the tables' rows of `symmetric`",
        f"differs by {100 * (max(same) / min(same) - 1):.0f} % between these rows under uniform routing "
        f"({span(same, '.0f')} us) and by {100 * (max(zipf) / min(zipf) - 1):.0f} % under Zipf 0.8 "
        f"({span(zipf, '.0f')})",
    )


@pytest.mark.parametrize("way", ["recorded", "launched"])
def test_counting_costs_what_the_pages_say(way):
    rows = sorted(RECORDER, key=lambda row: (row["tokens"], row["dispatcher"], row["routing"]))
    column = {"recorded": 4, "launched": 5}[way]
    routings = {"uniform": "uniform", "zipf_0.8": "Zipf 0.8"}
    wanted = []
    for row in rows:
        found = row["recorder"]
        low, high = found[f"{way}_quartiles"]
        head = [str(row["tokens"]), routings[row["routing"]], f"`{row['dispatcher']}`", f"{found['without']:.1f}"]
        wanted.append([*head, f"{found[f'{way}_percent']:.2f} ({low:.2f} to {high:.2f})"])
    quoted = cells(PAGE, "recorder, tokens")
    assert [[*row[:4], row[column]] for row in quoted] == wanted
    each = {
        tokens: [row["recorder"][f"{way}_percent"] for row in rows if row["tokens"] == tokens]
        for tokens in (1, 64, 4096)
    }
    one, some, many = (span(found, ".2f") for found in each.values())
    every = span([percent for found in each.values() for percent in found], ".2f")
    assert {row["recorder"]["rounds"] for row in rows} == {101}
    if way == "recorded":
        assert all(low < 0 < high for low, high in (row["recorder"]["recorded_quartiles"] for row in rows))
        assert_said(
            PAGE, f"{one} % at one token, {some} at 64, {many} at 4096", f"inside the exchange {every} % at 1, 64"
        )
        assert_said("docs/load_balancing.md", f"{one} % of a layer of qwen3_30b with one token, {some} % with 64")
        assert_said("docs/design/progress.md", f"in the exchange {every} %, met")
        return
    added = {
        tokens: span(
            [row["recorder"]["launched"] - row["recorder"]["without"] for row in rows if row["tokens"] == tokens], form
        )
        for tokens, form in ((1, ".1f"), (4096, ".0f"))
    }
    layers = [row["recorder"]["without"] for row in rows if row["tokens"] == 4096]
    assert_said(
        PAGE,
        f"As a launch of its own {one}, {some} and {many} %",
        f"as a launch of its own {every}",
        f"a launch adds {added[1]} us and not 2, and at 4096, where it adds {added[4096]} us and not "
        f"{0.004 * min(layers):.0f} to {0.008 * max(layers):.0f}",
    )
    assert_said("docs/load_balancing.md", f"{one}, {some} and {many} % (`benchmarks/results/load_recorder_h200x2.json`")
    most = [f"{max(found):.2f}" for found in each.values()]
    assert_said("docs/design/progress.md", f"as a launch up to {most[0]}, {most[1]} and {most[2]} % (`load_recorder")
