"""The drawings of a document of layers, and both programs from the command line to the file."""

import json
import re
from xml.etree import ElementTree as ET

import gpu_layer
import gpu_quantized
import plot_layers
import pytest
from layers.curves import best_peer, curves, layers
from plot_layers import COLOURS, drawing, short, speed_axis, time_axis, tokens_axis

SVG = "{http://www.w3.org/2000/svg}"


def row(impl, tokens, microseconds, role="peer", **more):
    same = {"shape": "tiny", "scheme": "bf16", "scope": "layer", "floor_microseconds": 5.0, "error": 0.0}
    figures = {"microseconds": microseconds, "teraflops": 1000 / microseconds}
    return {**same, "impl": impl, "role": role, "tokens": tokens, **figures, **more}


def document(*more):
    rows = [
        row("hopper_grouped", 4, 20.0, "moesaic"),
        row("hopper_grouped", 1, 10.0, "moesaic"),
        row("streamed", 4, 1.0, "variant"),
        row("vllm", 1, 12.0),
        row("vllm", 4, 15.0, wrong="the error is 1"),
        row("triton_kernels", 4, 30.0),
        row("cublas", 4, 8.0, scope="bound"),
        *more,
    ]
    machine = "Machine(device='cuda', name='NVIDIA <H200>')"
    return {"rows": rows, "machine": machine, "rounds": 9, "device": "cuda", "skew": 0.0, "hot": 0.0}


def test_curves_are_of_what_moesaic_chose_and_of_answers_that_are_right():
    found = curves(document(), "tiny", "bf16", "microseconds")
    assert found == {
        "moesaic": {1: 10.0, 4: 20.0},
        "vllm": {1: 12.0},
        "triton_kernels": {4: 30.0},
        "cublas": {4: 8.0},
        "floor": {1: 5.0, 4: 5.0},
    }
    assert "floor" not in curves(document(), "tiny", "bf16", "teraflops")
    assert layers(document(row("vllm", 1, 1.0, scheme="mxfp4"))) == [("tiny", "bf16"), ("tiny", "mxfp4")]
    at_four = [r for r in document()["rows"] if r["tokens"] == 4]
    assert best_peer(at_four)["impl"] == "triton_kernels"
    assert best_peer([]) is None


def test_a_drawing_has_a_panel_for_each_layer_and_a_line_for_each_contender():
    found = document(row("marlin", 4, 9.0, scheme="mxfp4"))
    times, speeds = (ET.fromstring(drawing(found, c, ["tiny"], 2)) for c in ("microseconds", "teraflops"))  # noqa: S314
    texts = {text.text for text in times.iter(f"{SVG}text")}
    assert {"tiny", "tiny, mxfp4", "moesaic", "vLLM", "Marlin (vLLM)", "triton_kernels"} <= texts
    assert "cuBLAS, bound" not in texts
    assert any(text.startswith("NVIDIA <H200>, even routing, medians of 9 rounds") for text in texts)
    assert len(times.findall(f"{SVG}circle[@class='dot-moesaic']")) == 2
    assert len(times.findall(f"{SVG}polyline[@class='one']")) == 2
    assert "cuBLAS, bound" in {text.text for text in speeds.iter(f"{SVG}text")}
    assert not speeds.findall(f"{SVG}polyline[@class='one']")
    for picture in (times, speeds):
        rules = picture.find(f"{SVG}style").text
        assert "prefers-color-scheme: dark" in rules
        assert all(rules.count(f".{name} {{") == 2 for name in COLOURS)
        width, height = (float(picture.get(side)) for side in ("width", "height"))
        for dot in picture.iter(f"{SVG}circle"):
            assert 0 < float(dot.get("cx")) < width
            assert 0 < float(dot.get("cy")) < height
    with pytest.raises(ValueError, match="no layer of mixtral"):
        drawing(found, "microseconds", ["mixtral"], 2)


def test_points_lie_where_logarithms_say():
    tree = ET.fromstring(drawing(document(row("hopper_grouped", 16, 40.0, "moesaic")), "microseconds", ["tiny"], 2))  # noqa: S314
    dots = tree.findall(f"{SVG}circle[@class='dot-moesaic']")
    (x1, y1), (x2, y2), (x3, y3) = ((float(dot.get("cx")), float(dot.get("cy"))) for dot in dots)
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.11)  # 1, 4, 16 tokens
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.11)  # 10, 20, 40 us
    assert y1 > y2


