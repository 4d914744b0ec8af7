"""A backend of somebody else's module: `module:Class`, or what an entry point gives; one clear error if it is none."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from moesaic.backends import Backend
from moesaic.errors import BackendError

MOST_SHOWN = 80
"""Letters of a value that is no backend."""

ABSENT = object()
"""What a module gives for a name that it does not have."""


def imported_backend(text: str) -> Backend[Any]:
    """The backend that `text`, `module:Class` or `module:instance`, names; the working directory is looked in first.

    Raises BackendError saying which of module, attribute, kind or constructor is not as needed.
    """
    module_name, _, path = text.partition(":")
    is_file = module_name.endswith(".py")
    if is_file or not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        instead = f"{Path(module_name).stem}:{path or 'Class'}" if is_file else "acme.moe:Fast"
        raise BackendError(f"{text!r} is not module:Class, for instance {instead}")
    found = module = _module(module_name, text)
    for part in path.split("."):
        found = getattr(found, part, ABSENT)
        if found is ABSENT:
            raise BackendError(f"the module {module_name} has no {path!r}; {_offered(module, path)}")
    return built(found, repr(text))


def built(found: object, name: str) -> Backend[Any]:
    """`found`, or what it builds if it is a class; `name` says in errors where it came from."""
    if isinstance(found, Backend):
        return found
    if not (isinstance(found, type) and issubclass(found, Backend)):
        from moesaic.conformance.asked import other_kit  # noqa: PLC0415

        given = f"{found!r}"
        raise BackendError(f"{name} gives {given[:MOST_SHOWN]}, but it needs a Backend or its class{other_kit(found)}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise BackendError(f"{name} gives the class {found.__name__}, which does not define {missing}: add them")
    needed = [p.name for p in inspect.signature(found).parameters.values() if _is_needed(p)]
    if needed:
        raise BackendError(
            f"{name} gives the class {found.__name__}, which needs {', '.join(needed)}: give them defaults, or name an "
            f"instance in its module, for instance mine = {found.__name__}({needed[0]}=...)"
        )
    from moesaic.conformance.printable import message  # noqa: PLC0415
    from moesaic.conformance.strangers import Raised, attempt  # noqa: PLC0415

    made = attempt(found)
    if isinstance(made, Raised):
        fault = made.fault
        raised = f"{fault.__class__.__name__}: {message(fault)}"
        raise BackendError(f"{name} gives the class {found.__name__}, whose constructor raises {raised}") from fault
    return made


def _module(name: str, text: str) -> Any:
    from moesaic.conformance.printable import message  # noqa: PLC0415
    from moesaic.conformance.strangers import Raised, attempt  # noqa: PLC0415

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as python -m does; the process for jobs inherits it
    # A module runs as it is imported, and whatever it raises, `sys.exit` too, is one fault of the input. Left alone,
    # exit(0) would read as "no fault found", and os._exit, which nothing catches, likewise.
    with patch.object(os, "_exit", sys.exit):
        found = attempt(lambda: importlib.import_module(name))
    if not isinstance(found, Raised):
        return found
    fault = found.fault
    if isinstance(fault, ModuleNotFoundError) and fault.name is not None and f"{name}.".startswith(f"{fault.name}."):
        raise BackendError(
            f"no module {fault.name!r} is found for {text!r}: install it, or run in the directory that it lies in"
        ) from fault
    kind = "" if isinstance(fault, ImportError | SyntaxError) else f"{fault.__class__.__name__}: "
    raise BackendError(f"the module of {text!r} cannot be imported: {kind}{message(fault)}") from fault


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def _offered(module: Any, wanted: str) -> str:
    """The backends of a module, the nearest names first."""
    names = [name for name, value in vars(module).items() if _is_offered(value, module)]
    near = difflib.get_close_matches(wanted, names, n=3)
    return f"it offers {', '.join(near or names)}" if names else "it defines no backend"


def _is_offered(value: object, module: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, Backend) and value.__module__ == module.__name__ and not inspect.isabstract(value)
    return isinstance(value, Backend)
