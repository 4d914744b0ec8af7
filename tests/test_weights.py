"""ExpertWeights: the canonical form, and one clear error for each way not to fit a problem."""

import dataclasses

import pytest
import torch

from moesaic import ExpertWeights, OutputNorm, Plain, Problem, Quantized, ReLU2, Scheme, SwiGLU
from moesaic.errors import WeightsError
from tests.other_format import Halved

E, H, INNER = 4, 40, 24
PROBLEM = Problem(
    num_experts=E, top_k=2, hidden_size=H, intermediate_size=INNER, activation=SwiGLU(), dtype=torch.float32
)
FULL = dataclasses.replace(PROBLEM, bias=True, output_norm=OutputNorm())


def given(**changes):
    """Weights that fit PROBLEM, with some of the arguments changed."""
    gate_up, down = changes.pop("gate_up", torch.ones(E, 2 * INNER, H)), changes.pop("down", torch.ones(E, H, INNER))
    return ExpertWeights.plain(gate_up, down, **changes)


def complete(**changes):
    """Weights that fit FULL, with some of the arguments changed."""
    extra = {"gate_up_bias": torch.ones(E, 2 * INNER), "down_bias": torch.ones(E, H), "output_scale": torch.ones(H)}
    return given(**{**extra, **changes})


pytestmark = pytest.mark.usefixtures("unchecked")


def test_what_fits_passes():
    given().check(PROBLEM)
    complete().check(FULL)
    complete(gate_up_bias=torch.ones(E, 2 * INNER).bfloat16()).check(FULL)
    given(gate_up=torch.ones(E, INNER, H)).check(dataclasses.replace(PROBLEM, activation=ReLU2()))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gate_up": torch.ones(E, INNER, H)}, r"gate_up is \(4, 24, 40\), but SwiGLU.* size 24 needs \(4, 48, 40\)"),
        ({"gate_up": torch.ones(E, H, 2 * INNER)}, r"gate_up is \(4, 40, 48\).*\(4, 48, 40\)"),
        ({"gate_up": torch.ones(E + 1, 2 * INNER, H)}, r"gate_up is \(5, 48, 40\)"),
        ({"gate_up": torch.ones(2 * INNER, H)}, r"gate_up is \(48, 40\)"),
        ({"down": torch.ones(E, INNER, H)}, r"down is \(4, 24, 40\).*\(4, 40, 24\)"),
        ({"down": torch.ones(E, H, INNER + 1)}, r"down is \(4, 40, 25\)"),
        ({"gate_up": torch.ones(E, 2 * INNER, H).bfloat16()}, "gate_up is torch.bfloat16.* torch.float32"),
        ({"down": torch.ones(E, H, INNER).double()}, "down is torch.float64"),
        ({"down": torch.ones(E, H, INNER).int()}, "down is torch.int32"),
        ({"down": torch.ones(E, H, INNER, device="meta")}, "cpu, meta"),
        ({"gate_up_bias": torch.ones(E, 2 * INNER)}, "gate_up_bias is given.* bias=False"),
        ({"down_bias": torch.ones(E, H)}, "down_bias is given.* bias=False"),
        ({"output_scale": torch.ones(H)}, "output_scale is given.* output_norm=None"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(changes, says):
    with pytest.raises(WeightsError, match=says):
        given(**changes).check(PROBLEM)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gate_up_bias": None}, r"gate_up_bias is missing.*\(4, 48\)"),
        ({"down_bias": None}, r"down_bias is missing.*\(4, 40\)"),
        ({"output_scale": None}, r"output_scale is missing.*\(40,\)"),
        ({"gate_up_bias": torch.ones(E, INNER)}, r"gate_up_bias is \(4, 24\).*\(4, 48\)"),
        ({"down_bias": torch.ones(H)}, r"down_bias is \(40,\).*\(4, 40\)"),
        ({"output_scale": torch.ones(E, H)}, r"output_scale is \(4, 40\).*\(40,\)"),
        ({"down_bias": torch.ones(E, H).int()}, "down_bias is torch.int32"),
        ({"output_scale": torch.ones(H, device="meta")}, "cpu, meta"),
    ],
    ids=str,
)
def test_biases_and_scale_are_those_of_the_problem(changes, says):
    with pytest.raises(WeightsError, match=says):
        complete(**changes).check(FULL)


