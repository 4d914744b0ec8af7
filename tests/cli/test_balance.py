"""moesaic balance: the plan, its balancedness and its plot, and what of a file is refused."""

import json

import pytest
import torch

from moesaic.dispatch.balance import balance
from moesaic.dispatch.balancedness import planned_balancedness
from moesaic.dispatch.placement import Placement

LOAD = [
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
]
SIZES = ("--ranks", "8", "--slots", "16", "--nodes", "2", "--groups", "4")


@pytest.fixture
def load(tmp_path):
    def write(document):
        file = tmp_path / "load.json"
        file.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        return str(file)

    return write


def test_json_holds_the_plan(moesaic, load):
    document = moesaic("balance", load({"load": LOAD}), *SIZES, "--json").document
    plans = balance(torch.tensor(LOAD), 16, 8, 2, groups=4)
    assert list(document) == [
        *("num_experts", "num_slots", "num_ranks", "num_nodes", "groups", "tokens", "top_k", "mean", "layers"),
        *("arrivals", "placements"),
    ]
    assert [Placement(12, tuple(map(tuple, ranks))) for ranks in document["placements"]] == list(plans)
    planned = planned_balancedness(torch.tensor(LOAD), plans).tolist()
    assert [layer["planned"] for layer in document["layers"]] == planned
    assert document["mean"]["planned"] == pytest.approx(sum(planned) / 2)
    assert all(0.4 < layer["before"] < layer["realised"] <= 1 for layer in document["layers"])
    assert (document["arrivals"], document["top_k"], document["tokens"]) == (None, 5, 1024)


def test_text_shows_every_rank_and_layer(moesaic, load):
    lines = moesaic("balance", load(LOAD), *SIZES).out.splitlines()
    rows = [line.split() for line in lines]
    assert ["0", "6", "1.208", "0", "1*"] in rows
    assert [row[0] for row in rows if row[1:2] == ["7"]] == ["0", "1"]
    assert ["layer", "before", "planned", "realised"] in rows
    assert [row[:3] for row in rows if row[:1] == ["mean"]] == [["mean", "0.450", "0.816"]]
    assert lines[-1].startswith("before: experts in order")


def test_the_plot_is_of_the_least_balanced_layer(moesaic, load):
    text = moesaic("balance", load(LOAD), *SIZES, "--plot").out
    bars = [line for line in text.splitlines() if line.startswith("rank")]
    assert text.count("layer 1, before") == text.count("layer 1, planned") == 1
    assert len(bars) == 16
    assert bars[3] == f"rank    3   2.381  {'#' * 25}|{'#' * 34}"
    assert len({bar.index("|") for bar in bars}) == 1


def test_a_current_plan_is_changed_as_little_as_the_new_one_allows(moesaic, load):
    first = moesaic("balance", load(LOAD), "--ranks", "4", "--json").document
    changed = [LOAD[0], [*LOAD[1][:3], 300, *LOAD[1][4:]]]
    file = load({"load": changed, "placements": first["placements"]})
    second = moesaic("balance", file, "--ranks", "4", "--json").document
    assert second["placements"][0] == first["placements"][0]
    assert second["arrivals"][0] == 0
    assert 0 < second["arrivals"][1] < 12
    assert second["layers"][0]["before"] == second["layers"][0]["planned"]
    rows = [line.split() for line in moesaic("balance", file, "--ranks", "4").out.splitlines()]
    assert ["layer", "before", "planned", "realised", "arrivals"] in rows


def test_a_current_plan_of_other_sizes_is_planned_anew_with_a_note(moesaic, load):
    current = [[[*range(4)], [*range(4, 8)], [*range(8, 12)]]] * 2
    file = load({"load": LOAD, "placements": current})
    for options, slots in ((("--ranks", "3", "--slots", "15"), 15), (("--ranks", "4"), 12), (("--ranks", "2"), 12)):
        answer = moesaic("balance", file, *options, "--json")
        (note,) = answer.err.splitlines()
        assert "'placements' in LOAD has 12 slots, (4, 4, 4) a rank, but --slots and --ranks give" in note
        assert answer.document["num_slots"] == slots
        plans = balance(torch.tensor(LOAD), slots, int(options[1]))
        assert answer.document["placements"] == [list(map(list, plan.experts)) for plan in plans]
        assert all(0 < arrivals <= slots for arrivals in answer.document["arrivals"])
    assert moesaic("balance", file, "--ranks", "3").err == ""
    uneven = load({"load": LOAD[0], "placements": [[[*range(7)], [*range(7, 12)]]]})
    assert "(7, 5) a rank" in moesaic("balance", uneven, "--ranks", "2").err


