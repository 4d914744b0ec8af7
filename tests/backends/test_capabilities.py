"""The judge: one changed field of a served problem gives exactly its reason; several give all of theirs."""

import dataclasses

import pytest
import torch

from moesaic import (
    ACTIVATIONS,
    FP8,
    NVFP4,
    Accepts,
    BatchedExperts,
    Capabilities,
    ExpertWeights,
    GeGLU,
    GroupedContiguous,
    Machine,
    OutputNorm,
    PaddedStandard,
    PerBlock,
    Plain,
    Problem,
    Reason,
    ReasonCode,
    ReLU2,
    Requires,
    Scheme,
    SiTU,
    Standard,
    SwiGLU,
    Target,
    TorchGrouped,
    known_machine,
)
from moesaic.activations import Activation
from moesaic.backends.capabilities import judge
from moesaic.errors import BackendError
from tests.backends import example
from tests.other_format import Halved

NARROW = Capabilities(
    targets=(Target("cuda", 90, 90),),
    features=("tma",),
    requires=(Requires("triton", (3, 6)),),
    dtypes=(torch.bfloat16,),
    schemes=(Scheme(Plain(), Plain()),),
    any_scheme=False,
    layouts=(GroupedContiguous(4), Standard()),
    activations=(Accepts(SwiGLU, scalar=("limit",), per_expert=("alpha",)), Accepts(GeGLU)),
    any_activation=False,
    bias=False,
    output_norm=False,
    weight_on_input=False,
    inactive_slots=False,
    duplicate_ids=False,
    deterministic=False,
    graph_capture=False,
    differentiable=False,
    row_bytes=16,
    max_experts=4,
    max_top_k=2,
)
SERVED = Problem(
    num_experts=4,
    top_k=2,
    hidden_size=40,
    intermediate_size=24,
    activation=SwiGLU(),
    inactive_slots=False,
    duplicate_ids=False,
)
MACHINE = Machine(
    device="cuda",
    name="an accelerator",
    architecture="sm_90",
    processors=132,
    memory_bytes=2**37,
    features=("tma",),
    packages=(("triton", "3.6.0"),),
)
PROBLEMS = [
    (ReasonCode.DTYPE, {"dtype": torch.float16}),
    (ReasonCode.DTYPE, {"dtype": torch.float64}),
    (ReasonCode.SCHEME, {"scheme": Scheme(Halved(), Plain())}),
    (ReasonCode.SCHEME, {"scheme": Scheme(Plain(), Halved())}),
    (ReasonCode.LAYOUT, {"layout": PaddedStandard()}),
    (ReasonCode.LAYOUT, {"layout": BatchedExperts()}),
    (ReasonCode.LAYOUT, {"layout": GroupedContiguous(2)}),
    (ReasonCode.ACTIVATION, {"activation": ReLU2()}),
    (ReasonCode.ACTIVATION, {"activation": SiTU()}),
    (ReasonCode.ACTIVATION_CONSTANT, {"activation": SwiGLU(beta=1.0)}),
    (ReasonCode.ACTIVATION_CONSTANT, {"activation": SwiGLU(beta=(0.0, 0.0, 0.0, 1.0))}),
    (ReasonCode.ACTIVATION_CONSTANT, {"activation": SwiGLU(limit=(7.0, 7.0, 7.0, 5.0))}),
    (ReasonCode.ACTIVATION_CONSTANT, {"activation": GeGLU("tanh")}),
    (ReasonCode.BIAS, {"bias": True}),
    (ReasonCode.OUTPUT_NORM, {"output_norm": OutputNorm()}),
    (ReasonCode.WEIGHT_ON_INPUT, {"weight_on_input": True}),
    (ReasonCode.INACTIVE_SLOTS, {"inactive_slots": True}),
    (ReasonCode.DUPLICATE_IDS, {"duplicate_ids": True}),
    (ReasonCode.DETERMINISM, {"deterministic": True}),
    (ReasonCode.GRAPH_CAPTURE, {"graph_capture": True}),
    (ReasonCode.GRADIENT, {"differentiable": True}),
    (ReasonCode.NUM_EXPERTS, {"num_experts": 5}),
    (ReasonCode.TOP_K, {"top_k": 3}),
    (ReasonCode.HIDDEN_SIZE, {"hidden_size": 44}),
    (ReasonCode.INTERMEDIATE_SIZE, {"intermediate_size": 28}),
]
MACHINES = [
    (ReasonCode.DEVICE, {"device": "cpu"}),
    (ReasonCode.ARCHITECTURE, {"architecture": "sm_80"}),
    (ReasonCode.ARCHITECTURE, {"architecture": "sm_100"}),
    (ReasonCode.FEATURE, {"features": ("avx2",)}),
    (ReasonCode.FEATURE, {"features": ()}),
    (ReasonCode.PACKAGE, {"packages": ()}),
    (ReasonCode.PACKAGE, {"packages": (("triton", "3.5.1"),)}),
    (ReasonCode.PACKAGE, {"packages": (("triton", "unknown"),)}),
    (ReasonCode.PACKAGE, {"packages": (("torch", "9.9"),)}),
    (ReasonCode.MEMORY, {"memory_bytes": 1}),
]


