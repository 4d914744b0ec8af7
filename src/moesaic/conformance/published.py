"""Constants of activations as models publish them, which kernels have paths of their own for."""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.activations import Activation, SwiGLU
from moesaic.backends.capabilities import Accepts, Capabilities

PUBLISHED: tuple[Activation, ...] = (
    SwiGLU(alpha=1.702, beta=1.0, limit=7.0),
    SwiGLU(limit=10.0),
    SwiGLU(limit=7.0),
)
"""gpt-oss, DeepSeek-V4 and models that limit SwiGLU at 7; all others have the defaults of their class."""


def published(can: Capabilities) -> Iterator[Activation]:
    """Those that a declaration takes."""
    yield from (activation for activation in PUBLISHED if any(_takes(a, activation) for a in can.activations))


def _takes(accepts: Accepts, activation: Activation) -> bool:
    default = accepts.activation().constants()
    if activation.__class__ != accepts.activation:
        return False
    free = {*accepts.scalar, *accepts.per_expert}
    return all(name in free for name, value in activation.constants().items() if value != default[name])
