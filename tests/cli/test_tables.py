"""machine, backends, models: what they list, as text and as JSON."""

import dataclasses

import pytest

from moesaic import BACKENDS, KNOWN_MACHINES, Machine, Reference, Target
from moesaic.cli.declarations import FLAGS, target_names
from moesaic.cli.reading import read_value
from moesaic.models import MODELS, UNSIZED

MACHINE_KEYS = ["machine", "device", "name", "architecture", "processors", "memory_bytes", "features", "packages"]


def test_machine_describes_this_one(moesaic):
    document = moesaic("machine", "--json").document
    assert list(document) == MACHINE_KEYS
    assert read_value(document["machine"]) == Machine.current()
    assert document["packages"]["torch"] == dict(Machine.current().packages)["torch"]
    assert repr(Machine.current()) in moesaic("machine").out


def test_machine_describes_a_known_one_and_a_device(moesaic):
    assert read_value(moesaic("machine", "--machine", "H200", "--json").document["machine"]).name == "NVIDIA H200"
    assert read_value(moesaic("machine", "--machine", "cpu", "--json").document["machine"]) == Machine.current("cpu")


def test_machine_lists_the_known_ones(moesaic):
    listed = moesaic("machine", "--list", "--json").document
    assert list(listed) == ["machines"]
    assert [(entry["known_as"], read_value(entry["machine"])) for entry in listed["machines"]] == list(KNOWN_MACHINES)
    assert all(list(entry) == ["known_as", *MACHINE_KEYS] for entry in listed["machines"])
    text = moesaic("machine", "--list").out
    assert all(name in text for name, _ in KNOWN_MACHINES)


def test_backends_lists_all_in_order_with_the_oracle_last(moesaic):
    document = moesaic("backends", "--json").document
    assert list(document) == ["backends"]
    assert [b["backend"] for b in document["backends"]] == [*(b.name for b in BACKENDS), "reference"]
    assert [b["oracle"] for b in document["backends"]] == [*(False for _ in BACKENDS), True]
    for entry in document["backends"]:
        assert list(entry) == [
            *("backend", "oracle", "targets", "features", "requires", "dtypes", "schemes", "layouts", "activations"),
            *FLAGS,
            *("row_bytes", "max_experts", "max_top_k"),
        ]
        assert all(isinstance(entry[flag], bool) for flag in FLAGS)
    text = moesaic("backends").out
    assert "only when named (oracle)" in text
    assert "graph capture" in text
    for name in (b["backend"] for b in document["backends"]):  # a block each, which a narrow terminal does not break
        assert sum(line.split()[:1] == [name] for line in text.splitlines()) == 1


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [(0, 999, "cuda"), (80, 999, "cuda sm_80 and above"), (90, 90, "cuda sm_90"), (80, 90, "cuda sm_80 to sm_90")],
)
def test_targets_in_words(low, high, name):
    assert target_names(dataclasses.replace(Reference.capabilities, targets=(Target("cuda", low, high),))) == (name,)


def test_models_lists_all(moesaic):
    document = moesaic("models", "--json").document
    assert list(document) == ["models", "unsized"]
    assert [read_value(entry["problem"]) for entry in document["models"]] == [model.problem for model in MODELS]
    assert [entry["name"] for entry in document["unsized"]] == [name for name, _ in UNSIZED]
    text = moesaic("models").out
    assert all(model.name in text for model in MODELS)
    assert "SwiGLU(alpha=1.702, beta=1.0, limit=7.0), bias" in text
    assert "3584 of 7168" in text


def test_models_shows_one(moesaic):
    document = moesaic("models", "kimi-k3", "--json").document
    assert list(document) == [
        *("name", "same_layer", "problem", "model_hidden_size", "weight_bytes"),
        *("router", "shared", "stored", "source", "note"),
    ]
    assert document["weight_bytes"] == 896 * 3 * 3584 * 3072 * 2
    text = moesaic("models", "DEEPSEEK-R1").out
    assert "deepseek-v3" in text
    assert "times 2.5" in text
