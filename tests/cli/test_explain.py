import pytest
import torch
import transformers

from moesaic import (
    INT4,
    KNOWN_MACHINES,
    BatchedExperts,
    Cpu,
    GroupedContiguous,
    Machine,
    PerGroup,
    Plain,
    Problem,
    Scheme,
    SwiGLU,
    TorchGrouped,
    resolve,
)
from moesaic.cli.backend_choice import all_backends
from moesaic.cli.explain import as_document, chosen_name
from moesaic.cli.problem_options import FIELD_OPTIONS
from moesaic.cli.reading import read_value
from moesaic.models import MODELS, known_model
from moesaic.quant.schemes import FP8_BLOCK, MXFP4_MXFP8

FLAGS = (
    "--experts",
    "8",
    "--top-k",
    "2",
    "--hidden",
    "64",
    "--intermediate",
    "32",
    "--activation",
    "SwiGLU(limit=7.0)",
)
PROBLEM = Problem(num_experts=8, top_k=2, hidden_size=64, intermediate_size=32, activation=SwiGLU(limit=7.0))


def problem_of(answer):
    return read_value(answer.document["problem"])


def test_json_has_exactly_the_documented_keys(moesaic):
    answer = moesaic("explain", *FLAGS, "--machine", "cpu-amx", "--json")
    assert answer.code == 0
    assert answer.err == ""
    document = answer.document
    assert list(document) == ["problem", "machine", "backend", "why", "verdicts", "table"]
    assert document["why"].startswith("nothing stands against it")
    assert problem_of(answer) == PROBLEM
    assert read_value(document["machine"]) == dict(KNOWN_MACHINES)["cpu-amx"]
    assert isinstance(document["backend"], str)
    for verdict in document["verdicts"]:
        assert list(verdict) == ["backend", "eligible", "reasons"]
        assert verdict["eligible"] is (not verdict["reasons"])
        for reason in verdict["reasons"]:
            assert list(reason) == ["code", "wanted", "got"]
            assert all(isinstance(value, str) for value in reason.values())
    assert document["verdicts"][-1]["backend"] == "reference"


@pytest.mark.parametrize(
    "scheme", [FP8_BLOCK, MXFP4_MXFP8, Scheme(INT4(PerGroup(32), zero_point=True), Plain())], ids=repr
)
def test_a_scheme_is_given_by_its_repr(moesaic, scheme):
    answer = moesaic("explain", *FLAGS, "--machine", "cpu-amx", "--scheme", repr(scheme), "--json")
    assert problem_of(answer).scheme == scheme
    for verdict in answer.document["verdicts"]:
        declared = next(b for b in all_backends(()) if b.name == verdict["backend"]).capabilities
        refused = verdict["backend"] == "cpu_jit_quantized" and not isinstance(scheme.weights, INT4)
        served = scheme in declared.schemes or (declared.any_scheme and not refused)
        assert ("scheme" in {reason["code"] for reason in verdict["reasons"]}) is not served
    named = moesaic("explain", *FLAGS, "--machine", "cpu-amx", "--scheme", repr(scheme), "--backend", "reference")
    assert named.code == 0


def test_columns_that_a_scheme_cannot_pack_are_bad_input(moesaic):
    answer = moesaic("explain", *FLAGS, "--hidden", "65", "--scheme", "Scheme(MXFP4(), Plain())")
    assert answer.code == 2
    assert "two values in a byte" in answer.err


@pytest.fixture
def only_torch_grouped(monkeypatch):
    monkeypatch.setattr("moesaic.cli.backend_choice.BACKENDS", (TorchGrouped(),))


def test_the_oracle_is_never_chosen_unless_it_is_named(moesaic, only_torch_grouped):
    flags = (*FLAGS, "--dtype", "float64", "--json")
    answer = moesaic("explain", *flags)
    assert answer.code == 1
    assert answer.document["backend"] is None
    assert answer.document["verdicts"][-1] == {"backend": "reference", "eligible": True, "reasons": []}
    assert all(v["reasons"] for v in answer.document["verdicts"][:-1])
    named = moesaic("explain", *flags, "--backend", "reference")
    assert named.code == 0
    assert named.document["backend"] == "reference"


def test_one_backend_is_asked_by_name_and_says_every_reason(moesaic):
    answer = moesaic("explain", *FLAGS, "--hidden", "63", "--dtype", "float64", "--backend", "torch_grouped", "--json")
    assert answer.code == 1
    [verdict] = answer.document["verdicts"]
    assert [reason["code"] for reason in verdict["reasons"]] == ["dtype", "hidden_size"]


