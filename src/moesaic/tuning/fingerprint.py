"""The kernels that a table was measured with, as one word: a digest of their sources.

A version says little of them: most releases change none, and between two releases they change without one. Comments,
docstrings and blank lines are left out, since they change no figure, and how the host launches what is compiled.
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

KERNELS = Path(__file__).parents[1] / "kernels"
"""Where the sources lie; Triton reads them, too, so they are there wherever a kernel can be compiled."""

LAUNCHED = (
    *("vector_experts", "order_rows", "streamed_experts", "combine_rows"),
    *("tile_map", "spread_rows", "slot_sums", "hopper_product"),
)
"""What the forms of `choices.py` launch. What these import from the same directory is found there."""

ON_THE_HOST = frozenset({"direct_launch"})
"""Imported, and of no meaning for a figure that was taken from a replayed graph."""

_IMPORT = re.compile(r"^from moesaic\.kernels\.(\w+) import", re.MULTILINE)

_UNWRITTEN = {tokenize.INDENT: ">", tokenize.DEDENT: "<", tokenize.NEWLINE: ";"}


@functools.cache
def fingerprint(directory: Path = KERNELS) -> str:
    """Sixteen digits, the same under every version of Python; read once in a process, in some 50 ms."""
    whole = hashlib.sha256()
    for name, code in sorted(_sources(directory)):
        whole.update(f"{name}\n{code}\n".encode())
    return whole.hexdigest()[:16]


def _sources(directory: Path) -> Iterator[tuple[str, str]]:
    """Name and code of every module that LAUNCHED needs."""
    waiting, seen = list(LAUNCHED), set(ON_THE_HOST)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        text = (directory / f"{name}.py").read_text(encoding="utf-8")
        waiting += _IMPORT.findall(text)
        yield name, code_of(text)


def code_of(source: str) -> str:
    """`source` without what changes nothing: comments, docstrings, and white space but for indentation."""
    kept: list[str] = []
    docstring = ""  # a string that begins a statement, until it is known whether it is all of it
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            continue
        if token.type == tokenize.STRING and begins:
            docstring, begins = token.string, False
            continue
        if not (docstring and token.type == tokenize.NEWLINE):
            kept += [docstring, _UNWRITTEN.get(token.type, token.string)]
        docstring, begins = "", token.type in _UNWRITTEN
    return "".join("".join(kept).split())
