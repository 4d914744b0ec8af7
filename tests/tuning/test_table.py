"""Tables: which entry serves which number of rows, and what makes a table useless elsewhere."""

import dataclasses
import json

import pytest
import torch

from moesaic import GroupedContiguous, SwiGLU, SwiGLUStep, known_machine
from moesaic.errors import MoesaicError, TuningError
from moesaic.tuning import Entry, Origin, Product, read_table, written
from moesaic.tuning.fingerprint import fingerprint
from tests.tuning.examples import ENTRIES, H200, ORIGIN, QWEN3, STREAMED, VECTOR, WGMMA, layer, table


@pytest.mark.parametrize(
    ("rows", "choice"),
    [
        *[(1, VECTOR), (2, None), (4, None), (5, STREAMED), (8, STREAMED), (9, None), (256, None)],
        *[(257, WGMMA), (512, WGMMA), (513, Product(group=16)), (1024, Product(group=16)), (1025, None)],
    ],
)
def test_an_entry_serves_its_number_and_down_to_half_of_it(rows, choice):
    assert table().at(rows) == choice


def test_powers_of_two_leave_no_gap():
    every = table(entries=tuple(Entry(2**n, VECTOR, 1.0 + n, 2.0) for n in range(8)))
    assert all(every.at(rows) == VECTOR for rows in range(1, 129))
    assert every.at(129) is None
    assert table(entries=()).at(1) is None


def test_entries_are_sorted_and_unique():
    assert table(entries=ENTRIES[::-1]) == table()
    with pytest.raises(TuningError, match="two entries"):
        table(entries=(ENTRIES[0], dataclasses.replace(ENTRIES[0], choice=STREAMED)))


@pytest.mark.parametrize(
    "changes",
    [{"backend": 7}, {"origin": "h200"}, {"problem": None}, {"entries": ENTRIES[0]}, {"entries": (1,)}],
    ids=str,
)
def test_what_is_no_table_is_refused_when_it_is_built(changes, unchecked):
    [name] = changes
    with pytest.raises(TuningError, match=f"Table.{name} is"):
        table(**changes)


def test_new_entries_come_over_old_ones():
    new = table(entries=(Entry(8, VECTOR, 1.0, 2.0), Entry(16, STREAMED, 1.0, 2.0)))
    assert [entry.rows for entry in new.over(table()).entries] == [1, 8, 16, 512, 1024]
    assert new.over(table()).at(8) == VECTOR


def test_a_table_is_read_back():
    assert read_table(written(table())) == table()
    document = json.loads(written(table()))
    assert list(document) == ["format", "backend", "problem", "origin", "entries"]
    assert document["origin"]["device"] == "NVIDIA H200"
    assert document["entries"][0] == {
        "rows": 1,
        "choice": repr(VECTOR),
        "microseconds": 23.5,
        "default_microseconds": 24.0,
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_experts": 64}, "num_experts 128, not 64"),
        ({"top_k": 4}, "top_k 8, not 4"),
        ({"hidden_size": 4096}, "hidden_size 2048, not 4096"),
        ({"intermediate_size": 1536}, "intermediate_size 768, not 1536"),
        ({"dtype": torch.float16}, "dtype torch.bfloat16, not torch.float16"),
        ({"activation": SwiGLU(limit=7.0)}, "limit=7.0"),
        ({"activation": SwiGLUStep()}, "SwiGLUStep"),
        ({"bias": True}, "bias False, not True"),
        ({"layout": GroupedContiguous(64)}, "layout Standard(), not GroupedContiguous(alignment=64)"),
        ({"weight_on_input": True}, "weight_on_input False, not True"),
    ],
    ids=str,
)
def test_every_field_that_matters_is_in_the_key(changes, named):
    [reason] = table().differences("hopper_grouped", dataclasses.replace(QWEN3, **changes), ORIGIN)
    assert named in reason


@pytest.mark.parametrize(
    "flag", ["inactive_slots", "duplicate_ids", "deterministic", "graph_capture", "differentiable"]
)
def test_flags_that_no_kernel_is_chosen_by_share_a_table(flag):
    other = dataclasses.replace(QWEN3, **{flag: not getattr(QWEN3, flag)})
    assert list(table().differences("hopper_grouped", other, ORIGIN)) == []
    assert table(problem=other) == table()


