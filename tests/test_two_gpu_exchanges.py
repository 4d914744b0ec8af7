"""What the pages say of exchanges on two H200: every figure is that of the committed results, of the run named."""

from collections import Counter
from itertools import product

from tests.quoted import cells
from tests.two_gpus import (
    EARLIER,
    EXCHANGES,
    NOW,
    PAGE,
    PLANS,
    RECORDER,
    SHAPES,
    UNIFORM,
    WAYS,
    ZIPF,
    assert_said,
    document,
    few,
    median,
    planned,
    span,
)


def test_both_runs_are_what_the_page_says_they_are():
    now, earlier, kit = (document(name) for name in ("expert_parallel", "expert_parallel_earlier", "dispatch_kit"))
    assert len({now["commit"], kit["commit"], document("load_recorder")["commit"]}) == 1
    assert not now["not_run"]
    assert {one["dispatcher"]: one["checks"] for one in kit["kit"]} == dict.fromkeys(EXCHANGES, 102)
    assert all(
        row["exact"] and row["error"] < 0.02 for row in [*now["rows"], *earlier["rows"], *RECORDER, *kit["rows"]]
    )
    slabs, spent = Counter("slabs" in row["why"] for row in earlier["not_run"]), len(earlier["not_run"])
    before = [[median("local", shape, 4096, "layer", run=run) for shape in SHAPES] for run in (NOW, EARLIER)]
    assert_said(
        PAGE,
        f"commit {now['commit'][:7]}, bfloat16",
        f"`--dispatchers {','.join(now['dispatchers'])}`, seven rounds a figure: {len(now['rows'])} cells, none left",
        f"went through the kit with the same kernels, {kit['kit'][0]['checks']} checks each",
        f"that of commit {earlier['commit']}: `benchmarks/results/expert_parallel_earlier_h200x2.json`",
        f"{spent} cells were not run: {slabs[True]} of slabs with more than 128 tokens, and {slabs[False]} of "
        "`all_to_all` with dsv3",
        f"`local` takes {before[0][0]:.1f} us for 4096 tokens of qwen3_30b and {before[0][1]:.1f} of dsv3, "
        f"{before[1][0]:.1f} and {before[1][1]:.1f} in the earlier run",
    )
    assert now["rounds"] == 7


def test_few_tokens_take_what_the_page_says():
    wanted = [
        [
            str(tokens),
            *(
                " / ".join(
                    span([one["median"] for one in few(name, (tokens,), (shape,), (way,))], ".1f") for way in WAYS
                )
                for shape in SHAPES
                for name in EXCHANGES
            ),
        ]
        for tokens in (1, 8, 64, 512)
    ]
    assert cells(PAGE, "each way, tokens") == wanted
    plain, coded = ([one["median"] for one in few(name)] for name in EXCHANGES)
    slowest = [sorted(one["highest"] for one in few(name)) for name in EXCHANGES]
    beside = max(row[way]["highest"] for row in RECORDER for way in WAYS if row["tokens"] <= 64)
    assert max(plain + coded) < 25
    assert_said(
        PAGE,
        f"medians of `symmetric` {span(plain, '.1f')} us, with FP8 {span(coded, '.1f')}. The slowest single round "
        f"{slowest[0][-1]:.1f}, in all other cells {slowest[0][-2]:.1f}; with FP8 {slowest[1][-1]:.1f}; {beside:.1f} "
        "beside the recorder",
    )
    assert_said(
        "docs/design/progress.md",
        f"Each way {span(plain, '.0f')} us at 1 to 64 tokens (25 asked; the slowest single round {slowest[0][-1]:.0f})",
    )


