"""The table of known machines: unique, complete, and answering what would run there."""

import pytest

from moesaic import BACKENDS, KNOWN_MACHINES, Machine, Problem, SwiGLU, known_machine, resolve
from moesaic.errors import MachineError
from moesaic.machine import CPU_FEATURES, PACKAGES

PROBLEM = Problem(num_experts=8, top_k=2, hidden_size=1024, intermediate_size=512, activation=SwiGLU())


def test_names_and_machines_are_unique():
    names = [name for name, _ in KNOWN_MACHINES]
    assert len(set(names)) == len(names)
    assert len({machine for _, machine in KNOWN_MACHINES}) == len(names)
    assert all(name == name.lower() for name in names)


@pytest.mark.parametrize(("name", "machine"), KNOWN_MACHINES)
def test_every_machine_is_found_and_answers(name, machine):
    assert known_machine(name) is machine
    assert known_machine(name.upper()) is machine
    assert eval(repr(machine)) == machine  # noqa: S307
    assert resolve(PROBLEM, machine, BACKENDS).verdicts


@pytest.mark.parametrize(("name", "machine"), KNOWN_MACHINES)
def test_the_fields_are_words_that_the_probe_uses(name, machine):
    assert machine.device in {"cpu", "cuda"}
    assert set(machine.features) <= set(CPU_FEATURES)
    assert {package for package, _ in machine.packages} <= set(PACKAGES)
    assert machine.memory_bytes >= 2**34


def test_the_hopper_target():
    h200 = known_machine("h200")
    assert (h200.capability, h200.processors) == (90, 132)
    assert h200.version("triton") >= (3, 6)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(MachineError, match=r"'h300'.*a100.*cpu-arm"):
        known_machine("h300")
    assert isinstance(known_machine("cpu-amx"), Machine)
