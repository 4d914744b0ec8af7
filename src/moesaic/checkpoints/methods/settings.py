"""Settings: the quantization part of a configuration, read field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from moesaic.errors import CheckpointError

NEEDED: Any = object()
"""The default of a field that has to be there."""


@final
@dataclass(frozen=True)
class Settings:
    """`fields` as they stand in `path`, a file and the place in it; errors name both."""

    path: str
    fields: Mapping[str, Any]

    @property
    def method(self) -> str:
        """The name of the method, in small letters."""
        return str(self.fields.get("quant_method", "")).lower()

    def option(self, name: str, options: tuple[str | None, ...], default: str | None = NEEDED) -> str | None:
        """A field that has to be one of `options`, whatever its letters' case."""
        found = self._get(name, default)
        found = found.lower() if isinstance(found, str) else found
        if found not in options:
            raise self.fault(name, f"one of {', '.join(map(repr, options))}")
        return found

    def number(self, name: str, default: int | None = NEEDED, *, also: tuple[int, ...] = ()) -> int | None:
        """A whole number above zero, or one of `also`."""
        found = self._get(name, default)
        known = isinstance(found, int) and not isinstance(found, bool) and (found > 0 or found in also)
        if not known and found is not default:
            raise self.fault(name, "a whole number above zero")
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        found = self._get(name, default)
        if not isinstance(found, bool):
            raise self.fault(name, "true or false")
        return found

    def names(self, name: str) -> tuple[str, ...]:
        """A list of strings; none if the field is missing."""
        found = self._get(name, None) or []
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise self.fault(name, "a list of names")
        return tuple(found)

    def inner(self, name: str) -> Settings | None:
        """The object in a field; None if the field is missing or null."""
        found = self._get(name, None)
        if found is not None and not isinstance(found, dict):
            raise self.fault(name, "an object")
        return None if found is None else Settings(f"{self.path}.{name}", found)

    def fault(self, name: str, needed: str) -> CheckpointError:
        """The error about a field, which is missing or not what is needed."""
        found = f"is {self.fields[name]!r}" if name in self.fields else "is missing"
        return CheckpointError(f"{self.path}.{name} {found}, but it needs {needed}")

    def _get(self, name: str, default: Any) -> Any:
        if name not in self.fields and default is NEEDED:
            raise self.fault(name, "a value")
        return self.fields.get(name, default)
