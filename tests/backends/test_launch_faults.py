"""A launch that fails is one error that names kernel, configuration, problem and device; all else stays what it is."""

import re
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from moesaic import BatchedBatch, BatchedExperts, GroupedBatch, GroupedContiguous, Machine, Routing, TritonGrouped
from moesaic.backends import by_size
from moesaic.backends.device_weights import DeviceWeights
from moesaic.backends.launch_faults import naming_launches
from moesaic.errors import BatchError, LaunchError, MoesaicError
from moesaic.tuning import Always, Streamed, Vector
from tests.backends import example

pytest.importorskip("triton")

from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

PROBLEM = example.problem(dtype=torch.float16)
VECTOR = Vector((2, 32, 1, 4), (8, 64, 3, 2))
STREAMED = Streamed(32, 16, (64, 64, 4), (128, 64, 4), warps=8, swap=False, tma=False)

FAULTS = {
    "shared memory": OutOfResources(300_000, 232_448, "shared memory"),
    "compiler": CompilationError("x = 1", None, "a tile of no size\n  in two lines"),
    "assembler": PTXASError("ptxas fatal: no such register"),
    "driver": RuntimeError("Triton Error [CUDA]: invalid argument"),
    "passes": RuntimeError("PassManager::run failed"),
    "full disk": OSError(28, "No space left on device", "/cache/.triton"),
    "launcher": subprocess.CalledProcessError(1, ["gcc"]),
}


@pytest.fixture
def failing(monkeypatch):
    """Makes the launch of every kernel, or of the one named, raise; others do nothing."""

    def fail(fault, kernel=None):
        def run(self, *args, grid, warmup, **kwargs):
            if kernel is None or self.fn.__name__ == kernel:
                raise fault

        monkeypatch.setattr(JITFunction, "run", run)

    return fail


def prepared(choice, problem=PROBLEM):
    return TritonGrouped(Always(choice)).prepare(example.weights(problem), problem)


def tokens(choice, count=3):
    ids = torch.zeros(count, 3, dtype=torch.int32)
    return by_size.compute_tokens(
        example.rows(PROBLEM, count), Routing(ids, torch.ones(count, 3)), prepared(choice), PROBLEM
    )


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_whatever_a_launch_raises_is_one_error_with_all_its_names(failing, fault):
    failing(fault)
    with pytest.raises(LaunchError) as raised:
        tokens(VECTOR)
    message = str(raised.value)
    here = Machine.current("cpu")
    for part in (
        *("kernel moesaic.kernels.vector_experts._vector_up", repr(VECTOR), repr(PROBLEM)),
        *(f"on cpu ({here.name}, {here.architecture})", type(fault).__name__, str(fault).split("\n")[-1].strip()),
        *("COLUMNS=2, BLOCK=32, STAGES=1, num_warps=4", "a grid of (180,)", "docs/tuning.md"),
    ):
        assert part in message
    assert "\n" not in message
    assert raised.value.__cause__ is fault
    assert isinstance(raised.value, MoesaicError | RuntimeError)


@pytest.mark.parametrize(
    ("choice", "kernel", "configuration"),
    [
        (VECTOR, "_vector_down", "num_warps=2"),
        (STREAMED, "_order_few", "num_warps"),
        (STREAMED, "_second", "num_warps=8"),
        (STREAMED, "_combine", "num_warps"),
    ],
)
def test_the_kernel_that_failed_is_named(failing, monkeypatch, choice, kernel, configuration):
    from moesaic.kernels import vector_experts  # noqa: PLC0415

    monkeypatch.setattr(vector_experts, "overlap_launches", lambda device: False)
    failing(FAULTS["driver"], kernel)
    with pytest.raises(LaunchError) as raised:
        tokens(choice)
    assert f".{kernel} could not be launched by {choice!r} on cpu" in str(raised.value)
    assert configuration in str(raised.value)