def test_axes_hold_their_values_between_readable_ticks():
    assert (time_axis([17.6, 18000]).first, time_axis([17.6, 18000]).last) == (10, 20000)
    assert (time_axis([20.0, 20.0]).first, time_axis([20.0, 20.0]).last) == (20, 50)
    assert list(tokens_axis([1, 64, 16384]).ticks.values()) == ["1", "4", "16", "64", "256", "1k", "4k", "16k"]
    assert list(speed_axis([0.1, 653]).ticks) == [0, 200, 400, 600, 800]
    assert list(speed_axis([0.0]).ticks) == [0, 1]
    assert [short(value, 1000) for value in (0.5, 500, 5000, 20000)] == ["0.5", "500", "5k", "20k"]


def run(program, out, *more):
    options = ["--device", "cpu", "--rounds", "1", "--commit", "abc", "--out", str(out), *more]
    assert program.main(options) == 0
    return json.loads(out.read_text(encoding="utf-8")) if out.exists() else None


def test_one_layer_from_the_command_line_to_the_drawings(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("PEERS", raising=False)
    out = tmp_path / "layer.json"
    found = run(gpu_layer, out, "--shapes", "tiny", "--tokens", "12,256", "--tokens-first", "--hot", "0.5")
    assert (found["commit"], found["hot"], found["rounds"]) == ("abc", 0.5, 1)
    assert {"torch", "moesaic"} <= set(found["versions"])
    assert found["shapes"]["tiny"] == {"num_experts": 8, "top_k": 2, "hidden_size": 64, "intermediate_size": 48}
    assert [(r["impl"], r["tokens"]) for r in found["rows"]] == [
        ("torch_grouped", 12),
        ("reference", 12),
        ("torch_grouped_mm", 12),
        ("torch_grouped", 256),
        ("reference", 256),
        ("torch_grouped_mm", 256),
        ("cublas", 256),
    ]
    assert not [r for r in found["rows"] if "wrong" in r]
    assert all(r["busiest_expert_rows"] >= 128 for r in found["rows"] if r["tokens"] == 256)
    assert [r["impl"] for r in found["not_run"]] == ["vllm", "triton_kernels"]
    assert "not run: impl=vllm why=vllm is not installed, and there is no $PEERS" in capsys.readouterr().out
    options = ("--shapes", "tiny", "--tokens", "12,13", "--hot", "0.5", "--peers", "none", "--resume")
    more = run(gpu_layer, out, *options)
    assert more["rows"][:7] == found["rows"]
    assert [(r["impl"], r["tokens"]) for r in more["rows"][7:]] == [("torch_grouped", 13), ("reference", 13)]
    plot_layers.main([str(out), "--out", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer.json", "layer_teraflops.svg", "layer_time.svg"]


def test_stored_weights_from_the_command_line_to_the_file(tmp_path, monkeypatch):
    monkeypatch.delenv("PEERS", raising=False)
    found = run(gpu_quantized, tmp_path / "stored.json", "--cells", "mxfp4/tiny,fp8_row/tiny", "--tokens", "9")
    assert [(r["impl"], r["scheme"], r["role"]) for r in found["rows"]] == [
        ("reference", "mxfp4", "moesaic"),
        ("reference", "fp8_row", "moesaic"),
    ]
    assert not [r for r in found["rows"] if "wrong" in r]
    assert sorted(r["impl"] for r in found["not_run"]) == ["marlin", "triton_kernels"]


def test_warming_writes_nothing(tmp_path, capsys):
    out = tmp_path / "none.json"
    assert run(gpu_layer, out, "--shapes", "tiny", "--tokens", "1,2,3", "--warm", "1/2") is None
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--shapes", "tiny,qwen"), "'qwen' is none of qwen3_30b"),
        (("--peers", "sglang"), "'sglang' is none of vllm"),
        (("--tokens", "4,0"), "0 tokens: there must be at least one"),
        (("--warm", "3/3"), "part 3 of 3: parts go from 0 to 2"),
        (("--skew", "1", "--hot", "0.5"), "a skew of 1.0 and a hot share of 0.5: give one of them"),
    ],
)
def test_what_is_asked_for_has_to_exist(options, said, capsys):
    with pytest.raises(SystemExit):
        gpu_layer.main(["--device", "cpu", *options])
    assert said in re.sub(r"\s+", " ", capsys.readouterr().err)
