"""The experts of a rank, taken out of canonical weights in the order of its local ids."""

import pytest
import torch

from moesaic import SCHEMES, ExpertWeights, GeGLU, Problem, SwiGLU
from moesaic.dispatch.placement import Placement
from moesaic.errors import FormatError

FORMATS = list(dict.fromkeys(scheme.weights for scheme in SCHEMES))


def layer():
    generator = torch.Generator().manual_seed(0)
    shapes = (5, 64, 128), (5, 128, 32), (5, 64), (5, 128), (128,)
    gate_up, down, gate_up_bias, down_bias, scale = (torch.randn(shape, generator=generator) for shape in shapes)
    return ExpertWeights.plain(gate_up, down, gate_up_bias=gate_up_bias, down_bias=down_bias, output_scale=scale)


@pytest.mark.parametrize("stored", FORMATS, ids=repr)
def test_the_experts_of_each_rank_with_their_scales(stored):
    whole = layer().quantize(stored)
    for experts in Placement(5, ((4, 0), (2, 3, 1, 0))).experts:
        own, values = whole.select(experts), whole.dequantize(torch.float32)
        found = own.dequantize(torch.float32)
        for place, expert in enumerate(experts):
            assert torch.equal(found.gate_up.data[place], values.gate_up.data[expert])
            assert torch.equal(found.down.data[place], values.down.data[expert])
            assert torch.equal(own.gate_up_bias[place], whole.gate_up_bias[expert])
            assert torch.equal(own.down_bias[place], whole.down_bias[expert])
        assert own.output_scale is whole.output_scale
        assert (own.gate_up.format, own.gate_up.parts) == (whole.gate_up.format, whole.gate_up.parts)


def test_a_rank_keeps_nothing_of_the_others():
    whole = layer()
    own = whole.select((1, 2))
    assert own.num_bytes < whole.num_bytes
    for mine, theirs in zip(own.tensors[:4], whole.tensors[:4], strict=True):
        assert mine.untyped_storage().data_ptr() != theirs.untyped_storage().data_ptr()
        assert mine.untyped_storage().nbytes() == mine.numel() * mine.element_size()


def test_weights_without_bias():
    own = ExpertWeights.plain(torch.ones(3, 4, 2), torch.ones(3, 2, 2)).select((2,))
    assert own.gate_up_bias is own.down_bias is own.output_scale is None
    own.check(
        Problem(
            num_experts=1,
            top_k=1,
            hidden_size=2,
            intermediate_size=2,
            activation=GeGLU(),
            dtype=torch.float32,
        )
    )


def test_constants_go_with_their_experts():
    ranks = Placement(3, ((2, 0), (1,))).experts
    assert SwiGLU(limit=(7.0, 8.0, 9.0)).select(ranks[0]) == SwiGLU(limit=(9.0, 7.0))


@pytest.mark.parametrize("experts", [(5,), (0, -1), (True,), (1.0,), ("0",)])
@pytest.mark.usefixtures("unchecked")
def test_experts_that_are_not_there(experts):
    with pytest.raises(FormatError):
        layer().select(experts)