def test_equal_values_written_otherwise_are_one_key():
    assert list(table().differences("hopper_grouped", layer("qwen3_30b", activation=SwiGLU(1, 0)), ORIGIN)) == []


def test_another_backend():
    assert list(table().differences("triton_grouped", QWEN3, ORIGIN)) == ["backend hopper_grouped, not triton_grouped"]


def elsewhere(**changes):
    return Origin.of(dataclasses.replace(H200, **changes))


@pytest.mark.parametrize(
    ("origin", "named"),
    [
        (elsewhere(packages=(("torch", "2.11.0"), ("triton", "3.6.1"))), "triton 3.6.0, not 3.6.1"),
        (elsewhere(packages=(("torch", "2.11.0"),)), "triton 3.6.0, not not installed"),
        (dataclasses.replace(ORIGIN, kernels="0123456789abcdef"), "kernels"),
        (elsewhere(architecture="sm_100"), "device NVIDIA H200 (sm_90"),
        (elsewhere(name="NVIDIA H200 MIG 1g.18gb", processors=16), "16 multiprocessors"),
        (elsewhere(name="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30), "80 GiB"),
        (elsewhere(name="NVIDIA H100 NVL", memory_bytes=94 * 2**30), "94 GiB"),
        (elsewhere(memory_bytes=round(H200.memory_bytes * 0.94)), "multiprocessors"),
        (elsewhere(memory_bytes=round(H200.memory_bytes * 1.06)), "multiprocessors"),
    ],
    ids=str,
)
def test_every_part_of_the_origin_is_in_the_key(origin, named):
    [reason] = table().differences("hopper_grouped", QWEN3, origin)
    assert named in reason


@pytest.mark.parametrize(
    "origin",
    [
        elsewhere(name="NVIDIA H200 NVL"),
        elsewhere(memory_bytes=H200.memory_bytes - 2 * 2**30),
        elsewhere(memory_bytes=round(H200.memory_bytes * 0.96)),
        elsewhere(memory_bytes=round(H200.memory_bytes * 1.04)),
        elsewhere(packages=(("torch", "2.11.0+cu126"), ("triton", "3.6.0+git1"), ("numba", "1.0"))),
        elsewhere(packages=(("torch", "2.12.0"), ("triton", "3.6.0"))),
        dataclasses.replace(ORIGIN, moesaic="9.0"),
    ],
    ids=str,
)
def test_the_same_gpu_and_kernels_under_other_names_and_versions(origin):
    assert list(table().differences("hopper_grouped", QWEN3, origin)) == []


def test_an_origin_is_of_the_machine_and_of_the_moesaic_that_runs():
    from importlib import metadata  # noqa: PLC0415

    origin = Origin.of(known_machine("a100"))
    assert (origin.device, origin.torch, origin.moesaic, origin.kernels) == (
        "NVIDIA A100-SXM4-80GB",
        "2.13.0",
        metadata.version("moesaic"),
        fingerprint(),
    )


def document(**changes):
    """The written form of a table with some parts changed; `entries` are merged into the first entry."""
    found = json.loads(written(table()))
    found["entries"][0] |= changes.pop("entry", {})
    return json.dumps(found | changes)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "7", "null", '"text"', "{}", "\x00"),
        "[" * 100_000,
        written(table())[:-40],
        document(format=1),
        document(backend=None),
        document(problem="Problem()"),
        document(problem="__import__('os').system('true')"),
        document(problem="SwiGLU()"),
        document(problem=7),
        document(origin=None),
        document(origin={}),
        document(origin={**dataclasses.asdict(ORIGIN), "color": "green"}),
        document(origin={**dataclasses.asdict(ORIGIN), "triton": 3.6}),
        document(origin={**dataclasses.asdict(ORIGIN), "processors": "132"}),
        document(entries=None),
        document(entries=[1]),
        document(entry={"rows": 0}),
        document(entry={"rows": "1"}),
        document(entry={"rows": 8}),
        document(entry={"choice": None}),
        document(entry={"choice": "Product("}),
        document(entry={"microseconds": -1.0}),
        document(entry={"default_microseconds": 0}),
        document(entry={"microseconds": None}),
        document(entry={"milliseconds": 1.0}),
        document().replace("23.5", "NaN"),
        document().replace("23.5", "1e400"),
    ],
)
def test_what_is_no_table_is_refused_by_errors_of_two_kinds(text, unchecked):
    with pytest.raises((MoesaicError, ValueError)):
        read_table(text)
