import json
from pathlib import Path

import pytest
import transformers
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.usefixtures("unchecked")

FLAGS = ("--experts", "8", "--top-k", "2", "--hidden", "64", "--intermediate", "32", "--activation", "SwiGLU()")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("explain", *FLAGS, "--backend", "hopper"), ("'hopper'", "torch_grouped", "reference")),
        (("explain", *FLAGS, "--plugin", "acme"), ("'acme'", "moesaic.backends")),
        (("explain", *FLAGS, "--machine", "h300"), ("'h300'", "h200")),
        (("explain", *FLAGS, "--machine", "cuda:99"), ("cuda:99", "cpu")),
        (("explain", *FLAGS, "--machine", "cpu:x"), ("'cpu:x'",)),
        (("explain", *FLAGS, "--machine", "Machine(device='cpu')"), ("does not build a Machine",)),
        (("explain", *FLAGS, "--machine", "Machine(**{})"), ("write every field by name",)),
        (("explain", "--model", "mixtral-8x9b"), ("'mixtral-8x9b'", "mixtral-8x7b", "moesaic models")),
        (("explain", "--model", "muse-spark"), ("not published",)),
        (("explain", "--model", "x" * 5000), ("no model is known",)),
        (("explain", "--model", "/" + "x" * 5000), ("not a directory",)),
        (("explain", *FLAGS, "--hidden", "+".join("1" * 5000)), ("not",)),
        (("explain", *FLAGS, "--hidden", "-" * 5000 + "1"), ("not",)),
        (("explain", "--model", "mixtral-8x7b", "--problem", "x"), ("--model and --problem",)),
        (("explain", "--experts", "8", "--top-k", "2"), ("--hidden, --intermediate, --activation", "--model")),
        (("explain", "--problem", "SwiGLU()"), ("Problem",)),
        (("explain", "--problem", "Problem("), ("not a Python expression",)),
        (("explain", "--problem", "__import__('os').system('true')"), ("not understood",)),
        (("explain", *FLAGS, "--activation", "__import__('os')"), ("'__import__'", "not known")),
        (("explain", *FLAGS, "--activation", "SwiGLU(limit=().__class__)"), ("not understood",)),
        (("explain", *FLAGS, "--activation", "SwiGLU(limit=1e999)"), ("limit", "inf", "finite")),
        (("explain", *FLAGS, "--activation", "SwiGLU(limit=-1.0)"), ("above zero",)),
        (("explain", *FLAGS, "--activation", "SwiGLU(limit=nan)"), ("not understood",)),
        (("explain", *FLAGS, "--activation", "SwiGLU(limit=(1.0, 2.0))"), ("2 values", "8 experts")),
        (("explain", *FLAGS, "--activation", "Swish()"), ("'Swish'", "SwiGLU")),
        (("explain", *FLAGS, "--dtype", "bfloat17"), ("bfloat17", "bfloat16")),
        (("explain", *FLAGS, "--dtype", "int8"), ("int8", "bfloat16")),
        (("explain", *FLAGS, "--dtype", "__import__('os')"), ("not understood",)),
        (("explain", *FLAGS, "--layout", "SwiGLU()"), ("layout", "Standard()")),
        (("explain", *FLAGS, "--experts", "-8"), ("num_experts", "-8")),
        (("explain", *FLAGS, "--top-k", "0"), ("top_k", "0")),
        (("explain", *FLAGS, "--hidden", "64.5"), ("hidden_size", "64.5")),
        (("explain", *FLAGS, "--hidden", "9" * 5000), ("not a Python expression",)),
        (("explain", *FLAGS, "--hidden", "x" * 120_000), ("100000",)),
        (("explain", *FLAGS, "--colour", "red"), ("--colour", "--help")),
        (("explain", "--experts"), ("--experts", "--help")),
        (("explian",), ("explian", "--help")),
        (("machine", "--machine", "pc"), ("'pc'", "h200")),
        (("backends", "--plugin", "acme"), ("'acme'", "offered")),
        (("models", "gpt-oss-21b"), ("gpt-oss-20b",)),
        (("matrix", "--check", "/no/such/file.md"), ("/no/such/file.md", "--write")),
        (("matrix", "--write", "/no/such/dir/file.md"), ("/no/such/dir/file.md",)),
        (("matrix", "--write", "a", "--check", "b"), ("give one",)),
        (("bench", *FLAGS, "--tokens", "1,-16"), ("'1,-16'", "1,16,256")),
        (("bench", *FLAGS, "--tokens", ""), ("''",)),
        (("bench", *FLAGS, "--repeats", "0"), ("--repeats",)),
        (("bench", *FLAGS, "--device", "gpu"), ("'gpu'", "cpu")),
        (("bench", *FLAGS, "--device", "cuda:99"), ("cuda:99",)),
        (("bench", *FLAGS, "--top-k", "9"), ("--top-k", "--experts")),
        (("demo", "--model", "/no/such/model"), ("/no/such/model", "config.json")),
        (("demo", "--prompt", ""), ("--prompt",)),
        (("demo", "--device", "tpu"), ("'tpu'",)),
        (("demo", "--tokens", "0"), ("--tokens",)),
        (("demo", "--backend", "hopper"), ("'hopper'",)),
    ],
)
def test_bad_input_is_one_line_that_names_it_and_exit_code_2(moesaic, arguments, parts):
    moesaic(*arguments).assert_bad_input(*parts)


