"""Torch's settings: every one that a block changes is told and put back, also if the block raises."""

import contextlib
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from moesaic import Capabilities, Cpu, CpuJit, Machine, Reference, TorchGrouped
from moesaic.conformance import CHECKS, Status, base_case, conform
from moesaic.conformance.float32_precision import Float32Precision
from moesaic.conformance.settings import settings_for
from moesaic.conformance.torch_state import FILLED, TorchState, kept
from tests.conformance import wrong

CPU = torch.device("cpu")
CHECK = next(check for check in CHECKS if check.name == "torch_settings")

CHANGES = {
    "default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "default_device": lambda: torch.set_default_device("meta"),
    "grad_mode": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
    "num_threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "matmul_precision": lambda: torch.set_float32_matmul_precision("high"),
    "matmul_precision of a library": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "matmul_precision of all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "subnormals": lambda: torch.set_flush_denormal(True),
    "random": lambda: torch.rand(1, device="cpu"),
}


@pytest.mark.parametrize("outside", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("setting", "change"), CHANGES.items(), ids=CHANGES)
def test_a_change_is_told_and_put_back_when_the_block_raises(setting, change, outside):
    with outside():
        before = TorchState.now(CPU)
        with contextlib.suppress(KeyError), kept(CPU):
            change()
            assert before.changed(TorchState.now(CPU)) == setting.split(" ", maxsplit=1)[0]
            raise KeyError
        assert TorchState.now(CPU) == before
    torch.empty(1)  # on the CPU again


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize("inside", [(False, False), (True, False), (True, True)], ids=str)
def test_each_part_of_the_deterministic_mode_is_put_back(before, inside):
    def now():
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    first, filled = now(), FILLED.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        with kept(CPU):
            torch.use_deterministic_algorithms(inside[0], warn_only=inside[1])
            FILLED.fill_uninitialized_memory = not filled
        assert now() == before
        assert FILLED.fill_uninitialized_memory == filled
    finally:
        torch.use_deterministic_algorithms(first[0], warn_only=first[1])


PRECISIONS = [
    lambda: None,
    *(lambda word=word: torch.set_float32_matmul_precision(word) for word in ("highest", "high", "medium")),
    *(
        lambda owner=owner, says=says: setattr(owner, "fp32_precision", says)
        for owner in (torch.backends, torch.backends.cudnn, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
        for says in ("ieee", "tf32")
    ),
]


def test_any_precision_is_put_back_to_any_other():
    first = Float32Precision.now()
    for before in PRECISIONS:
        for change in PRECISIONS:
            before()
            wanted = Float32Precision.now()
            change()
            wanted.put_back()
            assert Float32Precision.now() == wanted
            first.put_back()
            assert Float32Precision.now() == first


def test_a_host_that_set_the_precision_of_one_library_is_left_alone():
    first = Float32Precision.now()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError, match="legacy and new"):
            torch.get_float32_matmul_precision()
        report = conform(wrong.Right(), Machine.current("cpu"), cases=[base_case(wrong.DECLARED)])
        assert report.faults == ()
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        first.put_back()


def test_the_filling_of_memory_and_a_random_state_are_put_back():
    before, state = TorchState.now(CPU), torch.get_rng_state()
    with kept(CPU):
        FILLED.fill_uninitialized_memory = not FILLED.fill_uninitialized_memory
        assert before.changed(TorchState.now(CPU)) == "deterministic"
        torch.manual_seed(1)
    assert TorchState.now(CPU) == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("setting", settings_for(CPU), ids=lambda setting: setting.name)
def test_a_setting_is_another_state_and_undoes_itself(setting):
    with torch.no_grad():
        before = TorchState.now(CPU)
        with kept(CPU), setting.entered():
            assert before.changed(TorchState.now(CPU)) or setting.name == "no gradients"
        assert TorchState.now(CPU) == before


@dataclass(frozen=True)
class RaisesUnderFloat64(wrong.Around):
    """Changes two settings, and raises before it puts them back if the default dtype is float64."""

    name: ClassVar[str] = "raises_under_float64"
    capabilities: ClassVar[Capabilities] = wrong.DECLARED

    def run(self, batch, prepared, problem):
        if torch.get_default_dtype() == torch.float64:
            torch.set_num_threads(3)
            torch.set_grad_enabled(True)
            raise RuntimeError("expected Float but found Double")
        return Reference().run(batch, prepared, problem)


def test_a_backend_that_raises_leaves_the_kit_its_settings():
    before, case = TorchState.now(CPU), base_case(wrong.DECLARED)
    (fault,) = conform(RaisesUnderFloat64(), Machine.current("cpu"), checks=[CHECK], cases=[case]).faults
    assert fault.status is Status.FAILED
    assert "run under the default dtype float64: needs an answer, got RuntimeError: expected Float" in fault.detail
    assert TorchState.now(CPU) == before


@pytest.mark.parametrize("backend", [Reference(), Cpu(), CpuJit(), TorchGrouped()], ids=lambda b: b.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_backends_of_the_package_neither_depend_on_settings_nor_change_them(backend, dtype):
    case = base_case(backend.capabilities, dtype if dtype in backend.capabilities.dtypes else None)
    assert conform(backend, Machine.current("cpu"), checks=[CHECK], cases=[case]).faults == ()