@pytest.mark.parametrize("name", ["gate_up", "down"])
def test_the_stored_format_is_that_of_the_scheme(name):
    fields = {
        "gate_up": Quantized(Plain(), torch.ones(E, 2 * INNER, H)),
        "down": Quantized(Plain(), torch.ones(E, H, INNER)),
    }
    fields[name] = Halved().quantize(fields[name].data)
    with pytest.raises(WeightsError, match=rf"{name} is stored as Halved\(\).* reads Plain\(\)"):
        ExpertWeights(**fields).check(PROBLEM)


def test_the_shape_of_packed_data_is_the_logical_one():
    problem = dataclasses.replace(PROBLEM, scheme=Scheme(Halved(), Plain()))
    gate_up, down = Halved().quantize(torch.ones(E, 2, INNER, H)).join(), Halved().quantize(torch.ones(E, H, INNER))
    ExpertWeights(gate_up, down).check(problem)
    with pytest.raises(WeightsError, match=r"down is \(4, 40, 23\)"):
        ExpertWeights(gate_up, Halved().quantize(torch.ones(E, H, INNER - 1))).check(problem)


def test_tensors_and_bytes():
    weights = complete()
    assert len(weights.tensors) == 5
    assert weights.num_bytes == 4 * (E * 2 * INNER * H + E * H * INNER + E * 2 * INNER + E * H + H)
    assert weights.gate_up.data is weights.tensors[0]
    packed = ExpertWeights(Halved().quantize(torch.ones(E, 2 * INNER, H)), Halved().quantize(torch.ones(E, H, INNER)))
    assert len(packed.tensors) == 4


def test_the_problem_leaves_out_what_it_states_no_dtype_of():
    weights = complete()
    beside = [weights.gate_up_bias, weights.down_bias, weights.output_scale]
    assert weights.num_bytes - FULL.weight_bytes == sum(t.numel() * t.element_size() for t in beside)
    narrow = dataclasses.replace(weights, gate_up_bias=weights.gate_up_bias.half())
    narrow.check(FULL)
    assert weights.num_bytes - narrow.num_bytes == 2 * weights.gate_up_bias.numel()


def test_plain_weights_are_quantized_and_read_back():
    problem = dataclasses.replace(FULL, scheme=Scheme(Halved(), Plain()))
    stored = complete().quantize(Halved())
    stored.check(problem)
    assert (stored.gate_up.parts, stored.down.parts) == (2, 1)
    assert stored.gate_up_bias is not None
    again = stored.dequantize(torch.float32)
    again.check(FULL)
    for got, wanted in zip(again.tensors, complete().tensors, strict=True):
        assert torch.equal(got, wanted)
    assert stored.num_bytes == problem.weight_bytes + 4 * (E * 2 * INNER + E * H + H)


def test_an_activation_without_gate_has_one_part():
    stored = given(gate_up=torch.ones(E, INNER, H)).quantize(Halved())
    stored.check(dataclasses.replace(PROBLEM, scheme=Scheme(Halved(), Plain()), activation=ReLU2()))
    assert stored.gate_up.parts == 1


def test_gate_and_up_quantized_as_one_are_refused():
    problem = dataclasses.replace(PROBLEM, scheme=Scheme(Halved(), Plain()))
    gate_up, down = Halved().quantize(torch.ones(E, 2 * INNER, H)), Halved().quantize(torch.ones(E, H, INNER))
    with pytest.raises(WeightsError, match=r"gate_up is quantized in 1 part.* needs 2.*ExpertWeights.quantize"):
        ExpertWeights(gate_up, down).check(problem)


def test_weights_are_quantized_once():
    assert given().quantize(Plain()).gate_up.format == Plain()
    with pytest.raises(WeightsError, match=r"stored as Halved\(\)"):
        given().quantize(Halved()).quantize(Halved())
    with pytest.raises(WeightsError, match="gate_up has 47 rows, but down has 24 columns: it needs 24 or 48"):
        given(gate_up=torch.ones(E, 47, H)).quantize(Halved())


def test_plain_weights_are_taken_without_a_copy_and_not_changed_by_the_check():
    gate_up = torch.rand(E, 2 * INNER, H)
    before = gate_up.clone()
    weights = given(gate_up=gate_up)
    weights.check(PROBLEM)
    assert weights.gate_up.data is gate_up
    assert torch.equal(gate_up, before)