@pytest.mark.parametrize("command", ["explain", "demo"])
def test_a_checkpoint_without_experts(moesaic, dense_model, command):
    moesaic(command, "--model", str(dense_model)).assert_bad_input(str(dense_model), "no experts")


@pytest.mark.parametrize("command", ["explain", "demo"])
@pytest.mark.parametrize(
    ("config", "part"),
    [
        (None, "no config.json"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (json.dumps({"model_type": "no-such-family"}), "no-such-family"),
        (json.dumps({"model_type": "qwen3_moe", "hidden_size": "x"}), "cannot be read"),
    ],
)
def test_a_checkpoint_with_a_bad_configuration(moesaic, tmp_path, command, config, part):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    moesaic(command, "--model", str(tmp_path)).assert_bad_input(str(tmp_path), part)


def test_a_directory_that_may_not_be_read(moesaic, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    moesaic("explain", "--model", str(tmp_path)).assert_bad_input(str(tmp_path), "Permission denied")
    monkeypatch.setattr(Path, "is_dir", refuse)
    moesaic("explain", "--model", str(tmp_path)).assert_bad_input(str(tmp_path), "not a directory")


def test_a_checkpoint_without_safetensors(moesaic, tiny_model, tmp_path):
    (tmp_path / "config.json").write_text((tiny_model / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read")
    moesaic("demo", "--model", str(tmp_path)).assert_bad_input("no *.safetensors")


def test_a_checkpoint_that_lacks_tensors_is_not_filled_with_random_ones(moesaic, tiny_model, tmp_path):
    tensors = load_file(tiny_model / "model.safetensors")
    del tensors["model.norm.weight"]
    (tmp_path / "config.json").write_text((tiny_model / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    moesaic("demo", "--model", str(tmp_path)).assert_bad_input("model.norm.weight")


def test_a_checkpoint_with_tensors_of_other_shapes(moesaic, tiny_model, tmp_path):
    config = json.loads((tiny_model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    (tmp_path / "model.safetensors").write_bytes((tiny_model / "model.safetensors").read_bytes())
    moesaic("demo", "--model", str(tmp_path)).assert_bad_input("cannot be read")


def test_a_checkpoint_with_broken_safetensors(moesaic, tiny_model, tmp_path):
    (tmp_path / "config.json").write_text((tiny_model / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"\x01\x02\x03")
    moesaic("demo", "--model", str(tmp_path)).assert_bad_input("cannot be read")


def test_a_checkpoint_with_quantized_weights_is_not_guessed(moesaic, tiny_model, tmp_path):
    config = json.loads((tiny_model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    moesaic("explain", "--model", str(tmp_path)).assert_bad_input("quantized", "--problem")


def test_layers_outside_the_experts_interface_are_named(moesaic, tmp_path):
    transformers.Llama4TextConfig(num_hidden_layers=1, num_local_experts=2).save_pretrained(tmp_path)
    moesaic("explain", "--model", str(tmp_path)).assert_bad_input("model.layers.0.feed_forward", "interface")


@pytest.mark.parametrize("command", ["explain", "demo"])
def test_a_checkpoint_never_runs_its_own_code_unasked(moesaic, tmp_path, command):
    ran = tmp_path / "ran"
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "mine.py").write_text(f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n")
    moesaic(command, "--model", str(tmp_path)).assert_bad_input("--trust-remote-code")
    assert not ran.exists()
