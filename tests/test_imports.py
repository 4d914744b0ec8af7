"""The import graph of the package, read from the source: who may import whom; what `import moesaic` loads."""

import ast
import graphlib
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import moesaic

ROOT = Path(moesaic.__file__).parent

MAY_IMPORT = {
    "errors": "",
    "checks": "errors",
    "parsing": "errors",
    "layouts": "checks",
    "activations": "checks",
    "quant": "checks",
    "output_norm": "checks",
    "machine": "checks",
    "known_machines": "machine",
    "batches": "layouts checks",
    "routers": "batches",
    "dispatch": "batches kernels quant",
    "problem": "activations quant layouts output_norm",
    "weights": "problem",
    "kernels": "activations checks",
    "vocabulary": "problem machine",
    "checkpoints": "weights",
    "backends.capabilities": "problem machine",
    "backends.base": "backends.capabilities weights batches",
    "backends.*": "backends.base kernels tuning",
    "backends": "backends.*",
    "resolve": "backends.base",
    "custom_op": "backends.base",
    "layer": "resolve custom_op backends dispatch routers",
    "models": "layer",
    "parallel": "layer checkpoints",
    "conformance": "layer parsing vocabulary",
    "tuning": "problem machine parsing vocabulary",
    "integrations": "layer models checkpoints",
    "__main__": "cli",
    "cli": "layer models checkpoints conformance integrations known_machines parsing tuning vocabulary",
}
"""Part of the package -> what it may import: the parts named, what those may import, and itself."""

HEAVY = {
    "triton": {"kernels"},
    "transformers": {"integrations", "cli"},
    "safetensors": {"integrations", "cli", "checkpoints"},
    "typer": {"cli"},
    "rich": {"cli"},
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
}
"""Package -> the parts whose modules may import it at their top."""


def sources():
    """Name of every module and its syntax tree."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("moesaic", *path.relative_to(ROOT).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text(encoding="utf-8"))


MODULES = dict(sources())


def imports(nodes):
    """Every name that import statements among `nodes` ask for, modules as far as they are known."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def part(module):
    """The part of the package that a module belongs to; the backends other than the two shared files are one part."""
    names = module.split(".")[1:]
    if names[:1] == ["backends"] and len(names) > 1:
        return f"backends.{names[1]}" if names[1] in {"base", "capabilities"} else "backends.*"
    return names[0] if names else ""


def allowed(of):
    """The closure of MAY_IMPORT."""
    direct = MAY_IMPORT[of].split()
    return {of, *direct, *(far for near in direct for far in allowed(near))}


@pytest.mark.parametrize("module", [name for name in MODULES if name != "moesaic"])
def test_every_module_imports_only_what_stands_below_it(module):
    assert part(module) in MAY_IMPORT, "a new part of the package: say above what it may import"
    found = {part(name) for name in imports(ast.walk(MODULES[module])) if name.split(".")[0] == "moesaic"}
    assert found <= allowed(part(module))


def test_the_table_has_no_circle():
    graph = {of: set(direct.split()) for of, direct in MAY_IMPORT.items()}
    assert set(graphlib.TopologicalSorter(graph).static_order()) == set(MAY_IMPORT)


def test_the_modules_have_no_circle():
    graph = defaultdict(set)
    for module, tree in MODULES.items():
        graph[module] = {name for name in imports(ast.walk(tree)) if name in MODULES and name != module}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_kernels_are_used_by_backends_and_dispatchers_only():
    users = {part(m) for m, tree in MODULES.items() if any(part(n) == "kernels" for n in imports(ast.walk(tree)))}
    assert users <= {"kernels", "backends.*", "dispatch"}


def test_the_layer_knows_routers_and_dispatchers_by_their_base_only():
    found = {name for name in imports(ast.walk(MODULES["moesaic.layer"])) if part(name) in {"routers", "dispatch"}}
    assert found == {"moesaic.routers.base", "moesaic.dispatch.base"}


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_are_imported_where_they_are_used(module):
    top = {name.split(".")[0] for name in imports(MODULES[module].body)}
    for package in top.intersection(HEAVY):
        assert part(module) in HEAVY[package], f"import {package} inside the function that needs it"


def test_importing_the_package_loads_torch_and_nothing_heavier():
    program = """
import sys, torch
before = set(sys.modules)
import moesaic
print("\\n".join(sorted(set(sys.modules) - before)))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
    loaded = set(done.stdout.split())
    assert "moesaic.layer" in loaded
    heavy = {*HEAVY, "torch._dynamo", "torch._inductor", "torch.distributed"}
    assert not {name for name in loaded if name in heavy or name.split(".")[0] in heavy}
    assert not {name for name in loaded if part(name) in {"cli", "integrations", "kernels"} and "moesaic" in name}
