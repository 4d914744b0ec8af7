"""Every family's names: plain weights written and read; which naming reads what; layers found and chosen."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from moesaic import FP8, ExpertWeights, PerBlock
from moesaic.checkpoints import (
    NAMINGS,
    Checkpoint,
    FineGrainedFP8,
    PerExpert,
    Stacked,
    Unquantized,
    read_experts,
    write_experts,
)
from moesaic.errors import CheckpointError
from tests.quant.examples import values

L, H, INNER = 3, 10, 6
BLOCKS = {
    "gate_proj": "model.layers.{}.mlp.experts",
    "w3": "model.layers.{}.block_sparse_moe.experts",
    "fc3": "vision.blocks.{}.mlp.experts",
    "w13": "model.llm.layers.{}.mlp.experts",
    "fc1": "language_model.model.layers.{}.mlp.experts",
    "gate_up_proj": "model.language_model.layers.{}.feed_forward.experts",
    "input_linear": "model.layers.{}.block_sparse_moe",
    "parent='moe'": "model.layers.{}.moe",
    "v1": "transformer.blocks.{}.ffn.experts.mlp",
}


def block_of(naming):
    return BLOCKS[next(word for word in reversed(BLOCKS) if word in repr(naming))]


def plain(seed, bias=False):  # noqa: FBT002
    return ExpertWeights.plain(
        values(L, 2 * INNER, H, seed=seed, dtype=torch.bfloat16),
        values(L, H, INNER, seed=seed + 1, dtype=torch.bfloat16),
        gate_up_bias=values(L, 2 * INNER, seed=seed + 2) if bias else None,
        down_bias=values(L, H, seed=seed + 3) if bias else None,
    )


def layouts():
    """Every naming, and both orders of rows and columns where the shapes tell."""
    for number, naming in enumerate(NAMINGS):
        both = isinstance(naming, Stacked) and naming.transposed is None
        for written in [replace(naming, transposed=t) for t in (True, False)] if both else [naming]:
            yield pytest.param(naming, written, id=f"{number}-{'transposed' if both and written.transposed else ''}")


@pytest.mark.parametrize(("naming", "written"), [*layouts()])
def test_plain_weights_of_every_naming(naming, written, tmp_path):
    biased = isinstance(naming, Stacked) and naming.biased
    layers = {1: plain(1, biased), 10: plain(2, biased)}
    model_type = next(iter(naming.of_models), "some") if isinstance(naming, Stacked) else "some"
    config = {"model_type": model_type, "ffn_config": {"moe_num_experts": L}}
    write_experts(tmp_path / "m", layers, Unquantized(), naming=written, block=block_of(naming), config=config)
    checkpoint = Checkpoint(tmp_path / "m")
    assert [(layer.number, layer.naming) for layer in checkpoint.layers] == [(1, naming), (10, naming)]
    for number, wanted in layers.items():
        assert checkpoint.num_experts(number) == L
        for chosen in (range(L), [2, 0]):
            got = checkpoint.read(number, experts=chosen)
            for found, needed in zip(got.tensors, wanted.tensors, strict=True):
                assert torch.equal(found, needed[[*chosen]])


def test_rows_of_gate_and_up_lie_as_each_family_has_them(tmp_path):
    gate, up = torch.zeros(1, INNER, H), torch.ones(1, INNER, H)
    weights = ExpertWeights.plain(torch.cat([gate, up], dim=1), torch.zeros(1, H, INNER))
    wanted = {"gpt_oss": [0, 1] * INNER, "llama4": [0] * INNER + [1] * INNER}
    for kind, rows in wanted.items():
        naming = replace(
            next(n for n in NAMINGS if "gate_up" in repr(n) and n.suits({"model_type": kind})), transposed=True
        )
        write_experts(tmp_path / kind, {0: weights}, Unquantized(), naming=naming, config={"model_type": kind})
        path = next((tmp_path / kind).glob("*.safetensors"))
        from safetensors.torch import load_file  # noqa: PLC0415

        stored = load_file(path)["model.layers.0.mlp.experts.gate_up_proj"]
        assert stored[0, 3].tolist() == rows


def test_experts_without_gate(tmp_path):
    weights = ExpertWeights.plain(values(L, INNER, H), values(L, H, INNER))
    write_experts(tmp_path / "m", {4: weights}, Unquantized(), block="backbone.layers.{}.mixer.experts")
    got = read_experts(tmp_path / "m", 4)
    assert torch.equal(got.gate_up.data, weights.gate_up.data)
    for naming in NAMINGS:
        if not isinstance(naming, PerExpert):
            with pytest.raises(CheckpointError, match="has a gate"):
                write_experts(tmp_path / "n", {4: weights}, Unquantized(), naming=naming)


def test_stacked_projections_in_fp8_blocks(tmp_path):
    """Step-3.5: gate and up are two stacked tensors with scales `[E, ceil(INNER / 128), ceil(H / 128)]`."""
    naming = next(n for n in NAMINGS if "parent='moe'" in repr(n))
    weights = ExpertWeights.plain(values(L, 2 * 192, 72), values(L, 72, 192)).quantize(FP8(PerBlock()))
    write_experts(tmp_path / "m", {0: weights}, FineGrainedFP8(), naming=naming, block="model.layers.{}.moe")
    got = read_experts(tmp_path / "m", 0)
    assert got.gate_up.parts == 2
    assert all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(got.tensors, weights.tensors, strict=True)
    )


def test_stacked_matrices_whose_shapes_do_not_go_together(tmp_path):
    tensors = {
        "layers.0.experts.gate_up_proj": torch.zeros(2, 12, 10),
        "layers.0.experts.down_proj": torch.zeros(2, 6, 12),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"\(12, 10\) and those of .*\(6, 12\), but they need \[2I, H\]"):
        read_experts(tmp_path, 0)


def test_flattened_experts_need_their_number(tmp_path):
    naming = NAMINGS[-1]
    write_experts(tmp_path / "m", {0: plain(0)}, Unquantized(), naming=naming, block=block_of(naming), config={})
    with pytest.raises(CheckpointError, match="moe_num_experts"):
        read_experts(tmp_path / "m", 0)
    (tmp_path / "m/config.json").write_text(json.dumps({"ffn_config": {"moe_num_experts": 4}}))
    with pytest.raises(CheckpointError, match=r"\(18, 10\), but it needs 4 experts of equal height"):
        read_experts(tmp_path / "m", 0)


def several(directory, *blocks):
    """A checkpoint with the same experts in several blocks."""
    tensors = {}
    for block in blocks:
        for name, shape in (("gate_proj", (INNER, H)), ("up_proj", (INNER, H)), ("down_proj", (H, INNER))):
            tensors |= {f"{block}.{e}.{name}.weight": torch.zeros(shape) for e in range(2)}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    return Checkpoint(directory)


def test_a_number_means_the_stack_with_most_layers(tmp_path):
    main = [f"model.layers.{n}.mlp.experts" for n in (3, 4, 5, 7, 10)]
    checkpoint = several(tmp_path, *main, "mtp.layers.4.mlp.experts")
    assert [layer.name for layer in checkpoint.layers] == [*main, "mtp.layers.4.mlp.experts"]
    assert checkpoint.layer(4).name == "model.layers.4.mlp.experts"
    assert checkpoint.layer("mtp.layers.4.mlp.experts").stack == "mtp.layers"
    with pytest.raises(CheckpointError, match="3 to 5, 7, 10, mtp"):
        checkpoint.layer(6)


def test_a_number_that_means_two_layers_is_refused_with_their_names(tmp_path):
    names = ("layers.1.mlp.text_moe.experts", "layers.1.mlp.vision_moe.experts")
    checkpoint = several(tmp_path, *names)
    with pytest.raises(CheckpointError, match="2 layers .* give one of the names " + ", ".join(names)):
        checkpoint.layer(1)


def test_shared_experts_and_dense_layers_are_not_experts(tmp_path):
    names = [
        "mlp.gate_proj",
        "mlp.shared_experts.gate_proj",
        "mlp.shared_expert.down_proj",
        "shared_mlp.input_linear",
        "block_sparse_moe.gate_proj",
    ]
    blocks = [naming.block(f"model.layers.0.{name}.weight") for name in names for naming in NAMINGS]
    assert blocks == [None] * len(blocks)


def test_a_naming_of_ones_own(tmp_path):
    mine = PerExpert("linear_gate", "linear_up", "linear_out")
    write_experts(tmp_path / "m", {0: plain(0)}, Unquantized(), naming=mine)
    with pytest.raises(CheckpointError, match="give an MoE model, or a Naming"):
        Checkpoint(tmp_path / "m")
    assert Checkpoint(tmp_path / "m", namings=(mine,)).read(0).down.shape == (L, H, INNER)


def test_muse_sparks_norm_is_one_plus_its_weight(tmp_path):
    block = "layers.0.mlp.experts"
    tensors = {
        f"{block}.gate_up_proj": torch.zeros(2, 2 * INNER, H),
        f"{block}.down_proj": torch.zeros(2, H, INNER),
        f"{block}.post_expert_norm.weight": torch.full((H,), 2**-9, dtype=torch.bfloat16),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert torch.equal(read_experts(tmp_path, 0).output_scale, torch.full((H,), 1 + 2**-9))
