"""Every family behind the experts interface: patched against transformers' own eager path."""

import pytest
import torch

from moesaic.integrations.transformers import patch
from tests.integrations.families import FAMILIES, HERE, NOT_TESTED, decorated_families, output, tiny

RMS = 1e-5
"""Allowed rms of the error over the standard deviation, in float32; the worst measured is 1.4e-6 (zaya)."""


@pytest.mark.parametrize("family", HERE)
def test_a_patched_model_computes_what_eager_computes(family):
    model = tiny(family)
    wanted = output(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = patch(model)
    got = output(model)
    error = (got - wanted).pow(2).mean().sqrt() / wanted.std()
    assert error <= RMS, f"rms error over std {error:.1e}"
    assert report.covered, report
    assert not report.not_covered, report
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    for layer in report.covered:  # the comparison above must be able to see the experts
        scale_weights(model.get_submodule(layer.name), 0)
    without = output(model)
    assert (without - wanted).pow(2).mean().sqrt() / wanted.std() > 1000 * RMS


def scale_weights(experts, factor):
    """In place: views see it, and of gpt-oss at least the down projection is one."""
    with torch.no_grad():
        for name, parameter in experts.named_parameters():
            if name.startswith("down_proj"):
                parameter.mul_(factor)


def test_no_family_is_forgotten():
    known = {*FAMILIES, *NOT_TESTED}
    assert set(decorated_families()) <= known, "put new families into FAMILIES or NOT_TESTED of families.py"
    assert not set(FAMILIES) & set(NOT_TESTED)


def test_at_least_the_families_of_the_oldest_transformers_are_here():
    assert len(HERE) >= 54
