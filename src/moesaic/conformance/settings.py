"""Setting: one of torch's settings as a caller may have it around a call."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import final
from warnings import catch_warnings, simplefilter

import torch

SEED = 20240607
"""Of torch's generators in the setting that has another random state."""


@final
@dataclass(frozen=True)
class Setting:
    """`entered` makes a context that has the setting. `same_bits`: whether answers equal those without it.

    Otherwise other algorithms are chosen, and answers are within the tolerance. `through_layer`: whether it is the
    bound layer, and not the backend, that keeps the setting outside. `costly`: whether it is tried on the plainest case
    of each dtype and layout only.
    """

    name: str
    entered: Callable[[], AbstractContextManager[object]]
    same_bits: bool = True
    through_layer: bool = False
    costly: bool = False


def settings_for(device: torch.device) -> tuple[Setting, ...]:
    """Every setting that is tried on `device`; they undo themselves only as far as torch's own contexts do."""
    elsewhere = ("meta",) if device.type == "cpu" else ("meta", device.type)
    return (
        Setting("no gradients", torch.no_grad, costly=True),
        Setting("gradients on", torch.enable_grad),
        Setting("inference mode", torch.inference_mode),
        Setting("the default dtype bfloat16", lambda: _default_dtype(torch.bfloat16)),
        Setting("the default dtype float64", lambda: _default_dtype(torch.float64)),
        *(Setting(f"the default device {kind}", lambda kind=kind: torch.device(kind)) for kind in elsewhere),
        Setting("another random state", _other_random_state, costly=True),
        Setting("autocast to bfloat16", lambda: torch.autocast(device.type, torch.bfloat16), through_layer=True),
        Setting("another number of threads", _other_threads, same_bits=False, costly=True),
        Setting("deterministic algorithms", lambda: _deterministic(device), same_bits=False, costly=True),
    )


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Generator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _other_random_state() -> Generator[None]:
    torch.manual_seed(SEED)  # put back by whoever keeps torch's state
    yield


@contextmanager
def _other_threads() -> Generator[None]:
    # Threads that share cores with other processes make calls as small as these ten times slower.
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _deterministic(device: torch.device) -> Generator[None]:
    """Torch's deterministic mode, which also fills uninitialised memory with NaN.

    On CUDA it only warns: cuBLAS counts as deterministic only if an environment variable was set before it began.
    """
    mode, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with catch_warnings():
        simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=device.type == "cuda")
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(mode, warn_only=warn_only)
