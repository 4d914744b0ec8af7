"""Shards of canonical weights along I: the slices of the whole, outputs that add up, and what cannot be cut."""

import re
from dataclasses import replace

import pytest
import torch

from moesaic import (
    FP8,
    INT4,
    INT8,
    MXFP4,
    NVFP4,
    ExpertWeights,
    PerBlock,
    PerGroup,
    PerRow,
    Plain,
    Problem,
    Quantized,
    Reference,
    ReLU2,
    Routing,
    Scheme,
    StandardBatch,
    SwiGLU,
    bind,
)
from moesaic.errors import FormatError, WeightsError
from tests.other_format import Halved
from tests.quant.examples import FORMATS, values
from tests.tolerance import assert_close

EXPERTS, HIDDEN = 3, 66
each_format = pytest.mark.parametrize("stored", [Plain(), *FORMATS], ids=repr)


def layer(inner, stored, *, parts=2, hidden=HIDDEN):
    """Weights with biases; parts of very different sizes, so that a scale of the wrong place shows."""
    gate_up = values(EXPERTS, parts * inner, hidden, seed=1)
    gate_up[:, inner:] *= 50
    down = values(EXPERTS, hidden, inner, seed=2) * torch.linspace(1, 30, inner)
    biases = {"gate_up_bias": values(EXPERTS, parts * inner, seed=3), "down_bias": values(EXPERTS, hidden, seed=4)}
    return ExpertWeights.plain(gate_up, down, **biases).quantize(stored)


def sliced(tensor, parts, index, count):
    """Share `index` of `count` of each part of dimension 1."""
    size = tensor.shape[1] // parts
    share = size // count
    return torch.cat([tensor[:, part * size + index * share :][:, :share] for part in range(parts)], dim=1)


def assert_slices(whole, count, parts):
    read = whole.dequantize(torch.float32)
    for index in range(count):
        own = whole.shard(index, count)
        found = own.dequantize(torch.float32)
        assert torch.equal(found.gate_up.data, sliced(read.gate_up.data, parts, index, count))
        assert torch.equal(found.down.data.mT, sliced(read.down.data.mT, 1, index, count))
        assert torch.equal(own.gate_up_bias, sliced(whole.gate_up_bias, parts, index, count))
        assert torch.equal(own.down_bias, whole.down_bias if index == 0 else torch.zeros(EXPERTS, HIDDEN))
        assert (own.gate_up.format, own.gate_up.parts) == (whole.gate_up.format, whole.gate_up.parts)
        assert own.down.format == whole.down.format


@pytest.mark.parametrize("parts", [1, 2])
@each_format
def test_a_shard_is_the_slice_of_the_whole(stored, parts):
    assert_slices(layer(384, stored, parts=parts), 3, parts)  # three blocks of 128


@each_format
def test_shards_within_one_tile_share_its_scale(stored):
    assert_slices(layer(256, stored), 16, 2)  # 16 of each tile of 16, 32, 64 or 128


@each_format
def test_one_shard_is_the_whole_also_with_a_short_last_tile(stored):
    whole = layer(202, stored)
    pairs = zip(whole.shard(0, 1).tensors, whole.tensors, strict=True)
    assert all(torch.equal(own.view(torch.uint8), all_.view(torch.uint8)) for own, all_ in pairs)


@pytest.mark.parametrize("stored", [FP8(PerBlock()), INT4(PerRow()), INT8(PerRow())], ids=repr)
def test_a_matrix_of_less_than_a_tile_is_cut_anywhere(stored):
    assert_slices(layer(66, stored), 3, 2)


@pytest.mark.parametrize("count", [1, 2])
@each_format
def test_the_whole_can_be_freed(stored, count):
    whole = layer(256, stored)
    own, theirs = whole.shard(1 % count, count), {t.untyped_storage().data_ptr() for t in whole.tensors}
    for tensor in own.tensors:
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        assert tensor.untyped_storage().data_ptr() not in theirs


def routed(tokens):
    """Every expert but the last, which is empty."""
    ids = torch.arange(2 * tokens).reshape(tokens, 2) % (EXPERTS - 1)
    ids[0, 1] = -1
    return StandardBatch(values(tokens, HIDDEN, sigma=1.0), Routing(ids, torch.rand(tokens, 2) + 0.1))


