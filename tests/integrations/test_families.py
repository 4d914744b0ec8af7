"""Every family behind the experts interface: patched against transformers' own eager path."""

import pytest
import torch

from moesaic.integrations.transformers import patch
from moesaic.integrations.transformers.discovery import find_layers
from tests.integrations.families import FAMILIES, HERE, NOT_TESTED, decorated_families, output, tiny

RMS = 1e-5
"""Allowed rms of the error over the standard deviation, in float32; the worst measured is 1.4e-6 (zaya)."""


@pytest.mark.parametrize("family", HERE)
def test_a_patched_model_computes_what_eager_computes(family):
    model = tiny(family)
    wanted = output(model)
    assert error(output_without_experts(model), wanted) > 1000 * RMS, "the comparison cannot see the experts"
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = patch(model)
    assert error(output(model), wanted) <= RMS
    assert report.covered, report
    assert not report.not_covered, report
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def error(got, wanted):
    """Rms of the difference over the standard deviation."""
    return ((got - wanted).pow(2).mean().sqrt() / wanted.std()).item()


def output_without_experts(model):
    """The output with all down projections zero; they are put back."""
    experts = [p for layer in find_layers(model) for name, p in layer.module.named_parameters() if "down" in name]
    kept = [parameter.detach().clone() for parameter in experts]
    with torch.no_grad():
        for parameter in experts:
            parameter.zero_()
        without = output(model)
        for parameter, value in zip(experts, kept, strict=True):
            parameter.copy_(value)
    return without


def test_no_family_is_forgotten():
    known = {*FAMILIES, *NOT_TESTED}
    assert set(decorated_families()) <= known, "put new families into FAMILIES or NOT_TESTED of families.py"
    assert not set(FAMILIES) & set(NOT_TESTED)


def test_at_least_the_families_of_the_oldest_transformers_are_here():
    assert len(HERE) >= 54
