"""What a table is keyed by besides device and compiler: the code of the kernels, and nothing that changes no figure."""

import ast
import shutil
from pathlib import Path

import pytest

import moesaic
from moesaic.tuning.fingerprint import KERNELS, LAUNCHED, ON_THE_HOST, code_of, fingerprint

FUNCTION = """\"\"\"What it does.\"\"\"

def double(x):  # twice
    \"\"\"Of x.\"\"\"
    if x:
        x = x * 2
    return f"{x!r} times", "a # b"
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("What it does.", "Something else."),
        ('"""What it does."""', ""),
        ("  # twice", ""),
        ('    """Of x."""\n', ""),
        ("        x = x * 2\n", "        x = x * 2\n\n    # behind\n"),
        ("x * 2", "x  *  2"),
    ],
)
def test_what_changes_nothing_is_left_out(old, new):
    assert old in FUNCTION
    assert code_of(FUNCTION.replace(old, new)) == code_of(FUNCTION)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * 2", "x * 3"),
        ("a # b", "a # c"),
        ("{x!r} times", "{x!r} fold"),
        ("    return", "        return"),
        ("    if x:\n        x = x * 2\n", "    x = x * 2\n"),
        ("def double(x)", "def double(x, y)"),
    ],
)
def test_code_is_kept(old, new):
    assert old in FUNCTION
    assert code_of(FUNCTION.replace(old, new)) != code_of(FUNCTION)


def test_every_version_of_python_reads_the_same():
    expected = 'defdouble(x):;>ifx:;>x=x*2;<returnf"{x!r}times","a#b";<'
    assert code_of(FUNCTION) == expected


@pytest.fixture
def copied(tmp_path):
    return Path(shutil.copytree(KERNELS, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__")))


def changed(directory, name, tmp_path, number=[0]):  # noqa: B006
    """The fingerprint of the sources with one more line in one of them."""
    number[0] += 1
    other = Path(shutil.copytree(directory, tmp_path / f"other{number[0]}"))
    with (other / f"{name}.py").open("a") as file:
        file.write("MORE = 1\n")
    return fingerprint(other)


def test_a_kernel_and_what_it_imports_count_and_no_other_kernel_does(copied, tmp_path):
    assert fingerprint(copied) == fingerprint()
    for name in (*LAUNCHED, "streamed_blocks", "hopper_plain", "order_many", "activation_expressions", "launching"):
        assert changed(copied, name, tmp_path) != fingerprint(), name
    for name in (*ON_THE_HOST, "nibble_product", "exchange_tokens", "stored_experts"):
        assert changed(copied, name, tmp_path) == fingerprint(), name


def test_all_that_the_forms_launch_is_named():
    """By the modules of the backends which launch it."""
    backends = Path(moesaic.__file__).parent / "backends"
    launching = [backends / f"{name}.py" for name in ("triton_streamed", "hopper_products")]
    found = {
        node.module.rsplit(".", 1)[1]
        for path in launching
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("moesaic.kernels.")
    }
    sizes_and_types = {"activation_expressions", "hopper_form", "row_order"}  # read through those that launch
    assert found - sizes_and_types == {*LAUNCHED}