def codes(problem=SERVED, machine=MACHINE, can=NARROW):
    return [reason.code for reason in judge(can, problem, machine)]


def test_the_narrow_declaration_serves_its_problem():
    assert codes() == []


@pytest.mark.parametrize(("code", "changes"), PROBLEMS, ids=str)
def test_a_changed_field_of_the_problem_gives_exactly_its_reason(code, changes):
    [reason] = judge(NARROW, dataclasses.replace(SERVED, **changes), MACHINE)
    assert reason.code is code
    assert reason.wanted
    assert reason.got
    assert str(reason) == f"{code.value}: needs {reason.wanted}, got {reason.got}"


@pytest.mark.parametrize(("code", "changes"), MACHINES, ids=str)
def test_a_changed_field_of_the_machine_gives_exactly_its_reason(code, changes):
    assert codes(machine=dataclasses.replace(MACHINE, **changes)) == [code]


def test_every_reason_and_every_field_is_reached():
    assert {code for code, _ in PROBLEMS + MACHINES} == set(ReasonCode)
    assert {name for _, changes in PROBLEMS for name in changes} == {f.name for f in dataclasses.fields(Problem)}


@pytest.mark.parametrize(
    "changes",
    [
        {"activation": SwiGLU(limit=7.0)},
        {"activation": SwiGLU(alpha=1.702)},
        {"activation": SwiGLU(alpha=(1.0, 2.0, 3.0, 4.0), limit=3.0)},
        {"activation": SwiGLU(beta=(0.0, 0.0, 0.0, 0.0))},
        {"activation": GeGLU()},
        {"layout": GroupedContiguous(8)},
        {"num_experts": 1, "top_k": 1},
        {"hidden_size": 8, "intermediate_size": 8},
    ],
    ids=str,
)
def test_what_is_declared_is_served(changes):
    assert codes(dataclasses.replace(SERVED, **changes)) == []


def test_all_reasons_are_given_at_once_and_in_order():
    everything = {name: value for _, changes in reversed(PROBLEMS) for name, value in changes.items()}
    problem = dataclasses.replace(SERVED, **{**everything, "activation": ReLU2(), "layout": PaddedStandard()})
    machine = dataclasses.replace(MACHINE, device="cpu", features=(), packages=(), memory_bytes=1)
    # Said only of a device and a kind that fit.
    left_out = {ReasonCode.ARCHITECTURE, ReasonCode.ACTIVATION_CONSTANT}
    assert codes(problem, machine) == [code for code in ReasonCode if code not in left_out]


def test_several_reasons_of_one_code_are_all_given():
    assert codes(dataclasses.replace(SERVED, activation=SwiGLU(beta=1.0, limit=(1.0, 2.0, 3.0, 4.0)))) == [
        ReasonCode.ACTIVATION_CONSTANT,
        ReasonCode.ACTIVATION_CONSTANT,
    ]
    can = dataclasses.replace(NARROW, features=("tma", "wgmma", "mma"))
    assert codes(can=can) == [ReasonCode.FEATURE, ReasonCode.FEATURE]


def test_nothing_declared_is_nothing_served():
    nothing = dataclasses.replace(NARROW, targets=(), dtypes=(), schemes=(), layouts=(), activations=(), max_experts=0)
    found = judge(nothing, SERVED, MACHINE)
    assert [reason.code for reason in found] == [
        ReasonCode.DEVICE,
        ReasonCode.DTYPE,
        ReasonCode.SCHEME,
        ReasonCode.LAYOUT,
        ReasonCode.ACTIVATION,
        ReasonCode.NUM_EXPERTS,
    ]
    assert all(reason.wanted.strip() not in {"", "one of"} for reason in found)


def test_a_class_derived_from_a_declared_activation_is_not_declared():
    class Cubed(SwiGLU):
        def formula(self, rows, at):
            return super().formula(rows, at) ** 3

    assert codes(dataclasses.replace(SERVED, activation=Cubed())) == [ReasonCode.ACTIVATION]


def test_any_scheme_serves_what_is_not_listed():
    outside = dataclasses.replace(SERVED, scheme=Scheme(Halved(), Halved()))
    assert codes(outside) == [ReasonCode.SCHEME]
    assert codes(outside, can=dataclasses.replace(NARROW, any_scheme=True)) == []
    assert codes(outside, can=dataclasses.replace(NARROW, schemes=(outside.scheme,))) == []
    assert codes(SERVED, can=dataclasses.replace(NARROW, schemes=(outside.scheme,))) == [ReasonCode.SCHEME]


@pytest.mark.parametrize("weights", [Plain(), FP8(PerBlock()), NVFP4(), Halved()], ids=repr)
def test_memory_is_counted_as_the_scheme_stores_the_weights(weights):
    problem = dataclasses.replace(SERVED, scheme=Scheme(weights, Plain()))
    can = dataclasses.replace(NARROW, any_scheme=True)
    needed = problem.weight_bytes
    fits = dataclasses.replace(MACHINE, memory_bytes=needed)
    assert codes(problem, fits, can) == []
    assert codes(problem, dataclasses.replace(fits, memory_bytes=needed - 1), can) == [ReasonCode.MEMORY]
    plain = ExpertWeights.plain(torch.zeros(4, 48, 40).bfloat16(), torch.zeros(4, 40, 24).bfloat16())
    assert needed == plain.quantize(weights).num_bytes


