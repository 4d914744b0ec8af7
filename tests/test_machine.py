"""Machine: the value, what the probe finds on this machine, and a made-up /proc/cpuinfo."""

import os
import platform
from pathlib import Path

import numpy as np
import pytest
import torch

from moesaic import Machine
from moesaic import machine as module
from moesaic.errors import MachineError

GPU = {"device": "cuda", "name": "NVIDIA H200", "architecture": "sm_90", "processors": 132, "memory_bytes": 2**37}

CPUINFO = """processor\t: 0
model name\t: Some CPU @ 2.00GHz
flags\t\t: fpu avx2 avx512f amx_bf16x avx512_bf16

processor\t: 1
model name\t: Another CPU
flags\t\t: fpu
"""


def test_this_machine():
    here = Machine.current("cpu")
    assert here.device == "cpu"
    assert here.architecture == platform.machine()
    assert 1 <= here.processors <= os.cpu_count()
    assert here.memory_bytes > 2**28
    assert here.version("torch")[:2] == tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert here.capability == 0
    assert Machine.current(torch.device("cpu")) is here
    assert eval(repr(here)) == here  # noqa: S307


def test_the_default_is_the_accelerator_if_there_is_one():
    assert Machine.current().device == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("device", ["cuda:99", "meta", "mps"])
def test_a_device_that_is_not_there_is_an_error_that_lists_what_is(device):
    with pytest.raises(MachineError, match=rf"{device}.*this machine has cpu"):
        Machine.current(device)


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", "cpu:-1"])
def test_what_is_no_device_is_an_error(device):
    with pytest.raises(MachineError, match="is not a device"):
        Machine.current(device)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.13.0+cpu", (2, 13, 0)),
        ("3.6.0", (3, 6, 0)),
        ("2.12.0a0+git1234", (2, 12)),
        ("2.12.0.dev20261201", (2, 12, 0)),
        ("3", (3,)),
        ("unknown", ()),
        ("", ()),
    ],
)
def test_versions_are_their_leading_numbers(text, numbers):
    assert Machine(**GPU, packages=(("triton", text),)).version("triton") == numbers


def test_a_package_that_is_not_installed_has_no_version():
    assert Machine(**GPU).version("triton") is None


def test_equal_machines_are_one_value_whatever_the_order():
    one = Machine(**GPU, features=("b", "a", "b"), packages=(("triton", "3.6"), ("torch", "2.13")))
    other = Machine(**GPU, features=("a", "b"), packages=(("torch", "2.13"), ("triton", "3.6")))
    assert one == other
    assert len({one, other}) == 1
    assert repr(one) == repr(other)
    assert eval(repr(one)) == one  # noqa: S307


@pytest.mark.parametrize(
    ("architecture", "capability"), [("sm_80", 80), ("sm_90", 90), ("sm_100", 100), ("sm_120", 120)]
)
def test_the_capability_is_read_from_the_architecture(architecture, capability):
    assert Machine(**{**GPU, "architecture": architecture}).capability == capability


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", None),
        ("device", 3),
        ("name", None),
        ("architecture", 90),
        ("architecture", "sm_"),
        ("architecture", "sm_90a"),
        ("architecture", "sm_\u00b2"),
        ("architecture", "hopper"),
        ("processors", 0),
        ("processors", 1.5),
        ("processors", True),
        ("memory_bytes", -1),
        ("memory_bytes", None),
        ("features", "avx2"),
        ("features", None),
        ("features", (1, 2)),
        ("packages", ("torch", "2.13.0")),
        ("packages", (("torch",),)),
        ("packages", (("torch", 2),)),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_field_is_refused_by_name(field, value):
    with pytest.raises(MachineError, match=rf"Machine\.{field}"):
        Machine(**{**GPU, field: value})


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_stored_as_ints():
    assert repr(Machine(**{**GPU, "processors": np.int64(132)})) == repr(Machine(**GPU))


def probe_with(monkeypatch, path):
    monkeypatch.setattr(module, "Path", lambda _: Path(path))
    return module._probe.__wrapped__("cpu", 0)


def test_features_are_whole_words_of_the_first_core(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    found = probe_with(monkeypatch, tmp_path / "cpuinfo")
    assert found.name == "Some CPU @ 2.00GHz"
    assert found.features == ("avx2", "avx512_bf16", "avx512f")


def test_without_cpuinfo_no_feature_is_claimed(monkeypatch, tmp_path):
    found = probe_with(monkeypatch, tmp_path / "missing")
    assert found.features == ()
    assert found.name


def test_a_cpu_has_no_number():
    with pytest.raises(MachineError, match="there is no device cpu:7"):
        Machine.current("cpu:7")
