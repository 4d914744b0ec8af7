"""What Triton remembers a product on Hopper by: the fields of its form, and what is derived from them."""

from pathlib import Path

import pytest

pytest.importorskip("triton")
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from moesaic.kernels import hopper_roles

KERNELS = Path(hopper_roles.__file__).parent


def test_every_module_with_a_form_is_among_the_sources():
    forms = {path.stem for path in KERNELS.glob("*.py") if "(ProductForm)" in path.read_text(encoding="utf-8")}
    assert forms | {"hopper_form"} == set(hopper_roles._FILES)


def test_other_sources_are_compiled_anew(monkeypatch):
    before = gluon.jit(hopper_roles.begin.fn).cache_key
    assert gluon.jit(hopper_roles.begin.fn).cache_key == before
    monkeypatch.setattr(hopper_roles, "_FORMS", gl.constexpr("other"))
    assert gluon.jit(hopper_roles.begin.fn).cache_key != before
