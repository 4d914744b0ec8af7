"""A launch of a Triton kernel that failed, as one error that names kernel, configuration, problem and device.

A call that succeeds pays nothing: what failed is read from the traceback, in which the launch still knows its kernel
and what it was compiled with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from subprocess import SubprocessError
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from moesaic.backends.base import Backend
from moesaic.batches import Batch
from moesaic.errors import LaunchError
from moesaic.machine import Machine
from moesaic.problem import Problem

MOST_WORDS = 400
"""Characters of the original message that are quoted: a compiler's may hold a whole kernel. It stays the cause."""

Run = TypeVar("Run", bound=Callable[..., Tensor])


def naming_launches(run: Run) -> Run:
    """The method `run` of a backend, in which a launch that fails is a LaunchError that names the backend, too."""

    @functools.wraps(run)
    def named(self: Backend[Any], batch: Batch, prepared: Any, problem: Problem) -> Tensor:
        try:
            return run(self, batch, prepared, problem)
        except launch_faults() as fault:
            raise_if_launching(fault, self, problem, batch.rows.device)
            raise

    return cast("Run", named)


def launch_faults() -> tuple[type[Exception], ...]:
    """What triton's compiler and launcher, the CUDA driver, and the tools that they call raise.

    Behind `except` it is asked when something was raised, and triton imported then.
    """
    from triton.errors import TritonError  # noqa: PLC0415

    return (TritonError, RuntimeError, OSError, SubprocessError)


def raise_if_launching(fault: Exception, chosen: object, problem: Problem, device: torch.device) -> None:
    """Raise LaunchError from `fault` if a kernel was being compiled or launched when it was raised; else nothing.

    `fault`: one of `launch_faults`. Memory that does not suffice for a tensor stays a torch.OutOfMemoryError.
    `chosen`: what the kernel was launched by: a choice, or a backend.
    """
    launch = _launch(fault.__traceback__)
    if launch is None or isinstance(fault, torch.OutOfMemoryError | LaunchError):
        return
    machine = Machine.current(device)
    words = f"{fault.__class__.__name__}: {' '.join(str(fault).split())}"
    raise LaunchError(
        f"the kernel {_name(launch)} could not be launched by {chosen!r} on {device} ({machine.name}, "
        f"{machine.architecture}): {words[:MOST_WORDS]}; it was to be compiled with {_configuration(launch)}, for "
        f"{problem!r}; choose other tiles (docs/tuning.md), or bind with another backend"
    ) from fault


def _launch(trace: TracebackType | None) -> Mapping[str, Any] | None:
    """The local names of the outermost frame that is a method of a kernel; None if no kernel was launched."""
    from triton.runtime.jit import KernelInterface  # noqa: PLC0415

    from moesaic.kernels.direct_launch import DirectLaunch  # noqa: PLC0415

    while trace is not None:
        names = trace.tb_frame.f_locals
        if isinstance(names.get("self"), KernelInterface | DirectLaunch):
            return names
        trace = trace.tb_next
    return None


def _name(launch: Mapping[str, Any]) -> str:
    kernel = launch["self"].fn
    return f"{kernel.__module__}.{kernel.__name__}"


def _configuration(launch: Mapping[str, Any]) -> str:
    """What a kernel is compiled with, by its names, and how many programs there are."""
    given = launch.get("kwargs", {})
    constants = {name: value for name, value in given.items() if isinstance(value, int | str)}
    grid = launch.get("grid")
    programs = [f"a grid of {grid}"] if isinstance(grid, tuple) else []
    return ", ".join([*(f"{name}={value!r}" for name, value in constants.items()), *programs])
