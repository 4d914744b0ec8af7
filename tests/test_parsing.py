"""parse: every value's repr comes back equal, and nothing else is understood, executed or allowed to fail otherwise."""

import ast
import builtins
import dataclasses

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from moesaic import (
    FP8,
    INT4,
    INT8,
    KNOWN_MACHINES,
    MXFP4,
    MXFP8,
    NVFP4,
    BatchedExperts,
    GroupedContiguous,
    OutputNorm,
    PaddedStandard,
    PerBlock,
    PerGroup,
    PerRow,
    PerTensor,
    Plain,
    Problem,
    ReLU2,
    Scheme,
    Standard,
    SwiGLU,
)
from moesaic.errors import ActivationError, LayoutError, MoesaicError, ParseError, ProblemError
from moesaic.parsing import MAX_LENGTH, parse
from moesaic.vocabulary import VOCABULARY
from tests.activations import formulas
from tests.unchecked import unchecked

GRANULARITIES = (PerTensor(), PerRow(), PerGroup(128), PerBlock(64, 128))
FORMATS = (Plain(), FP8(PerRow()), INT8(PerRow()), INT4(PerGroup(32), zero_point=True), MXFP8(), MXFP4(), NVFP4())
NAMES = {kind.__name__: kind for kind in VOCABULARY}
PROBLEM = Problem(
    num_experts=3,
    top_k=2,
    hidden_size=40,
    intermediate_size=24,
    activation=SwiGLU(1.702, 1.0, (7.0, 7.0, 5.0)),
    dtype=torch.float16,
    layout=PaddedStandard(),
    bias=True,
    output_norm=OutputNorm(1e-5),
)
VALUES = (
    *formulas.CASES,
    Standard(),
    PaddedStandard(),
    BatchedExperts(),
    GroupedContiguous(128),
    *GRANULARITIES,
    *FORMATS,
    Scheme(Plain(), Plain()),
    Scheme(FP8(PerBlock(64, 128)), FP8(PerGroup(128), scale=torch.float8_e8m0fnu)),
    OutputNorm(),
    PROBLEM,
    *(machine for _, machine in KNOWN_MACHINES),
)

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:60])
def test_a_repr_is_read_back(value):
    assert parse(repr(value), NAMES) == value
    assert repr(parse(f"\n  {value!r}  ", NAMES)) == repr(value)


def test_every_class_of_the_vocabulary_is_read_back_above():
    assert {type(value) for value in VALUES} == set(VOCABULARY)
    assert len(NAMES) == len(VOCABULARY)


def test_the_longest_plausible_problem_is_short_enough():
    limits = tuple(1.0 + expert / 1000.0000001 for expert in range(900))
    problem = dataclasses.replace(PROBLEM, num_experts=900, activation=ReLU2(limits))
    assert parse(repr(problem), NAMES) == problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1.5", -1.5),
        ("+2", 2),
        ("True", True),
        ("None", None),
        ("'a'", "a"),
        ("()", ()),
        ("(1, (2, 'b'))", (1, (2, "b"))),
        ("[1, 2]", (1, 2)),
        ("torch.bfloat16", torch.bfloat16),
        ("torch.half", torch.float16),
        ("SwiGLU(limit=[7, 5])", SwiGLU(limit=(7.0, 5.0))),
        ("SwiGLU(\n    limit=7,  # a comment\n)", SwiGLU(limit=7.0)),
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63) + 1), -(2**63) + 1),
    ],
)
def test_plain_values(text, value):
    got = parse(text, NAMES)
    assert got == value
    assert isinstance(got, type(value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "(",
        "1 2",
        "\0",
        "\ud800",
        "Problem",
        "swiglu()",
        "SwiGLU().alpha",
        "SwiGLU.__init__",
        "SwiGLU()()",
        "SwiGLU()[0]",
        "SwiGLU(*[1])",
        "SwiGLU(**{'limit': 7})",
        "SwiGLU(limit=1, limit=2)",
        "SwiGLU(bogus=1)",
        "SwiGLU(1, 2, 3, 4)",
        "SwiGLU(beta=-True)",
        "SwiGLU(1, alpha=1)",
        "__import__('os').system('true')",
        "().__class__.__base__.__subclasses__()",
        "[x for x in (1, 2)]",
        "{1: 2}",
        "{1, 2}",
        "{**{}}",
        "lambda: 1",
        "(x := 1)",
        "1 + 1",
        "2 ** 9999999",
        "not 1",
        "~1",
        "--1",
        "-'a'",
        "-True",
        "1 if 1 else 2",
        "1 < 2",
        "f'{1}'",
        "b'a'",
        "1j",
        "...",
        "*()",
        "yield",
        "await x",
        "import os",
        "x = 1",
        "1; 2",
        "torch",
        "torch.nn",
        "torch.load",
        "torch.__dict__",
        "torch.float32.itemsize",
        "torch.load('x')",
        "os.float32",
        "'\\d'",
        "1or 2",
        str(2**63),
        "0x" + "f" * 9000,
        "-0x" + "f" * 9000,
        "9" * 5000,
        "SwiGLU(limit=0x" + "f" * 9000 + ")",
        "Problem(num_experts=-0x" + "f" * 9000 + ")",
        "1+" * 9000 + "1",
        "-" * 9000 + "1",
        "a" + ".a" * 9000,
        "a" + "()" * 9000,
        "a" + "[0]" * 6000,
        "(" * 9000 + ")" * 9000,
        "[" * 90 + "x" + "]" * 90,
        "SwiGLU(" * 95 + ")" * 95,
        "lambda:" * 2800 + "1",
        "1 if 1 else " * 1600 + "1",
        "x" * (MAX_LENGTH + 1),
        "Machine(device='cpu', name='', architecture='', processors=1, memory_bytes=1, packages=3)",
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_everything_else_is_one_short_error(text):
    with pytest.raises((ParseError, ActivationError)) as raised:
        parse(text, NAMES)
    assert len(str(raised.value)) < 1000


def test_errors_of_the_values_pass_through():
    with pytest.raises(ActivationError, match=r"SwiGLU\.limit"):
        parse("SwiGLU(limit=-1)", NAMES)
    with pytest.raises(ActivationError, match=r"finite"):
        parse("SwiGLU(limit=1e999)", NAMES)
    with pytest.raises(LayoutError):
        parse("GroupedContiguous(0)", NAMES)
    with pytest.raises(ProblemError, match=r"Problem\.num_experts"):
        parse(repr(PROBLEM).replace("num_experts=3", "num_experts=0"), NAMES)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ParseError, match=r"'Swiglu'.*known are .*SwiGLU"):
        parse("Swiglu()", NAMES)


def only_our_errors(text):
    try:
        value = parse(text, NAMES)
    except MoesaicError:
        return
    assert value is None or isinstance(value, (bool, int, float, str, tuple, torch.dtype, *VOCABULARY))


@pytest.mark.parametrize("text", ["__import__('os')", "open('x', 'w')", "exec('1')", "eval('1')", "getattr(1, 'real')"])
def test_nothing_is_executed(monkeypatch, text):
    called = []

    def recording(name, original):
        def call(*args, **kwargs):
            if name != "compile" or ast.PyCF_ONLY_AST not in args:
                called.append((name, *args[:1]))
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        for name in ("compile", "eval", "exec", "__import__", "open", "input", "getattr"):
            patched.setattr(builtins, name, recording(name, vars(builtins)[name]))
        only_our_errors(text)
    asked_for = {("__import__", "os"), ("open", "x"), ("exec", "1"), ("eval", "1"), ("getattr", 1)}
    assert not asked_for.intersection(called)
    assert not {"compile", "eval", "exec", "open", "input"}.intersection(name for name, *_ in called)


words = st.sampled_from(
    [*NAMES, "torch", "float32", "limit", "alpha", "num_experts", "None", "True", "__import__", "x", "1", "2.5", "'a'"]
)
marks = st.sampled_from([*list("()[]{},=.+-*:\n \\'\"#"), "**", "lambda ", " for ", " if ", " in "])
near_misses = st.lists(words | marks, max_size=25).map("".join)


@given(st.text(max_size=60))
@example("'\\d'")
@example("1if 1else 2")
def test_any_text_is_a_value_or_our_error(text):
    with unchecked():
        only_our_errors(text)


@given(near_misses)
def test_any_row_of_known_words_is_a_value_or_our_error(text):
    with unchecked():
        only_our_errors(text)


@given(st.sampled_from([repr(value) for value in VALUES]), st.data())
def test_a_damaged_repr_is_a_value_or_our_error(text, data):
    at = data.draw(st.integers(0, len(text) - 1))
    until = data.draw(st.integers(at, len(text)))
    damaged = text[:at] + data.draw(near_misses) + text[until:]
    with unchecked():
        only_our_errors(damaged)
