"""reachable: a device by its full name, or an error in the package's words if there is none."""

from __future__ import annotations

import torch

from moesaic.errors import DispatchError


def reachable(owner: str, device: torch.device | str) -> torch.device:
    """`device` with its index, on which memory can be had; raises DispatchError, with torch's words, otherwise."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as fault:  # which of them depends on how torch was built
        words = str(fault).splitlines()[0]
        raise DispatchError(
            f"{owner}.device is {device!r}, which torch does not reach here ({words}): give one that is there"
        ) from fault