def test_a_round_begins_as_the_page_says():
    row = NOW[("symmetric", "qwen3_30b", 4096, *UNIFORM)]
    calls = {"dispatch": 4, "combine": 4, "layer": 1}  # times the batches of a round
    most = max(
        abs(one - other) * calls[part] * (4 if key[2] <= 512 else 2)
        for key, found in NOW.items()
        if key[0] == "symmetric"
        for part in calls
        for one, other in [found[part]["of_ranks"]]
    )
    (there, other), (layer, late) = (sorted(row[part]["of_ranks"]) for part in ("dispatch", "layer"))
    busy = median("symmetric", "qwen3_30b", 4096, "layer", ZIPF)
    without = {
        (row["tokens"], row["routing"]): row["recorder"]["without"]
        for row in RECORDER
        if row["dispatcher"] == "symmetric"
    }
    assert_said(
        PAGE,
        f"a call {other - there:.1f} us apart in dispatch ({there:.1f} and {other:.1f}) and {late - layer:.1f} in the "
        f"layer ({layer:.1f} and {late:.1f})",
        f"never more than {most:.0f} us in a row of `symmetric`",
        f"that layer took {without[4096, 'uniform']:.1f} us; with 64 tokens, 16 calls a round, "
        f"{without[64, 'uniform']:.1f} instead of {median('symmetric', 'qwen3_30b', 64, 'layer'):.1f}",
        f"4096 tokens took {without[4096, 'zipf_0.8']:.1f} so, and not {busy:.1f}",
    )


def test_the_link_does_what_the_pages_say():
    speeds = {
        shape: [NOW[("symmetric", shape, 4096, *UNIFORM)][f"{way}_gigabytes_a_second"] for way in WAYS]
        for shape in SHAPES
    }
    best = [NOW[("symmetric", "dsv3", 4096, *ZIPF)][f"{way}_gigabytes_a_second"] for way in WAYS]
    assert best == [
        max(row[f"{way}_gigabytes_a_second"] for key, row in NOW.items() if key[0] == "symmetric") for way in WAYS
    ]
    search = {shape: [planned(shape)[way]["gigabytes_a_second"] for way in ("there", "back")] for shape in SHAPES}
    size = {shape: NOW[("symmetric", shape, 4096, *UNIFORM)]["dispatch_megabytes"] for shape in SHAPES}
    barrier = min(part["barrier"] for part in PLANS["parts"])
    copies = {
        shape: sorted((part["peer_copy"], part["stripes"]) for part in PLANS["parts"] if part["shape"] == shape)
        for shape in SHAPES
    }
    bare = copies["qwen3_30b"][0][0] + barrier
    same = next(copy for copy, stripes in copies["dsv3"] if stripes == 528)
    takes = [median("symmetric", "dsv3", 4096, way) for way in WAYS]
    short, less = ([100 * (1 - one / 330) for one in found["dsv3"]] for found in (speeds, search))
    both = {
        name: [f"{one:.0f} and {other:.0f}" for one, other in found.values()]
        for name, found in (("now", speeds), ("search", search))
    }
    assert copies["dsv3"][0][1] == 2 * 528
    reached = size["dsv3"] / (same + barrier) * 1e3
    out = f"where a bare copy and a barrier do {size['qwen3_30b'] / bare * 1e3:.0f}"
    assert_said(
        PAGE,
        f"qwen3_30b {both['now'][0]}, dsv3 {both['now'][1]}; at best {best[0]:.0f} and {best[1]:.0f}, with dsv3 under",
        f"In the search of a plan {both['search'][0]}, {both['search'][1]}",
        f"out of reach with qwen3_30b, {out}; dsv3 {short[0]:.0f} and {short[1]:.0f} % short, {less[0]:.0f} and "
        f"{less[1]:.0f} % in the search",
        f"For qwen3_30b that is {size['qwen3_30b'] / 0.33:.1f} us",
        f"{barrier:.1f} at best: {bare:.0f} us",
        f"For dsv3 it is {size['dsv3'] / 0.33:.1f} us. In the tables' run an exchange takes {takes[0]:.1f} us there "
        f"and {takes[1]:.1f} back, {both['now'][1]} GB/s",
        f"takes {same:.1f}, and with the barrier {same + barrier:.1f}: {reached:.0f} GB/s. So 330 leaves "
        f"{size['dsv3'] / 0.33 - same - barrier:.0f} us",
        f"({size['dsv3'] / 0.33 - copies['dsv3'][0][0] - barrier:.0f} us with twice the programs, which copy in "
        f"{copies['dsv3'][0][0]:.1f})",
    )
    assert_said(
        "docs/design/progress.md",
        f"{both['now'][0]} GB/s with qwen3_30b, {both['now'][1]} with dsv3 (`expert_parallel_h200x2.json`), in the "
        f"search of a plan {both['search'][0]}, {both['search'][1]}",
        f"{out}; not met with dsv3, where they do {reached:.0f}, by {short[0]:.0f} and {short[1]:.0f} % in the layer's "
        f"benchmark and {less[0]:.0f} and {less[1]:.0f} % in the search",
    )


