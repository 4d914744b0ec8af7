"""TorchState: torch's settings as they are, to be compared with what they are after a call and to be put back."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, final

import torch
from torch.utils import deterministic

from moesaic.conformance.float32_precision import Float32Precision

FILLED: Any = deterministic
"""The module has its switch as a property, which type checkers do not see."""

SUBNORMAL = 1e-40
"""Smaller than every normal float32."""


@final
@dataclass(frozen=True)
class TorchState:
    """Everything of torch that outlives a call. `deterministic`: mode, warn only, fill of uninitialised memory.

    `autocast`: on and dtype, for the CPU and then the device. `subnormals`: whether the processor keeps them.
    `random`: a digest of the generators' states.
    """

    default_dtype: torch.dtype
    default_device: torch.device
    grad_mode: bool
    inference_mode: bool
    num_threads: int
    deterministic: tuple[bool, bool, bool]
    autocast: tuple[tuple[bool, torch.dtype], ...]
    autocast_cache: bool
    matmul_precision: Float32Precision
    subnormals: bool
    random: str

    @classmethod
    def now(cls, device: torch.device) -> TorchState:
        """The settings of this thread; `device` is the one whose random state and autocast count beside the CPU's."""
        kinds = dict.fromkeys(("cpu", device.type))
        return cls(
            default_dtype=torch.get_default_dtype(),
            default_device=torch.get_default_device(),
            grad_mode=torch.is_grad_enabled(),
            inference_mode=torch.is_inference_mode_enabled(),
            num_threads=torch.get_num_threads(),
            deterministic=(
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
                FILLED.fill_uninitialized_memory,
            ),
            autocast=tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds),
            autocast_cache=torch.is_autocast_cache_enabled(),
            matmul_precision=Float32Precision.now(),
            subnormals=bool(torch.full((1,), SUBNORMAL, dtype=torch.float32, device="cpu").mul(1.0).ne(0.0).item()),
            random=hashlib.sha256(b"".join(state.numpy().tobytes() for state in _generators(device))).hexdigest()[:8],
        )

    def changed(self, later: TorchState) -> str | None:
        """The first setting that is another one in `later`."""
        return next((f.name for f in fields(self) if getattr(self, f.name) != getattr(later, f.name)), None)


@contextmanager
def kept(device: torch.device) -> Generator[None]:
    """Whatever the block does to torch's settings, they are as before afterwards, also if it raises."""
    before, random = TorchState.now(device), _generators(device)
    kinds = dict.fromkeys(("cpu", device.type))
    # Inference mode has no setter: a mode that the block leaves on ends with this one.
    with torch.inference_mode(mode=before.inference_mode):
        torch.set_grad_enabled(before.grad_mode)
        try:
            yield
        finally:
            torch.set_default_dtype(before.default_dtype)
            if torch.get_default_device() != before.default_device:
                torch.set_default_device(before.default_device if before.default_device.type != "cpu" else None)
            if torch.get_num_threads() != before.num_threads:
                torch.set_num_threads(before.num_threads)
            mode, warn_only, FILLED.fill_uninitialized_memory = before.deterministic
            now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
            if now != (mode, warn_only):  # setting it takes as long as all else here
                torch.use_deterministic_algorithms(mode, warn_only=warn_only)
            for kind, (on, dtype) in zip(kinds, before.autocast, strict=True):
                torch.set_autocast_enabled(kind, on)
                torch.set_autocast_dtype(kind, dtype)
            torch.set_autocast_cache_enabled(before.autocast_cache)
            before.matmul_precision.put_back()
            torch.set_flush_denormal(not before.subnormals)
            torch.set_rng_state(random[0])
            if device.type == "cuda":
                torch.cuda.set_rng_state(random[1], device)
    torch.set_grad_enabled(before.grad_mode)


def _generators(device: torch.device) -> list[torch.Tensor]:
    """The states of the CPU's generator and of the device's."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
