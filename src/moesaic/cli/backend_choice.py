"""Which backends a command asks: the package's, the oracle, and those of other packages when they are named."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from moesaic.backends import BACKENDS, Backend, Reference
from moesaic.cli.backend_import import built, imported_backend
from moesaic.errors import BackendError

GROUP = "moesaic.backends"
"""The entry-point group in which other packages offer a backend, as an instance or as its class."""


def all_backends(plugins: Sequence[str] = ()) -> tuple[Backend[Any], ...]:
    """The backends named by `plugins`, then the package's, in order of preference, and the oracle last."""
    return (*(load_plugin(name) for name in plugins), *BACKENDS, Reference())


def backend_named(name: str, backends: Sequence[Backend[Any]]) -> Backend[Any]:
    """The backend of that name; raises BackendError listing the names there are."""
    for backend in backends:
        if backend.name == name:
            return backend
    names = ", ".join(backend.name for backend in backends)
    if name in entry_points(group=GROUP).names:
        raise BackendError(
            f"{name!r} is a backend of an installed package, whose code is imported only where it is asked for: add "
            f"--plugin {name}, and name it as `moesaic backends --plugin {name}` lists it"
        )
    raise BackendError(f"no backend is called {name!r}; there are {names}; --plugin loads one of another package")


def is_oracle(backend: Backend[Any]) -> bool:
    """True for the backend that runs only when it is named."""
    return isinstance(backend, Reference)


def tried_backend(name: str) -> Backend[Any]:
    """The backend that `conform` is asked to try: one of the package by its name, an entry point, or `module:Class`."""
    own = (Reference(), *BACKENDS)
    for backend in own:
        if backend.name == name:
            return backend
    if ":" in name or name in (offered := entry_points(group=GROUP).names):
        return load_plugin(name)
    raise BackendError(
        f"{name!r} is no backend of the package ({', '.join(backend.name for backend in own)}) and no entry point in "
        f"the group {GROUP} ({', '.join(sorted(offered)) or 'none is installed'}): name one, or give module:Class"
    )


def load_plugin(name: str) -> Backend[Any]:
    """The backend that an installed package offers as `name`, or that `module:Class` names.

    Its code is imported here and nowhere else.
    """
    if ":" in name:
        return imported_backend(name)
    offered = entry_points(group=GROUP)
    if name not in offered.names:
        there = ", ".join(sorted(offered.names)) or "none"
        raise BackendError(f"no installed package offers a backend {name!r} in the group {GROUP}; offered: {there}")
    return _loaded(offered[name])


def _loaded(entry: EntryPoint) -> Backend[Any]:
    try:
        found = entry.load()
    except (ImportError, AttributeError) as fault:
        raise BackendError(f"the backend {entry.name!r} ({entry.value}) cannot be imported: {fault}") from fault
    return built(found, f"the entry point {entry.name!r}")
