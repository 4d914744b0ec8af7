"""What a stranger's exception says, so that it can be printed anywhere."""

from __future__ import annotations

from moesaic.conformance.strangers import Raised, attempt


def message(fault: BaseException) -> str:
    """The message of `fault` without control characters; an exception whose message cannot be read says that."""
    said = attempt(lambda: str(fault))
    if isinstance(said, Raised):
        return f"(its message cannot be read: {said.fault.__class__.__name__})"
    return printable(said)


def printable(text: str) -> str:
    """`text` with escape codes, lone surrogates and the like as Python writes them in a string; lines stay."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape", "replace").decode() for c in text
    )
