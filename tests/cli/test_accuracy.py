"""`moesaic accuracy`: figures against a computation of their own, the page against the committed result."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from moesaic import FP8, INT4, INT8, NVFP4, SCHEMES, PerBlock, PerGroup, PerRow, Plain, Scheme
from moesaic.cli import accuracy as command
from moesaic.cli.accuracy_page import accuracy_page
from moesaic.cli.bits_per_byte import bits_per_byte, cut_windows
from moesaic.cli.layers_in_place import layers_of, running
from moesaic.cli.reading import read_value
from moesaic.cli.short_form import short_form
from moesaic.cli.text_coder import Bytes
from moesaic.conformance.tolerance import tolerance

ROOT = Path(__file__).parents[2]
RESULT = json.loads((ROOT / "benchmarks/results/accuracy.json").read_text())
MODEL = ROOT / "src/moesaic/shipped/austen-nemotron-h"


@pytest.fixture(autouse=True)
def two_windows(monkeypatch):
    monkeypatch.setattr(command, "WINDOWS", 2)


def test_the_page_is_that_of_the_committed_result():
    assert (ROOT / "docs/accuracy.md").read_text(encoding="utf-8") == accuracy_page(RESULT)


def test_the_committed_result_has_every_scheme_of_every_model():
    assert [read_value(entry["scheme"]) for entry in RESULT["schemes"]] == [*SCHEMES]
    assert RESULT["windows"] == 48
    for rows in RESULT["models"].values():
        assert [read_value(row["scheme"]) for row in rows] == [*SCHEMES]
        plain = rows[0]["bits_per_byte"]
        for row in rows[1:]:
            assert 0 < min(row["layer_errors"].values()) < max(row["layer_errors"].values()) < 0.25
            assert abs(row["bits_per_byte"] - plain) < 0.05


def test_eight_bits_err_less_than_four_and_small_groups_less_than_large():
    for rows in RESULT["models"].values():
        worst = {row["scheme"]: max(row["layer_errors"].values()) for row in rows}

        def error(weights, inputs=None, worst=worst):
            return worst[repr(Scheme(weights, inputs or Plain()))]

        assert error(INT8(PerRow())) < error(FP8(PerRow())) < error(INT4(PerGroup(32))) < error(INT4(PerGroup(128)))
        assert error(FP8(PerBlock())) < error(FP8(PerBlock()), FP8(PerGroup(128)))
        assert error(NVFP4()) < error(NVFP4(), NVFP4())


def test_the_kernel_tolerance_is_that_of_the_kit():
    for entry in RESULT["schemes"]:
        allowed = tolerance(torch.bfloat16, read_value(entry["scheme"]), 256, 256).rms
        assert entry["kernel_tolerance"] == pytest.approx(allowed, rel=0.05)


def test_a_row_is_what_a_model_with_rounded_weights_gives(moesaic):
    answer = moesaic("accuracy", MODEL.name, "--scheme", "Scheme(INT4(PerGroup(32)), Plain())", "--json")
    assert answer.code == 0, answer
    plain, quantized = answer.document["models"][MODEL.name]
    assert plain["layer_errors"] == dict.fromkeys(plain["layer_errors"], 0.0)
    assert quantized["bits_per_weight"] == 5.0
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()
    windows = cut_windows((MODEL.parent / "austen_valid.txt").read_bytes(), 2)
    assert plain["bits_per_byte"] == pytest.approx(bits_per_byte(model, Bytes(), windows), abs=2e-3)
    layer = layers_of(model)[0]
    rounded = layer.weights.quantize(INT4(PerGroup(32)))
    seen = {}
    with running((layer,), {layer.name: layer.bound(SCHEMES[0], torch.bfloat16)}, seen):
        bits_per_byte(model, Bytes(), windows)
    [batch] = seen[layer.name]
    wanted = by_hand(layer, layer.weights, batch)
    error = (by_hand(layer, rounded, batch) - wanted).pow(2).mean().sqrt() / wanted.std()
    assert quantized["layer_errors"][layer.name] == pytest.approx(float(error), rel=1e-3)
    for each in layers_of(model):
        plainly = each.weights.quantize(INT4(PerGroup(32))).dequantize(torch.bfloat16)
        each.module.up_proj.data.copy_(plainly.gate_up.data)
        each.module.down_proj.data.copy_(plainly.down.data)
    assert quantized["bits_per_byte"] == pytest.approx(bits_per_byte(model, Bytes(), windows), abs=2e-3)


def by_hand(layer, weights, batch):
    """`sum_k w_k down_k relu(up_k x)^2` in float64, slot by slot."""
    rows, routing = batch.hidden_states.double(), batch.routing
    up, down = weights.gate_up.dequantize(torch.float64), weights.down.dequantize(torch.float64)
    output = torch.zeros_like(rows)
    for expert in range(layer.problem.num_experts):
        token, slot = torch.where(routing.topk_ids == expert)
        inner = torch.relu(rows[token] @ up[expert].T).square()
        output.index_add_(0, token, (inner @ down[expert].T) * routing.topk_weights[token, slot].double().unsqueeze(-1))
    return output


def test_formats_are_chosen_by_name_and_the_page_is_written(moesaic, tmp_path):
    page = tmp_path / "page.md"
    answer = moesaic("accuracy", str(MODEL), "--formats", "INT8", "--write", str(page))
    assert answer.code == 0, answer
    lines = [line for line in answer.out.splitlines() if "INT8" in line]
    assert [line.split()[:2] for line in lines] == [["INT8(PerRow())", "Plain()"], ["INT8(PerRow())", "INT8(PerRow())"]]
    assert page.read_text().count("| INT8(PerRow()) |") == 2


def test_bad_input(moesaic, tmp_path, dense_model):
    moesaic("accuracy", "austen").assert_bad_input("'austen'", "austen-gpt-oss")
    moesaic("accuracy", "--formats", "FP9").assert_bad_input("'FP9'", "NVFP4")
    moesaic("accuracy", "--scheme", "NVFP4()").assert_bad_input("Scheme")
    moesaic("accuracy", str(dense_model)).assert_bad_input("has no experts")
    moesaic("accuracy", str(tmp_path / "none")).assert_bad_input("not a directory")
    moesaic("accuracy", MODEL.name, "--formats", "INT8", "--write", str(tmp_path / "no" / "x.md")).assert_bad_input(
        "x.md"
    )


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_short_forms_are_read_as_the_same_value(scheme):
    for stored in (scheme.weights, scheme.inputs):
        assert read_value(short_form(stored)) == stored
        assert len(short_form(stored)) <= len(repr(stored))
    assert short_form(FP8(PerBlock())) == "FP8(PerBlock())"
    assert short_form(FP8(PerBlock(16, 24))) == "FP8(PerBlock(rows=16, columns=24))"
