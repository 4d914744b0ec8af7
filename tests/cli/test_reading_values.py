"""Values on the command line: short forms, the nearest names, activations of other packages."""

import pytest

PROBLEM = "Problem(num_experts=8, top_k=2, hidden_size=64, intermediate_size=32, activation=SwiGLU, dtype=float16)"
MODULE = """
from dataclasses import dataclass, replace
from typing import ClassVar
from moesaic import Accepts, Activation, Capabilities, Reference
from moesaic.activations import Constant, constant

@dataclass(frozen=True)
class Quick(Activation):
    gated: ClassVar[bool] = True
    slope: Constant = constant(1.0)
    def formula(self, rows, at):
        gate, up = rows.chunk(2, dim=-1)
        return at(self.slope) * gate * up

declared = replace(Reference.capabilities, activations=(Accepts(Quick, scalar=("slope",)),), any_activation=False)
Fast = type("Fast", (Reference,), {"name": "acme_fast", "capabilities": declared})
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that offers the entry point `fast`, a backend called acme_fast with an activation of its own."""
    info = tmp_path / "acme_values-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-values\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[moesaic.backends]\nfast = acme_values:Fast\n")
    (tmp_path / "acme_values.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_class_names_without_brackets_and_dtypes_without_torch_are_read_inside_a_value(moesaic):
    problem = moesaic("explain", "--problem", PROBLEM, "--machine", "cpu", "--json").document["problem"]
    assert "activation=SwiGLU(alpha=1.0, beta=0.0, limit=None)" in problem
    assert "dtype=torch.float16" in problem
    wrong = PROBLEM.replace("SwiGLU", "swiglu")
    moesaic("explain", "--problem", wrong).assert_bad_input("'swiglu'", "known are")


def test_a_field_that_is_misspelt_is_told_the_nearest(moesaic):
    wrong = PROBLEM.replace("top_k", "topk")
    moesaic("explain", "--problem", wrong).assert_bad_input("has no field 'topk'", "nearest: top_k")
    moesaic("explain", "--model", "mixtral-8x7b", "--activation", "SwiGLU(qqq=1)").assert_bad_input("alpha, beta")


def test_what_is_missing_is_asked_for_in_the_right_number(moesaic):
    sizes = ("--experts", "8", "--top-k", "2", "--hidden", "64", "--intermediate", "32")
    moesaic("explain", *sizes).assert_bad_input("lacks --activation: give it, or")
    moesaic("explain", *sizes[:-2]).assert_bad_input("lacks --intermediate, --activation: give them, or")


def test_the_activation_of_a_plugin_is_read(moesaic, installed):
    asked = ("explain", "--model", "mixtral-8x7b", "--machine", "cpu", "--activation", "Quick(slope=2.0)")
    document = moesaic(*asked, "--plugin", "fast", "--json").document
    assert document["verdicts"][0] == {"backend": "acme_fast", "eligible": True, "reasons": []}
    assert "activation=Quick(slope=2.0)" in document["problem"]
    again = moesaic("explain", "--problem", document["problem"], "--machine", "cpu", "--plugin", "fast", "--json")
    assert again.document["problem"] == document["problem"]
    moesaic(*asked).assert_bad_input("'Quick'")


def test_an_installed_backend_is_named_with_plugin(moesaic, installed):
    moesaic("explain", "--model", "mixtral-8x7b", "--backend", "fast").assert_bad_input("add --plugin fast")
    chosen = ("--plugin", "fast", "--backend", "acme_fast")
    assert moesaic("explain", "--model", "mixtral-8x7b", *chosen, "--json").document["verdicts"]
