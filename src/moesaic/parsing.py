"""parse: from a repr back to the value, building only moesaic's own values; never `eval`.

For text that comes from outside: the command line, files. Understood are calls of the classes given, numbers,
strings, True, False, None, tuples, lists, signs and `torch.<dtype>`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import torch

from moesaic.errors import MoesaicError, ParseError

MAX_LENGTH = 20_000
"""Longest text that is parsed; a problem with 900 constants per expert is shorter."""


def parse(text: str, classes: Mapping[str, type]) -> Any:
    """The value whose repr is `text`. `classes` maps every name that may be called to its class.

    Raises ParseError naming what is not understood; errors of the values themselves (ProblemError, ...) pass through.
    """
    if len(text) > MAX_LENGTH:
        raise ParseError(f"the text has {len(text)} characters, but at most {MAX_LENGTH} are parsed")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        raise ParseError(f"{text!r} is not a Python expression ({fault}): give the repr of a value") from None
    return _value(tree.body, text, classes)


def _value(node: ast.expr, text: str, classes: Mapping[str, type]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(_value(element, text, classes) for element in elements)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as number)):
            return -number if isinstance(sign, ast.USub) else number
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return _dtype(name)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            return _built(name, args, keywords, text, classes)
        case _:
            raise ParseError(f"{ast.unparse(node)!r} in {text!r} is not understood; known are {_known(classes)}")


def _built(name: str, args: list[ast.expr], keywords: list[ast.keyword], text: str, classes: Mapping[str, type]) -> Any:
    if name not in classes:
        raise ParseError(f"{name!r} in {text!r} is not known; known are {_known(classes)}")
    if any(keyword.arg is None for keyword in keywords) or any(isinstance(arg, ast.Starred) for arg in args):
        raise ParseError(f"{text!r} uses * or **: write every field by name")
    positional = [_value(arg, text, classes) for arg in args]
    named = {str(keyword.arg): _value(keyword.value, text, classes) for keyword in keywords}
    try:
        return classes[name](*positional, **named)
    except MoesaicError:
        raise
    except TypeError as fault:
        raise ParseError(f"{text!r} does not build a {name}: {fault}") from None


def _dtype(name: str) -> torch.dtype:
    found = vars(torch).get(name)
    if not isinstance(found, torch.dtype):
        raise ParseError(f"torch.{name} is not a dtype, for instance torch.bfloat16")
    return found


def _known(classes: Mapping[str, type]) -> str:
    return ", ".join(sorted(classes))