def test_an_activation_from_outside_is_declined_until_declared():
    @dataclasses.dataclass(frozen=True)
    class Cube(Activation):
        gated = False

        def formula(self, rows, at):
            return rows**3

    cubes = dataclasses.replace(SERVED, activation=Cube())
    assert codes(cubes) == [ReasonCode.ACTIVATION]
    assert codes(cubes, can=dataclasses.replace(NARROW, activations=(Accepts(Cube),))) == []


def test_any_of_several_targets_serves():
    can = dataclasses.replace(NARROW, targets=(Target("cuda", 80, 89), Target("cuda", 100, 120), Target("cpu")))
    assert codes(can=can) == [ReasonCode.ARCHITECTURE]
    for architecture in ("sm_80", "sm_89", "sm_100", "sm_120"):
        assert codes(can=can, machine=dataclasses.replace(MACHINE, architecture=architecture)) == []
    assert codes(can=can, machine=dataclasses.replace(MACHINE, device="cpu", architecture="x86_64")) == []


@pytest.mark.parametrize(
    ("dtype", "size", "fits"),
    [
        (torch.bfloat16, 8, True),
        (torch.bfloat16, 12, False),
        (torch.float32, 12, True),
        (torch.float32, 10, False),
        (torch.float64, 10, True),
        (torch.float64, 9, False),
    ],
)
def test_the_row_rule_counts_bytes(dtype, size, fits):
    can = dataclasses.replace(NARROW, dtypes=(dtype,))
    problem = dataclasses.replace(SERVED, dtype=dtype, hidden_size=size, intermediate_size=size)
    wanted = [] if fits else [ReasonCode.HIDDEN_SIZE, ReasonCode.INTERMEDIATE_SIZE]
    assert codes(problem, can=can) == wanted
    assert codes(problem, can=dataclasses.replace(can, row_bytes=1)) == []


def test_a_reason_says_what_was_wanted_and_what_came():
    problem = dataclasses.replace(SERVED, hidden_size=44, activation=SwiGLU(beta=1.0))
    constant, size = judge(NARROW, problem, MACHINE)
    assert (constant.wanted, constant.got) == ("SwiGLU.beta=0.0", "1.0")
    assert (size.wanted, size.got) == ("a multiple of 8 (16 bytes a row)", "44")
    assert eval(repr(size)) == size == Reason(ReasonCode.HIDDEN_SIZE, size.wanted, "44")  # noqa: S307


@pytest.mark.parametrize("field", ["scalar", "per_expert"])
def test_accepts_names_only_constants_that_exist(field):
    with pytest.raises(BackendError, match=r"SwiGLU has no constants \['lmit'\].*'limit'"):
        Accepts(SwiGLU, **{field: ("limit", "lmit")})


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_accepts_everything_frees_every_constant(kind):
    accepts = Accepts.everything(kind)
    assert {*accepts.scalar, *accepts.per_expert} == set(kind().constants())
    assert list(accepts.reasons_against(kind())) == []
    for name in accepts.per_expert:
        assert list(accepts.reasons_against(kind(**{name: (1.0, 2.0)}))) == []


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_accepts_without_a_word_pins_every_constant(kind):
    assert list(Accepts(kind).reasons_against(kind())) == []
    for name, value in kind().constants().items():
        changed = kind(**{name: "tanh" if isinstance(value, str) else 3.0})
        assert [reason.code for reason in Accepts(kind).reasons_against(changed)] == [ReasonCode.ACTIVATION_CONSTANT]


def test_the_judge_is_pure():
    problem = dataclasses.replace(SERVED, bias=True, top_k=3)
    assert judge(NARROW, problem, MACHINE) == judge(NARROW, problem, MACHINE)
    assert problem == dataclasses.replace(SERVED, bias=True, top_k=3)


def test_a_declaration_has_no_defaults():
    assert all(f.default is dataclasses.MISSING for f in dataclasses.fields(Capabilities))
    with pytest.raises(TypeError, match="max_top_k"):
        Capabilities(**{name: value for name, value in vars(NARROW).items() if name != "max_top_k"})


def test_grouped_mm_is_captured_in_bfloat16_only():
    """In float32 it copies its offsets to the host: torch 2.11 raises inside a capture on an H200."""
    bf16, f32 = (example.problem(dtype=dtype, graph_capture=True) for dtype in (torch.bfloat16, torch.float32))
    assert TorchGrouped().reasons_against(bf16, known_machine("h200")) == ()
    codes = [reason.code for reason in TorchGrouped().reasons_against(f32, known_machine("h200"))]
    assert codes == [ReasonCode.GRAPH_CAPTURE]
    f64 = example.problem(dtype=torch.float64, graph_capture=True)
    assert [reason.code for reason in TorchGrouped().reasons_against(f64, known_machine("h200"))] == [ReasonCode.DTYPE]