@pytest.mark.parametrize("activation", [SwiGLU(), ReLU2()], ids=repr)
@each_format
def test_outputs_of_shards_add_up_to_the_layers(stored, activation):
    problem = Problem(
        num_experts=EXPERTS,
        top_k=2,
        hidden_size=HIDDEN,
        intermediate_size=256,
        activation=activation,
        dtype=torch.float32,
        bias=True,
        scheme=Scheme(stored, Plain()),
    )
    whole, batch = layer(256, stored, parts=2 if activation.gated else 1), routed(5)
    part = replace(problem, intermediate_size=128)

    def output(problem, weights):
        with torch.no_grad():
            return bind(problem, weights, backends=(Reference(),))(batch)

    summed = sum(output(part, whole.shard(index, 2)) for index in range(2))
    assert_close(summed, output(problem, whole).double().numpy(), torch.float32)


@pytest.mark.parametrize(
    ("inner", "stored", "count", "says"),
    [
        (1408, Plain(), 3, "I=1408 over 3 shards gives 469.33 rows and columns: choose a number of shards that"),
        (2, Plain(), 3, "I=2 over 3 shards gives 0.67 rows"),
        (
            1408,
            INT4(PerGroup(128)),
            2,
            (
                "down: I=1408 over 2 shards gives 704 columns, but INT4(granularity=PerGroup(columns=128), "
                "zero_point=False, scale=torch.float32) has one element of scale for 128 and needs multiples or "
                "divisors of 128: choose another number of shards, or cut the plain weights and quantize each shard"
            ),
        ),
        (192, FP8(PerBlock()), 2, "gate_up: I=192 over 2 shards gives 96 rows, but FP8("),
        (192, FP8(PerBlock(16, 128)), 2, "down: I=192 over 2 shards gives 96 columns"),
        (48, NVFP4(), 2, "down: I=48 over 2 shards gives 24 columns, but NVFP4() has one element of scale for 16"),
        (6, MXFP4(), 2, "down: I=6 over 2 shards gives 3 columns, but MXFP4() has one element of data for 2"),
        (2, MXFP4(), 2, "gives 1 columns, but MXFP4() has one element of data for 2 and needs multiples of 2: "),
        (6, INT4(PerRow()), 2, "one element of data for 2 and needs multiples of 2: choose"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_every_shard(inner, stored, count, says):
    whole = layer(inner, stored, hidden=2)
    for index in range(count):
        with pytest.raises(WeightsError, match=re.escape(says)):
            whole.shard(index, count)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("index", "count", "says"),
    [
        (2, 2, "ExpertWeights.shard.index is 2, but there are 2 shards, from 0"),
        (-1, 2, "ExpertWeights.shard.index is -1"),
        (True, 2, "ExpertWeights.shard.index is True"),
        (0, 0, "ExpertWeights.shard.count is 0"),
        (0, 2.0, "ExpertWeights.shard.count is 2.0"),
    ],
)
def test_shards_that_are_not_there(index, count, says):
    with pytest.raises(WeightsError, match=says):
        layer(32, Plain()).shard(index, count)


def test_an_output_norm_needs_the_whole_sum():
    whole = replace(layer(32, Plain()), output_scale=torch.ones(HIDDEN))
    with pytest.raises(WeightsError, match=r"output norm, which needs the sum over all of I, .* 1 of 2 shards"):
        whole.shard(0, 2)
    assert whole.shard(0, 1).output_scale is whole.output_scale


def test_weights_that_fit_no_problem_are_not_cut():
    whole = layer(32, Plain())
    with pytest.raises(WeightsError, match="gate_up has 64 rows, but down has 24 columns"):
        replace(whole, down=Quantized(Plain(), torch.ones(EXPERTS, HIDDEN, 24))).shard(0, 2)
    with pytest.raises(WeightsError, match=r"gate_up_bias is \(3, 32\).*\(3, 64\)"):
        replace(whole, gate_up_bias=torch.ones(EXPERTS, 32)).shard(0, 2)
    together = INT8(PerRow()).quantize(whole.gate_up.data)
    with pytest.raises(WeightsError, match=r"quantized in 1 part\(s\), but its 64 rows are 2 times I=32"):
        replace(whole, gate_up=together).shard(0, 2)


def test_a_format_that_does_not_say_its_tiles():
    whole = ExpertWeights.plain(torch.ones(2, 8, 4), torch.ones(2, 4, 4)).quantize(Halved())
    with pytest.raises(FormatError, match=r"Halved\(\) does not say .* 4 x 4 cannot be cut: give Halved the method `t"):
        whole.shard(0, 2)
