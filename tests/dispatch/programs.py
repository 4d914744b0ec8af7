"""Programs of the tests that succeed, with or without Triton's interpreter."""

from tests import rank_processes


def started(module, *arguments, interpret=True):
    """`python -m module *arguments`."""
    return rank_processes.started(module, *arguments, TRITON_INTERPRET="1" if interpret else None)


def ended(processes):
    """The lines that each wrote."""
    found = rank_processes.ended(processes)
    for status, _, errors in found:
        assert status == 0, errors[-3000:]
    return [output.splitlines() for _, output, _ in found]
