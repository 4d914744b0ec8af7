"""The parts of a backend's declaration in words, for the table of backends and the matrix."""

from __future__ import annotations

from moesaic.backends import Accepts, Capabilities, Target

FLAGS: tuple[str, ...] = (
    "any_scheme",
    "any_activation",
    "bias",
    "output_norm",
    "weight_on_input",
    "inactive_slots",
    "duplicate_ids",
    "deterministic",
    "graph_capture",
    "differentiable",
)
"""The fields of Capabilities that are yes or no."""

UNLIMITED = 2**31 - 1
"""What a backend without a limit declares as its highest number."""


def target_names(can: Capabilities) -> tuple[str, ...]:
    """For instance `cpu`, `cuda sm_80 and above`, `cuda sm_90`."""
    return tuple(_target_name(target) for target in can.targets)


def needs(can: Capabilities) -> tuple[str, ...]:
    """Features of the CPU and packages, for instance `amx_bf16`, `torch >= 2.11`."""
    packages = (f"{needed.package} >= {'.'.join(map(str, needed.version))}" for needed in can.requires)
    return (*can.features, *packages)


def dtype_names(can: Capabilities) -> tuple[str, ...]:
    """For instance `bfloat16`."""
    return tuple(str(dtype).removeprefix("torch.") for dtype in can.dtypes)


def accepted(accepts: Accepts) -> dict[str, list[str]]:
    """The constants of an activation that may differ from their defaults, by how they may differ."""
    scalar = [name for name in accepts.scalar if name not in accepts.per_expert]
    return {"scalar": scalar, "per_expert": list(accepts.per_expert)}


def limit_text(limit: int) -> str:
    """The limit, or `any`."""
    return "any" if limit >= UNLIMITED else str(limit)


def _target_name(target: Target) -> str:
    low, high = target.min_capability, target.max_capability
    if target.device != "cuda" or (low, high) == (0, 999):
        return target.device
    if high == 999:
        return f"{target.device} sm_{low} and above"
    return f"{target.device} sm_{low}" if low == high else f"{target.device} sm_{low} to sm_{high}"
