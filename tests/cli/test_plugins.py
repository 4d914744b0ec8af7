"""Backends of other packages: loaded when named, and never otherwise."""

import pytest

from moesaic import Reference

DECLARED = Reference.capabilities


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that offers three entry points and notes when it is imported."""
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    points = ("fast = acme_moe:Fast", "made = acme_moe:made", "wrong = acme_moe:wrong", "gone = acme_moe:gone")
    (info / "entry_points.txt").write_text("[moesaic.backends]\n" + "\n".join(points) + "\n")
    (tmp_path / "acme_moe.py").write_text(
        "from pathlib import Path\n"
        "from moesaic import Reference\n"
        "Path(__file__).with_name('imported').touch()\n"
        "declared = {'capabilities': Reference.capabilities}\n"
        "Fast = type('Fast', (Reference,), {'name': 'acme_fast', **declared})\n"
        "made = type('Made', (Reference,), {'name': 'acme_made', **declared})()\n"
        "wrong = 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_plugin_is_asked_first_when_it_is_named(moesaic, installed):
    for name, backend in (("fast", "acme_fast"), ("made", "acme_made")):
        listed = moesaic("backends", "--plugin", name, "--json").document["backends"]
        assert listed[0]["backend"] == backend
    verdicts = moesaic("explain", "--model", "mixtral-8x7b", "--plugin", "fast", "--json").document["verdicts"]
    assert verdicts[0]["backend"] == "acme_fast"
    assert (installed / "imported").exists()


def test_a_plugin_is_not_imported_unasked(moesaic, installed):
    moesaic("backends")
    moesaic("explain", "--model", "mixtral-8x7b")
    moesaic("backends", "--plugin", "other").assert_bad_input("'other'", "fast, gone, made, wrong")
    assert not (installed / "imported").exists()


def test_a_plugin_that_is_no_backend_is_bad_input(moesaic, installed):
    moesaic("backends", "--plugin", "wrong").assert_bad_input("'wrong'", "7", "Backend")
    moesaic("backends", "--plugin", "gone").assert_bad_input("'gone'", "cannot be imported")
