import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from typer.testing import CliRunner

from moesaic.cli.app import app


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    def assert_bad_input(self, *parts: str) -> None:
        assert self.code == 2, self
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("moesaic: ")
        assert "Traceback" not in self.err
        for part in parts:
            assert part in lines[0]


@pytest.fixture
def moesaic(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*arguments: str) -> Answer:
        found = CliRunner().invoke(app, list(arguments))
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
        return Answer(found.exit_code, found.stdout, found.stderr)

    return run


@pytest.fixture(scope="session")
def tiny_config():
    return transformers.Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=1024,
        dtype="bfloat16",
    )


@pytest.fixture(scope="session")
def tiny_model(tiny_config, tmp_path_factory) -> Path:
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("tiny") / "qwen3-moe"
    transformers.Qwen3MoeForCausalLM(tiny_config).to(torch.bfloat16).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def dense_model(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("dense") / "llama"
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory
