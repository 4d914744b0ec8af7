"""Rules of the project that a reader of one file cannot see: sizes, signatures, forbidden forms, public names."""

import ast
import inspect
from pathlib import Path

import pytest

import moesaic

ROOT = Path(moesaic.__file__).parent
TESTS = Path(__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))

PUBLIC = [
    "ACTIVATIONS",
    "Accepts",
    "Activation",
    "BACKENDS",
    "Backend",
    "Batch",
    "BatchedBatch",
    "BatchedExperts",
    "Capabilities",
    "Cpu",
    "CpuJit",
    "CpuJitQuantized",
    "CpuQuantized",
    "Dispatcher",
    "ExpertWeights",
    "Experts",
    "FP8",
    "Format",
    "GELU",
    "GeGLU",
    "Granularity",
    "GroupedBatch",
    "GroupedContiguous",
    "HopperGrouped",
    "INT4",
    "INT8",
    "Identity",
    "KNOWN_MACHINES",
    "Layout",
    "Local",
    "MXFP4",
    "MXFP8",
    "Machine",
    "MoE",
    "MoesaicError",
    "NVFP4",
    "OutputNorm",
    "PaddedStandard",
    "PaddedStandardBatch",
    "PerBlock",
    "PerGroup",
    "PerRow",
    "PerTensor",
    "Plain",
    "PowLU",
    "Problem",
    "Quantized",
    "ReGLU",
    "ReLU",
    "ReLU2",
    "Reason",
    "ReasonCode",
    "Reference",
    "Requires",
    "Resolution",
    "Router",
    "Routing",
    "SCHEMES",
    "Scheme",
    "SiLU",
    "SiTU",
    "Standard",
    "StandardBatch",
    "StoredTensor",
    "SwiGLU",
    "SwiGLUStep",
    "Target",
    "TorchGrouped",
    "TritonGrouped",
    "TritonQuantized",
    "UNQUANTIZED",
    "Verdict",
    "bind",
    "known_machine",
    "resolve",
]
"""Every name that `moesaic` exports. A new one is written down here; a missing one breaks somebody's code."""


def label(path):
    return str(path.relative_to(ROOT if path.is_relative_to(ROOT) else TESTS))


def nodes(path):
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


each_source = pytest.mark.parametrize("path", SOURCES, ids=label)


def test_the_public_names_are_those_written_down():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    imported = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(imported) == sorted(moesaic.__all__) == sorted(PUBLIC)
    assert all(not inspect.ismodule(getattr(moesaic, name)) for name in PUBLIC)


def test_every_public_class_and_function_is_described():
    public = [getattr(moesaic, name) for name in PUBLIC]
    described = [value for value in public if inspect.isclass(value) or inspect.isfunction(value)]
    assert all(value.__doc__ and not value.__doc__.startswith(value.__name__ + "(") for value in described)


@pytest.mark.parametrize("path", [*SOURCES, *sorted(TESTS.rglob("*.py"))], ids=label)
def test_no_file_is_longer_than_400_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@each_source
def test_signatures_have_at_most_8_arguments(path):
    if "kernels" in path.relative_to(ROOT).parts:
        return
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            own = [a.arg for a in arguments if a.arg not in {"self", "cls"}]
            assert len(own) <= 8, f"line {node.lineno} takes {own}"


@each_source
def test_the_environment_is_read_by_the_probe_and_the_command_line_only(path):
    inside = path.relative_to(ROOT).parts
    if inside == ("machine.py",) or inside[0] == "cli":
        return
    for node in nodes(path):
        if isinstance(node, ast.Attribute | ast.Name | ast.alias):
            name = {ast.Attribute: "attr", ast.Name: "id", ast.alias: "name"}[type(node)]
            assert getattr(node, name) not in {"environ", "environb", "getenv", "putenv"}, f"line {node.lineno}"


REPORTS_EVERY_FAULT = "a handler of every exception"
"""Allowed in two files of the kit, and nowhere else: its work is to report whatever a backend raises."""


SWALLOWS_EVEN_EXITS = "a handler of every exception that does not raise it again"
"""Likewise: a backend that exits in the middle of a job is reported too."""

RUNS_STRANGERS = {"conformance/execution.py", "conformance/strangers.py"}
"""Where the kit runs a job, and where it calls what else others wrote: either may raise anything at all."""


def forbidden(node):
    """The forbidden form that `node` is, or None."""
    match node:
        case ast.Global() | ast.Nonlocal():
            return "global state"
        case ast.Call(func=ast.Name(id="hasattr" | "eval" | "exec" as name)):
            return name
        case ast.ExceptHandler(type=None | ast.Name(id="Exception")):
            return "a handler of every exception"
        case ast.ExceptHandler(type=ast.Name(id="BaseException"), body=body) if not (
            isinstance(body[-1], ast.Raise) and body[-1].exc is None
        ):
            return "a handler of every exception that does not raise it again"
        case ast.Compare(left=left, ops=ops, comparators=others) if any(
            isinstance(side, ast.Call) and isinstance(side.func, ast.Name) and side.func.id == "type"
            for side in (left, *others)
        ) and all(isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in ops):
            return "a comparison of types"
        case _:
            return None


@each_source
def test_forbidden_forms(path):
    inside = path.relative_to(ROOT).as_posix()
    reported = {REPORTS_EVERY_FAULT, SWALLOWS_EVEN_EXITS} if inside in RUNS_STRANGERS else set()
    found = [(node.lineno, forbidden(node)) for node in nodes(path) if forbidden(node)]
    assert [(line, form) for line, form in found if form not in reported] == []


@each_source
def test_nothing_prints_or_logs_outside_the_command_line(path):
    if path.relative_to(ROOT).parts[0] == "cli":
        return
    for node in nodes(path):
        assert not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print")
        assert not (isinstance(node, ast.Import) and any(a.name in {"logging", "warnings"} for a in node.names))


@pytest.mark.parametrize(
    "text",
    ["hasattr(a, 'b')", "type(a) is int", "int == type(a)", "type(a) in (int, str)"],
)
def test_the_forms_are_recognised_in_expressions(text):
    assert forbidden(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    "handler",
    ["except:\n  pass", "except Exception:\n  raise", "except BaseException:\n  pass"],
)
def test_the_forms_are_recognised_in_handlers(handler):
    tree = ast.parse(f"try:\n  pass\n{handler}")
    assert [forbidden(node) for node in ast.walk(tree) if forbidden(node)]