def test_text_marks_the_oracle_and_the_choice(moesaic, only_torch_grouped):
    answer = moesaic("explain", *FLAGS, "--machine", "h200")
    assert answer.code == 0
    assert "NVIDIA H200" in answer.out
    assert "reference       oracle, runs only when named" in answer.out
    assert answer.out.rstrip().endswith("runs it")
    declined = moesaic("explain", *FLAGS, "--dtype", "float64")
    assert "dtype: needs one of" in declined.out
    assert declined.out.rstrip().endswith("no backend serves this problem here")


def test_text_says_why_the_winner_won(moesaic, monkeypatch):
    flags = ("--experts", "8", "--top-k", "2", "--hidden", "64", "--intermediate", "32", "--activation", "SwiGLU()")
    monkeypatch.setattr("moesaic.cli.backend_choice.BACKENDS", (Cpu(), TorchGrouped()))
    both = moesaic("explain", *flags, "--machine", "cpu-amx")
    assert "nothing stands against it, preferred to torch_grouped" in both.out
    assert "serves this too, but cpu is preferred" in both.out
    alone = moesaic("explain", *flags, "--machine", "h200")
    assert "nothing stands against it, the only one that serves this" in alone.out
    named = moesaic("explain", *flags, "--machine", "h200", "--backend", "reference")
    assert "the only one asked about, and nothing stands against it" in named.out
    none = moesaic("explain", *flags, "--dtype", "float64", "--backend", "torch_grouped", "--json")
    assert none.document["why"] == ""


@pytest.mark.parametrize(
    ("option", "field", "value"),
    [
        (("--dtype", "float16"), "dtype", torch.float16),
        (("--dtype", "torch.float32"), "dtype", torch.float32),
        (("--layout", "BatchedExperts"), "layout", BatchedExperts()),
        (("--layout", "GroupedContiguous(alignment=128)"), "layout", GroupedContiguous(128)),
        (("--bias",), "bias", True),
        (("--weight-on-input",), "weight_on_input", True),
        (("--no-inactive-slots",), "inactive_slots", False),
        (("--no-duplicate-ids",), "duplicate_ids", False),
        (("--deterministic",), "deterministic", True),
        (("--graph-capture",), "graph_capture", True),
        (("--differentiable",), "differentiable", True),
        (("--activation", "ReLU2"), "activation", read_value("ReLU2()")),
        (("--output-norm", "OutputNorm(eps=1e-5)"), "output_norm", read_value("OutputNorm(eps=1e-5)")),
    ],
)
def test_every_option_sets_its_field_over_flags_a_repr_and_a_model(moesaic, option, field, value):
    for start in (FLAGS, ("--problem", repr(PROBLEM)), ("--model", "gpt-oss-20b")):
        assert getattr(problem_of(moesaic("explain", *start, *option, "--json")), field) == value


def test_every_field_of_a_problem_has_an_option():
    assert [option.field for option in FIELD_OPTIONS] == list(Problem.__dataclass_fields__)


@pytest.mark.parametrize("name", [name for name, _ in KNOWN_MACHINES])
def test_every_model_is_answered_on_every_known_machine(moesaic, name):
    for model in MODELS:
        resolution = resolve(model.problem, dict(KNOWN_MACHINES)[name], all_backends())
        document = as_document(resolution, chosen_name(resolution, named=False))
        assert (document["backend"] is None) is (not any(v.eligible for v in resolution.verdicts[:-1]))
    answer = moesaic("explain", "--model", MODELS[0].name, "--machine", name, "--json")
    assert answer.code == (1 if answer.document["backend"] is None else 0)
    assert problem_of(answer) == MODELS[0].problem


def test_a_machine_can_be_given_as_its_repr(moesaic):
    machine = Machine(device="cuda", name="future", architecture="sm_130", processors=1, memory_bytes=1)
    answer = moesaic("explain", *FLAGS, "--machine", repr(machine), "--json")
    assert read_value(answer.document["machine"]) == machine


def test_a_checkpoint_directory_is_read_without_its_weights(moesaic, tiny_model, tmp_path):
    (tmp_path / "config.json").write_text((tiny_model / "config.json").read_text())
    answer = moesaic("explain", "--model", str(tmp_path), "--json")
    assert problem_of(answer) == Problem(
        num_experts=4, top_k=2, hidden_size=32, intermediate_size=16, activation=SwiGLU()
    )


def test_a_checkpoint_of_a_real_size_is_read_in_no_memory(moesaic, tmp_path):
    transformers.MixtralConfig(dtype="bfloat16").save_pretrained(tmp_path)
    assert problem_of(moesaic("explain", "--model", str(tmp_path), "--json")) == known_model("mixtral-8x7b").problem
