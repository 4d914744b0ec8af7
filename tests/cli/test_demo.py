import math

import pytest
import torch
import transformers

from moesaic import BACKENDS
from moesaic.cli.bits_per_byte import WINDOW, bits_per_byte, cut_windows
from moesaic.cli.checkpoint import read_model
from moesaic.cli.experts_in_turns import WAYS, ExpertsInTurns, generate
from moesaic.cli.text_coder import Bytes, Tokenizer, text_coder
from moesaic.errors import CheckpointError


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr("moesaic.cli.demo.WINDOWS", 2)
    monkeypatch.setattr("moesaic.cli.experts_in_turns.ROUNDS", 1)


def test_json_has_exactly_the_documented_keys(moesaic, tiny_model):
    answer = moesaic("demo", "--model", str(tiny_model), "--tokens", "3", "--json")
    assert answer.code == 0, answer
    document = answer.document
    assert list(document) == ["bits_per_byte", "tokens_per_second", "backend", "layers"]
    for key in ("bits_per_byte", "tokens_per_second"):
        assert list(document[key]) == ["eager", "grouped_mm", "moesaic"]
        assert all(isinstance(value, float) and value > 0 for value in document[key].values())
    assert document["bits_per_byte"]["moesaic"] == pytest.approx(document["bits_per_byte"]["eager"], rel=0.01)
    assert document["backend"] in {backend.name for backend in BACKENDS}
    assert [layer["name"] for layer in document["layers"]] == [f"model.layers.{i}.mlp.experts" for i in (0, 1)]
    for layer in document["layers"]:
        assert list(layer) == ["name", "backend", "reasons"]
        assert layer["backend"] == document["backend"]
        assert layer["reasons"] == []


def test_text_shows_machine_verdicts_report_text_and_both_measures(moesaic, tiny_model):
    answer = moesaic(
        "demo", "--model", str(tiny_model), "--tokens", "3", "--prompt", "Elinor ", "--backend", "reference"
    )
    assert answer.code == 0
    assert answer.err == ""
    for part in ("machine  ", "reference", "runs", "2 of 2 MoE layers run through moesaic", "Elinor ", "bits per byte"):
        assert part in answer.out
    assert all(way in answer.out for way in WAYS)


def test_no_covered_layer_is_no(moesaic, tmp_path):
    config = transformers.Llama4TextConfig(
        vocab_size=256,
        hidden_size=16,
        intermediate_size=16,
        intermediate_size_mlp=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        num_local_experts=2,
    )
    transformers.Llama4ForCausalLM(config).save_pretrained(tmp_path)
    answer = moesaic("demo", "--model", str(tmp_path))
    assert answer.code == 1
    assert answer.out == ""
    assert "interface" in answer.err


class Uniform(torch.nn.Module):
    """Every byte is equally likely: 8 bits."""

    device = torch.device("cpu")

    def forward(self, input_ids, use_cache):
        assert not use_cache
        return type("Output", (), {"logits": torch.zeros(*input_ids.shape, 256)})


class KnowsTheNext(torch.nn.Module):
    """Right about every byte but those after position 255 of a window, where it gives the truth a half."""

    device = torch.device("cpu")

    def forward(self, input_ids, use_cache):
        logits = torch.full((*input_ids.shape, 256), -100.0)
        logits.scatter_(-1, input_ids.roll(-1, dims=1).unsqueeze(-1), 100.0)
        logits[:, 256:] = logits[:, 256:].clamp(max=-100.0)
        return type("Output", (), {"logits": logits})


def test_bits_per_byte_of_models_whose_answer_is_known():
    windows = cut_windows(bytes(range(256)) * 9, None)
    assert len(windows) == 4
    assert bits_per_byte(Uniform(), Bytes(), windows) == pytest.approx(8.0)
    # positions 0..255 predict bytes 1..256 for nothing, 256..510 are uniform
    assert bits_per_byte(KnowsTheNext(), Bytes(), windows) == pytest.approx(8 * 255 / 511)


def test_windows_are_spread_do_not_overlap_and_drop_the_rest():
    text = bytes(i // WINDOW for i in range(10 * WINDOW + 5))
    assert [w[0] for w in cut_windows(text, None)] == list(range(10))
    assert [w[0] for w in cut_windows(text, 3)] == [0, 3, 6]
    assert all(len(w) == WINDOW and len(set(w)) == 1 for w in cut_windows(text, 4))
    assert len(cut_windows(text, 100)) == 10
    with pytest.raises(CheckpointError, match="511 bytes"):
        cut_windows(b"x" * 511, None)


def test_a_tokenizer_is_charged_for_the_bytes_its_ids_stand_for():
    class Pairs:
        """Two bytes an id."""

        def encode(self, text, *, add_special_tokens):
            assert not add_special_tokens
            return [ord(text[i]) for i in range(0, len(text), 2)]

        def decode(self, ids):
            return "".join(chr(i) * 2 for i in ids)

    found = bits_per_byte(Uniform(), Tokenizer(Pairs()), [b"aabb" * 128])
    assert found == pytest.approx(8 * 255 / 510)


def test_bytes_are_ids_and_what_cannot_be_printed_is_replaced():
    assert Bytes().encode("né".encode()) == [110, 195, 169]
    assert Bytes().decode([110, 195, 169, 10, 27, 255]) == "né\n\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"


def test_a_large_vocabulary_without_a_tokenizer_is_refused(tmp_path):
    assert text_coder(tmp_path, 256, trust_remote_code=False) == Bytes()
    with pytest.raises(CheckpointError, match="32000 ids but no tokenizer"):
        text_coder(tmp_path, 32000, trust_remote_code=False)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="tokenizer"):
        text_coder(tmp_path, 32000, trust_remote_code=False)


def test_the_three_ways_share_one_model_and_give_it_back(tiny_model):
    model = read_model(tiny_model, dtype=torch.float32, trust_remote_code=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    turns = ExpertsInTurns(model, BACKENDS)
    prompt = torch.tensor([[65, 66, 67]])
    texts = []
    for way in WAYS:
        with turns.way(way) as report:
            texts.append(generate(model, prompt, 5))
            assert (report is not None) is (way == "moesaic")
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 5
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    speeds = turns.tokens_per_second(prompt, 2, lambda: None)
    assert list(speeds) == list(WAYS)
    assert all(math.isfinite(value) and value > 0 for value in speeds.values())
