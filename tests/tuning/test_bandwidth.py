"""How fast a GPU reads, from its name, multiprocessors and architecture."""

import dataclasses

import pytest

from moesaic import known_machine
from moesaic.tuning.bandwidth import bandwidth
from tests.tuning.examples import H200


def named(name, processors=132, architecture="sm_90"):
    return dataclasses.replace(H200, name=name, processors=processors, architecture=architecture)


@pytest.mark.parametrize(
    ("machine", "sheet"),
    [
        (named("NVIDIA H200"), 4.8e12),
        (named("NVIDIA H200 NVL"), 4.8e12),
        (named("NVIDIA H100 80GB HBM3"), 3.35e12),
        (named("NVIDIA H100 NVL"), 3.9e12),
        (named("NVIDIA H100 PCIe", 114), 2.0e12),
        (named("NVIDIA H20", 78), 4.0e12),
        (named("NVIDIA GH200 96GB HBM3"), 4.0e12),
        (known_machine("a100"), 2.04e12),
        (known_machine("l4"), 0.3e12),
        (known_machine("rtx4090"), 1.008e12),
        (known_machine("rtx5090"), 1.792e12),
        (known_machine("b200"), 8.0e12),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_known_name_reads_nine_tenths_of_its_data_sheet(machine, sheet):
    assert bandwidth(machine) == pytest.approx(sheet * 4.28 / 4.8)


def test_a_slice_of_a_gpu_reads_its_share():
    assert bandwidth(named("NVIDIA H200 MIG 1g.18gb", 16)) == pytest.approx(4.28e12 * 16 / 132)


@pytest.mark.parametrize(
    ("architecture", "processors", "sheet"),
    [
        *[("sm_75", 108, 1.0e12), ("sm_80", 108, 1.0e12), ("sm_89", 108, 1.0e12)],
        *[("sm_90", 132, 3.35e12), ("sm_100", 148, 8.0e12), ("sm_103", 148, 8.0e12)],
        *[("sm_120", 170, 1.792e12), ("sm_121", 170, 1.792e12), ("sm_130", 170, 1.792e12)],
    ],
)
def test_an_unknown_name_is_taken_for_its_architecture(architecture, processors, sheet):
    for name in ("a card of 2031", "NVIDIA XH200"):
        assert bandwidth(named(name, processors, architecture)) == pytest.approx(sheet * 4.28 / 4.8)


@pytest.mark.parametrize(
    ("machine", "sheet"),
    [
        (named("NVIDIA GeForce RTX 5080", 84, "sm_120"), 0.96e12),
        (named("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188, "sm_120"), 1.792e12),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_cards_beside_the_one_that_an_architecture_is_known_by(machine, sheet):
    assert bandwidth(machine) == pytest.approx(sheet * 4.28 / 4.8, rel=0.15)
