"""Programs of the tests that succeed, with or without Triton's interpreter."""

import os
import sys

from tests import rank_processes

OLDEST = rank_processes.ROOT / ".venv" / "triton-3.6"


def started(module, *arguments, interpret=True, oldest=False):
    """`python -m module *arguments`, with the installed triton or the oldest that kernels promise to compile with."""
    variables = {"TRITON_INTERPRET": "1" if interpret else None}
    if oldest:
        assert OLDEST.exists(), f"there is no {OLDEST}: make {OLDEST.relative_to(rank_processes.ROOT)}/.ready"
        variables["PYTHONPATH"] = os.pathsep.join([str(OLDEST), str(rank_processes.ROOT), *sys.path])
    return rank_processes.started(module, *arguments, **variables)


def ended(processes):
    """The lines that each wrote."""
    found = rank_processes.ended(processes)
    for status, _, errors in found:
        assert status == 0, errors[-3000:]
    return [output.splitlines() for _, output, _ in found]
