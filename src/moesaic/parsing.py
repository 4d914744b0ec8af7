"""parse: from a repr back to the value, building only moesaic's own values; never `eval`.

For text that comes from outside: the command line, files. Understood are calls of the classes given, numbers,
strings, True, False, None, tuples, lists, signs and `torch.<dtype>`. The bare name of a class is that class with its
defaults, and `float16` is `torch.float16`.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from moesaic.errors import MoesaicError, ParseError

MAX_LENGTH = 100_000
"""Longest text that is parsed; a problem with three constants for each of 1000 experts is shorter."""

MAX_SHOWN = 200
"""Longest part of a text that a message repeats."""


def parse(text: str, classes: Mapping[str, type]) -> Any:
    """The value whose repr is `text`. `classes` maps every name that may be called to its class.

    Raises ParseError naming what is not understood; errors of the values themselves (ProblemError, ...) pass through.
    """
    if len(text) > MAX_LENGTH:
        raise ParseError(f"the text has {len(text)} characters, but at most {MAX_LENGTH} are parsed")
    source = text.strip()
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        raise ParseError(f"{_shown(source)} is not a Python expression ({fault}): give the repr of a value") from None
    return _value(tree.body, source, classes)


def _value(node: ast.expr, source: str, classes: Mapping[str, type]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return _whole(value) if isinstance(value, int) and not isinstance(value, bool) else value
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(_value(element, source, classes) for element in elements)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as number)) if (
            not isinstance(number, bool)
        ):
            size = _whole(number) if isinstance(number, int) else number
            return -size if isinstance(sign, ast.USub) else size
        case ast.Name(id=name):
            return _named_alone(name, source, classes)
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return _dtype(name)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if name not in classes:
                raise ParseError(f"{name!r} in {_shown(source)} is not known; known are {_known(classes)}")
            positional = [_value(arg, source, classes) for arg in args]
            return _built(name, classes[name], positional, _named(keywords, source, classes), source)
        case _:
            part = ast.get_source_segment(source, node) or ""
            raise ParseError(f"{_shown(part)} in {_shown(source)} is not understood; known are {_known(classes)}")


def _named_alone(name: str, source: str, classes: Mapping[str, type]) -> Any:
    """`SwiGLU` for `SwiGLU()`, and `float16` for `torch.float16`."""
    if name in classes:
        return _built(name, classes[name], [], {}, source)
    if isinstance(found := vars(torch).get(name), torch.dtype):
        return found
    raise ParseError(f"{_shown(name)} in {_shown(source)} is not understood; known are {_known(classes)}")


def _named(keywords: list[ast.keyword], source: str, classes: Mapping[str, type]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for keyword in keywords:
        if keyword.arg is None:
            raise ParseError(f"{_shown(source)} uses **: write every field by name")
        if keyword.arg in named:
            raise ParseError(f"{_shown(source)} gives {keyword.arg} twice: give it once")
        named[keyword.arg] = _value(keyword.value, source, classes)
    return named


def _built(name: str, kind: type, positional: list[Any], named: dict[str, Any], source: str) -> Any:
    known = [field.name for field in fields(kind) if field.init] if is_dataclass(kind) else list(named)
    for keyword in named:
        if keyword not in known:
            near = difflib.get_close_matches(keyword, known, n=1, cutoff=0.5)
            instead = f"nearest: {near[0]}" if near else f"it has {', '.join(known) or 'none'}"
            raise ParseError(f"{_shown(source)} does not build a {name}, which has no field {keyword!r}; {instead}")
    try:
        return kind(*positional, **named)
    except MoesaicError:
        raise
    except TypeError as fault:
        raise ParseError(f"{_shown(source)} does not build a {name}: {fault}") from None


def _whole(number: int) -> int:
    if number.bit_length() > 63:  # its digits could be too many to be printed
        raise ParseError(f"a number of {number.bit_length()} bits is not understood: the values need at most 63")
    return number


def _dtype(name: str) -> torch.dtype:
    found = vars(torch).get(name)
    if not isinstance(found, torch.dtype):
        raise ParseError(f"torch.{name} is not a dtype, for instance torch.bfloat16")
    return found


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")


def _known(classes: Mapping[str, type]) -> str:
    return ", ".join(sorted(classes))
