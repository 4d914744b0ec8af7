"""Wrong activations, routers and formats are killed by the check meant for them; every check is needed."""

import functools
import re

import pytest

from moesaic.conformance import Nonconformance
from moesaic.conformance.activation_checks import ACTIVATION_CHECKS
from moesaic.conformance.format_checks import FORMAT_CHECKS
from moesaic.conformance.mutants import verdict
from moesaic.conformance.mutants.pieces import PIECES
from moesaic.conformance.router_checks import ROUTER_CHECKS

CHECKS = {"activation": ACTIVATION_CHECKS, "router": ROUTER_CHECKS, "format": FORMAT_CHECKS}
every_mutant = pytest.mark.parametrize("mutant", PIECES, ids=lambda mutant: mutant.name)


@functools.cache
def found_in(name):
    """What all checks find in the mutant of that name."""
    return verdict(next(mutant for mutant in PIECES if mutant.name == name))


@every_mutant
def test_the_check_meant_for_it_finds_it_and_nothing_is_found_in_the_control(mutant):
    found = found_in(mutant.name)
    assert found.as_meant, dict(found.found)
    assert mutant.judge.faults(mutant.control, mutant.judge.checks) == {}
    words = found.found[mutant.check]
    assert words
    assert "\n" not in words


def test_names_begin_with_a_fault_and_are_names_of_one_mutant_only():
    names = [mutant.name for mutant in PIECES]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"F\d\d+_\w+", name) for name in names)
    assert all(mutant.meaning.endswith(".") for mutant in PIECES)


@pytest.mark.parametrize("kind", CHECKS)
def test_every_check_finds_something_that_no_other_finds(kind):
    found = [set(found_in(mutant.name).found) for mutant in PIECES if mutant.judge.kind == kind]
    alone = {next(iter(names)) for names in found if len(names) == 1}
    justified = {"groups"} if kind == "router" else set()  # docs/conformance.md says why it is kept
    assert alone == {check.name for check in CHECKS[kind]} - justified


def test_every_check_says_what_it_tries_and_no_two_of_a_kind_share_a_name():
    for checks in CHECKS.values():
        names = [check.name for check in checks]
        assert len(set(names)) == len(names)
        assert all(check.meaning and "\n" not in check.meaning for check in checks)


@pytest.mark.parametrize("mutant", [m for m in PIECES if m.check != "no_tokens"], ids=lambda mutant: mutant.name)
def test_a_fault_says_what_was_looked_at_wanted_and_got(mutant):
    check = next(check for check in CHECKS[mutant.judge.kind] if check.name == mutant.check)
    with pytest.raises(Nonconformance) as fault:
        check.run(mutant.subject)
    assert all((fault.value.what, fault.value.wanted, fault.value.got))