def test_fp8_gains_what_the_pages_say():
    times = {
        run: [median(name, shape, 4096, "dispatch", run=rows) for shape in SHAPES for name in reversed(EXCHANGES)]
        for run, rows in (("now", NOW), ("earlier", EARLIER))
    }
    one, two, three, four = times["now"]
    old = times["earlier"]
    padded = [f"{median(n, s, 4096, 'dispatch', run=EARLIER):.0f}" for s in SHAPES for n in ("padded_fp8", "padded")]
    worst = {
        max(row["error"] for key, row in NOW.items() if (key[0] == "symmetric_fp8") is own) for own in (True, False)
    }
    assert {f"{100 * error:.2f}" for error in worst} == {"0.34"}
    sorting = [
        median(name, "qwen3_30b", 64, "dispatch", run=EARLIER)
        for name in ("symmetric_grouped", "symmetric_slabs", "symmetric")
    ]
    assert_said(
        PAGE,
        f"takes {one:.1f} us against {two:.1f} (qwen3_30b) and {three:.1f} against {four:.1f} (dsv3), where the "
        f"earlier run had {old[0]:.1f} against {old[1]:.1f} and {old[2]:.1f} against {old[3]:.1f}",
        f"in the earlier run, {padded[0]} us against {padded[1]} and {padded[2]} against {padded[3]}",
        "a token differs by 0.34 % of its norm at most",
        f"of qwen3_30b in {sorting[0]:.0f} and {sorting[1]:.0f} us, {sorting[2]:.1f} as they arrived",
    )
    assert_said(
        "docs/dispatch.md", f"{one:.0f} us instead of {two:.0f} (H 2048), {three:.0f} instead of {four:.0f} (H 7168)"
    )
    assert_said(
        "docs/design/progress.md",
        f"{one:.0f} us instead of {two:.0f} (qwen3_30b) and {three:.0f} instead of {four:.0f} (dsv3",
    )
    assert_said(
        "docs/design/wire.md",
        f"it was {old[2] / old[3]:.2f} ({old[2]:.1f} us and {old[3]:.1f}, `benchmarks/results/expert_parallel_earlier",
        f"is {three / four:.2f} since those are gone: {three:.1f} us and {four:.1f}, and {one:.1f} and {two:.1f} with "
        f"qwen3_30b ({one / two:.2f};",
    )


def test_the_dispatch_page_has_the_ways_of_the_results():
    wanted = []
    for shape, tokens in product(SHAPES, (64, 4096)):
        ways = ([f"{median(name, shape, tokens, way):.0f}" for way in WAYS] for name in (*EXCHANGES, "padded"))
        wanted.append([f"{shape}, {tokens} tokens", *(" + ".join(each) + " us" for each in ways)])
    assert cells("docs/dispatch.md", "two ranks, there + back") == wanted


def test_the_exchanges_timed_again_are_those_of_the_results():
    again = {row[0]: row[-1] for row in cells(PAGE, "4096 tokens, there / back")}
    both = {shape: [median("symmetric", shape, 4096, way) for way in WAYS] for shape in SHAPES}
    coded = {f"{shape}, FP8 there": f"{median('symmetric_fp8', shape, 4096, 'dispatch'):.1f}" for shape in SHAPES}
    few_tokens = span([one["median"] for one in few("symmetric")], ".0f")
    pairs = {shape: " / ".join(f"{us:.1f}" for us in ways) for shape, ways in both.items()}
    assert again == pairs | coded | {"1 to 64 tokens": few_tokens}
    own = [
        " and ".join(f"{us:.1f}" for us in NOW[("symmetric", shape, 4096, *UNIFORM)][way]["of_ranks"])
        for shape in SHAPES
        for way in WAYS
    ]
    fp8 = [NOW[("symmetric_fp8", shape, 4096, *UNIFORM)]["dispatch"]["of_ranks"] for shape in reversed(SHAPES)]
    assert_said(
        PAGE,
        f"medians are {own[0]} there for qwen3_30b and {own[1]} back, {own[2]}, {own[3]} for dsv3",
        "{:.1f} and {:.1f}, and with that of qwen3_30b one is, {:.1f} and {:.1f}".format(*fp8[0], *fp8[1]),
    )