@pytest.mark.parametrize("layout", [GroupedContiguous(4), BatchedExperts()], ids=str)
def test_rows_in_expert_order_too(failing, layout):
    failing(FAULTS["shared memory"], "_first")
    problem = replace(PROBLEM, layout=layout)
    counts = torch.ones(5, dtype=torch.int32)
    if isinstance(layout, BatchedExperts):
        batch = BatchedBatch(example.rows(PROBLEM, 20).view(5, 4, -1), counts)
    else:
        batch = GroupedBatch(example.rows(PROBLEM, 20), torch.arange(5, dtype=torch.int32) * 4, counts, 4)
    with pytest.raises(
        LaunchError, match=rf"streamed_experts._first could not .* by {re.escape(repr(STREAMED))} .*, for Problem\("
    ):
        by_size.compute_rows(batch, prepared(STREAMED, problem), problem)


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("CUDA out of memory"), TypeError("no pointer"), KeyError(7)])
def test_what_is_no_failing_launch_stays_what_it_is(failing, fault):
    failing(fault)
    with pytest.raises(type(fault)) as raised:
        tokens(VECTOR)
    assert raised.value is fault


def test_an_error_outside_of_a_launch_stays_what_it_is(monkeypatch):
    def fail(*_):
        raise RuntimeError("a product of torch")

    monkeypatch.setattr(by_size, "vector_tokens", fail)
    with pytest.raises(RuntimeError, match="a product of torch") as raised:
        tokens(VECTOR)
    assert not isinstance(raised.value, LaunchError)


def test_a_batch_that_a_choice_cannot_compute_is_still_a_batch_error():
    problem = replace(PROBLEM, layout=BatchedExperts())
    batch = BatchedBatch(example.rows(PROBLEM, 20).view(5, 4, -1), torch.ones(5, dtype=torch.int32))
    given = by_size.ChosenWeights(DeviceWeights.of(example.weights(problem), problem), lambda rows: VECTOR)
    with pytest.raises(BatchError, match="cannot be computed by"):
        by_size.compute_rows(batch, given, problem)


def test_a_long_message_of_a_compiler_is_cut(failing):
    failing(RuntimeError("error: " + "%v = tt.load " * 10_000))
    with pytest.raises(LaunchError) as raised:
        tokens(VECTOR)
    assert len(str(raised.value)) < 2000
    assert repr(PROBLEM) in str(raised.value)


class Other:
    """Its `run` launches a kernel, unless there is no problem."""

    @naming_launches
    def run(self, batch, prepared, problem):
        from moesaic.kernels.combine_rows import combine_rows  # noqa: PLC0415

        if problem is not None:
            combine_rows(batch.rows, torch.zeros(3, 1, dtype=torch.int32), None, None, 5, batch.rows)
        return batch.rows

    def __repr__(self):
        return "Other(fields=3)"


def test_any_other_backend_says_so_by_a_decorator(failing, unchecked):
    batch = SimpleNamespace(rows=example.rows(PROBLEM, 3))
    failing(FAULTS["driver"])
    with pytest.raises(LaunchError, match=r"combine_rows._combine could not be launched by Other\(fields=3\) on cpu"):
        Other().run(batch, None, PROBLEM)
    assert Other().run(batch, None, None) is batch.rows
    assert Other.run.__name__ == "run"


def test_the_kit_tells_failing_kernels_apart_by_what_raised_first(failing):
    """Not by the line that names them, which all have in common."""
    from moesaic.conformance.execution import described, raised_at  # noqa: PLC0415

    failing(FAULTS["shared memory"])
    with pytest.raises(LaunchError) as raised:
        tokens(VECTOR)
    assert "LaunchError: the kernel moesaic.kernels.vector_experts._vector_up" in described(raised.value)
    assert "test_launch_faults.py" in raised_at(raised.value)
    assert "launch_faults.py" not in raised_at(raised.value).replace("test_launch_faults.py", "")