def test_without_slots_a_current_plan_keeps_its_number(moesaic, load):
    first = moesaic("balance", load(LOAD), "--ranks", "4", "--slots", "16", "--json").document
    again = moesaic("balance", load({"load": LOAD, "placements": first["placements"]}), "--ranks", "4", "--json")
    assert (again.document["num_slots"], again.document["arrivals"], again.err) == (16, [0, 0], "")


@pytest.mark.parametrize("value", [1e308, 5e-324])
def test_loads_at_the_ends_of_floats_are_shown_as_numbers(moesaic, load, value):
    file = load([[value] * 8, [value, 0, 0, value, value, 0, value, 0]])
    document = moesaic("balance", file, "--ranks", "2", "--json").document
    assert document["top_k"] == 4
    assert [layer["planned"] for layer in document["layers"]] == [1.0, 1.0]
    text = moesaic("balance", file, "--ranks", "2", "--plot").out
    assert "nan" not in text
    assert "inf" not in text
    assert [line.split()[2] for line in text.splitlines() if line.startswith("rank")][2:] == ["1.000", "1.000"]


def test_one_layer_without_load_and_more_ranks_than_experts(moesaic, load):
    document = moesaic("balance", load("[0, 0, 0]"), "--ranks", "4", "--slots", "4", "--json", "--plot").document
    assert document["mean"] == {"planned": 1.0, "realised": 1.0}
    rows = moesaic("balance", load("[0, 0, 0]"), "--ranks", "4", "--slots", "4", "--plot").out.splitlines()
    assert [line for line in rows if line.startswith("rank")] == [f"rank {rank:>4}   0.000  |" for rank in range(4)]


@pytest.mark.parametrize(
    ("document", "parts"),
    [
        ("{", ("not JSON", '{"load"')),
        ("[" * 100_000, ("not JSON",)),
        ("{}", ("None", '{"load"')),
        ("[]", ("[]",)),
        ("3", ("3", '{"load"')),
        ("[[]]", ("layer 0 is []",)),
        ("[[1, 2], 3]", ("layer 1 is 3",)),
        ("[3, [1, 2]]", ("layer 0 is 3",)),
        ("[[1, 2], [1]]", ("layer 1 has 1 experts", "2")),
        ('[1, "2"]', ("expert 1 in layer 0 is '2'",)),
        ("[1, true]", ("expert 1 in layer 0 is True",)),
        ("[1, null]", ("expert 1 in layer 0 is None",)),
        ("[1, -2]", ("expert 1 in layer 0 is -2.0",)),
        ("[1, NaN]", ("expert 1 in layer 0 is nan",)),
        ("[1, 1e999]", ("expert 1 in layer 0 is inf",)),
        (f"[1, {10**400}]", ("expert 1 in layer 0", "bits")),
        ('{"load": [1, 2], "placements": 3}', ("placement of a layer is 3",)),
        ('{"load": [1, 2], "placements": [[[0, 1], [5]]]}', ("rank 1 holds expert 5",)),
        ('{"load": [1, 2], "placements": [7]}', ("placement of a layer is 7",)),
        ('{"load": [1, 2], "placements": []}', ("'placements' holds the plans of 0 layers", "'load'", "of 1")),
        ('{"load": [[1, 2], [3, 4]], "placements": [[[0], [1]]]}', ("'placements' holds the plans of 1 layers", "2")),
    ],
)
def test_files_that_are_refused(moesaic, load, document, parts):
    moesaic("balance", load(document), "--ranks", "2").assert_bad_input(*parts)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ((), ("--ranks",)),
        (("--ranks", "x"), ("--ranks", "integer")),
        (("--ranks", "0"), ("--ranks", "0")),
        (("--ranks", "4", "--slots", "11"), ("--slots is 11",)),
        (("--ranks", "4", "--slots", "0"), ("--slots", "0")),
        (("--ranks", "4", "--slots", "99"), ("--slots is 99", "use fewer slots")),
        (("--ranks", "4", "--nodes", "2"), ("--nodes is 2", "without groups")),
        (("--ranks", "4", "--nodes", "0"), ("--nodes", "0")),
        (("--ranks", "4", "--groups", "0"), ("--groups", "0")),
        (("--ranks", "4", "--groups", "5"), ("--groups is 5", "12 experts")),
        (("--ranks", "4", "--top-k", "13"), ("--top-k is 13",)),
        (("--ranks", "4", "--top-k", "0"), ("--top-k", "0")),
    ],
)
def test_options_that_are_refused(moesaic, load, options, parts):
    moesaic("balance", load(LOAD), *options).assert_bad_input(*parts)


def test_a_file_that_is_not_there(moesaic, tmp_path):
    moesaic("balance", str(tmp_path / "none.json"), "--ranks", "2").assert_bad_input("none.json", "cannot be read")
    moesaic("balance", str(tmp_path), "--ranks", "2").assert_bad_input("cannot be read")
