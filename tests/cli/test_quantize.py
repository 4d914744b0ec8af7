"""`moesaic quantize`: what it writes is what `moesaic checkpoint` reads; a signal leaves nothing."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moesaic import NVFP4, Scheme
from moesaic.cli.reading import read_value
from tests.checkpoints.examples import named, written

SHIPPED = Path(__file__).parents[2] / "src/moesaic/shipped"


@pytest.mark.parametrize("model", sorted(path.name for path in SHIPPED.iterdir() if path.is_dir()))
def test_a_shipped_model_is_quantized_and_read_again(moesaic, model, tmp_path):
    out = tmp_path / "out"
    answer = moesaic("quantize", str(SHIPPED / model), "--format", "nvfp4", "--out", str(out), "--json")
    assert answer.code == 0, answer
    found = answer.document
    assert read_value(found["weights"]) == NVFP4()
    assert found["bytes"] < 0.5 * found["bytes_before"]
    again = moesaic("checkpoint", str(out), "--check", "--json").document
    assert read_value(again["scheme"]) == Scheme(NVFP4(), NVFP4())
    assert read_value(again["problem"]).scheme == Scheme(NVFP4(), NVFP4())
    assert again["layers"] == found["layers"]


def test_an_answer_in_words_and_replacing(moesaic, tiny_model, tmp_path):
    out = tmp_path / "out"
    arguments = ("quantize", str(tiny_model), "--format", "fp8-block", "--out", str(out))
    answer = moesaic(*arguments)
    assert "2 layers with experts as FP8(granularity=PerBlock(rows=128, columns=128)" in answer.out
    moesaic(*arguments).assert_bad_input("is there already", "--force")
    assert moesaic(*arguments, "--force").code == 0


def test_bad_input(moesaic, tiny_model, dense_model, tmp_path):
    out = str(tmp_path / "out")
    moesaic("quantize", str(tiny_model), "--format", "fp3", "--out", out).assert_bad_input("'fp3'", "nvfp4-modelopt")
    moesaic("quantize", str(dense_model), "--format", "nvfp4", "--out", out).assert_bad_input("named as experts")
    moesaic("quantize", str(tmp_path / "no"), "--format", "nvfp4", "--out", out).assert_bad_input("not a directory")
    file = tmp_path / "file"
    file.write_text("")
    moesaic("quantize", str(tiny_model), "--format", "nvfp4", "--out", str(file / "x")).assert_bad_input(str(file))
    moesaic("quantize", str(tiny_model), "--format", "nvfp4", "--out", str(file)).assert_bad_input(str(file))
    moesaic("quantize", str(tiny_model), "--format", "gptq", "--out", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(number, tmp_path):
    _, source = written(named("bf16"), tmp_path)
    code = (
        "import os, sys, moesaic.checkpoints.quantizing as q\n"
        "before = q._stacked\n"
        f"q._stacked = lambda experts: (os.kill(os.getpid(), {int(number)}), before(experts))[1]\n"
        "from moesaic.cli.app import main; main()"
    )
    arguments = ("quantize", str(source), "--format", "nvfp4", "--out", str(tmp_path / "out"))
    done = subprocess.run((sys.executable, "-c", code, *arguments), capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 130, done
    assert "nothing was written" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == [source.name]  # noqa: PTH208


def test_the_configuration_says_which_modules_stay_plain(moesaic, tiny_model, tmp_path):
    out = tmp_path / "out"
    assert moesaic("quantize", str(tiny_model), "--format", "int4-g32", "--out", str(out)).code == 0
    ignored = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    assert {"lm_head", "model.layers.0.mlp.gate", "model.layers.1.self_attn.q_proj"} <= {*ignored}
