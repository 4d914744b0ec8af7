"""`module:Class`: a backend that is in no package and no entry point, or one line that says why it is none."""

import pytest

from moesaic import Reference
from moesaic.conformance import base_case

CASE = repr(base_case(Reference.capabilities))
ONE = ("--check", "two_runs", "--case", CASE)
MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from moesaic import Backend, Capabilities, Reference

@dataclass(frozen=True)
class Fast(Backend):
    name: ClassVar[str] = "acme_fast"
    capabilities: ClassVar[Capabilities] = Reference.capabilities
    def prepare(self, weights, problem): return weights
    def canonical(self, prepared, problem): return prepared
    def tensors(self, prepared): return prepared.tensors
    def workspace(self, problem, num_rows): return Reference().workspace(problem, num_rows)
    def run(self, batch, prepared, problem): return Reference().run(batch, prepared, problem)

@dataclass(frozen=True)
class Sized(Fast):
    name: ClassVar[str] = "acme_sized"
    capabilities: ClassVar[Capabilities] = Reference.capabilities
    rows: int

class Unfinished(Backend):
    pass

class Holder:
    Inner = Fast

sized = Sized(8)
seven = 7
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with a module, to run in."""
    (tmp_path / "acme_here.py").write_text(MODULE)
    (tmp_path / "acme_broken.py").write_text("import acme_that_is_not_there\n")
    (tmp_path / "acme_syntax.py").write_text("def f(:\n")
    (tmp_path / "acme_exit.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "acme_library.py").write_text("import ctypes\nctypes.CDLL('libacme_gone.so')\n")
    (tmp_path / "acme_name.py").write_text("acme_undefined\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    return tmp_path


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("acme_here:Fast", "acme_fast"), ("acme_here:sized", "acme_sized"), ("acme_here:Holder.Inner", "acme_fast")],
)
def test_a_class_or_an_instance_of_a_module_is_tried(moesaic, here, spelled, name):
    answer = moesaic("conform", spelled, *ONE, "--json")
    assert answer.code == 0, answer
    [report] = answer.document["backends"]
    assert (report["backend"], report["counts"]) == (name, {"passed": 1})


def test_the_other_commands_take_it_as_a_plugin(moesaic, here):
    listed = moesaic("backends", "--plugin", "acme_here:Fast", "--json").document["backends"]
    assert listed[0]["backend"] == "acme_fast"


@pytest.mark.parametrize(
    ("spelled", "parts"),
    [
        ("acme_gone:Fast", ("no module 'acme_gone'", "directory")),
        ("acme_here.sub:Fast", ("'acme_here.sub:Fast'",)),
        ("acme_broken:Fast", ("cannot be imported", "acme_that_is_not_there")),
        ("acme_syntax:Fast", ("cannot be imported", "acme_syntax.py")),
        ("acme_exit:Fast", ("cannot be imported", "SystemExit: 0")),
        ("acme_library:Fast", ("'acme_library:Fast' cannot be imported", "OSError", "libacme_gone.so")),
        ("acme_name:Fast", ("cannot be imported", "NameError", "acme_undefined")),
        ("acme_here:Fst", ("acme_here has no 'Fst'", "it offers Fast")),
        ("acme_here:Holder.Outer", ("has no 'Holder.Outer'", "Fast, Sized, sized")),
        ("math:pi2", ("math has no 'pi2'", "defines no backend")),
        ("acme_here:seven", ("'acme_here:seven' gives 7", "needs a Backend or its class")),
        ("acme_here:Holder", ("Holder", "needs a Backend or its class")),
        ("acme_here:Sized", ("needs rows", "mine = Sized(rows=...)")),
        ("acme_here:Unfinished", ("Unfinished", "does not define", "prepare, run")),
        ("acme_here.py:Fast", ("not module:Class", "acme_here:Fast")),
        ("acme_here:", ("not module:Class", "acme.moe:Fast")),
        (":Fast", ("not module:Class",)),
        ("a b:c", ("not module:Class",)),
        ("nobody", ("no backend of the package", "moesaic.backends", "module:Class")),
    ],
)
def test_what_is_no_backend_is_one_line(moesaic, here, spelled, parts):
    moesaic("conform", spelled, *ONE).assert_bad_input(*parts)


def test_the_help_names_every_way(moesaic):
    shown = " ".join(moesaic("conform", "--help").out.split())
    for part in ("ENTRY_POINT", "MODULE:CLASS", "moesaic.backends"):
        assert part in shown
