"""Packages of others, unpacked side by side in the folder $PEERS, or installed."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import final

VARIABLE = "PEERS"


@final
@dataclass(frozen=True)
class Bundle:
    """`$PEERS/<name>`, which holds `package` and what it needs. `origin`: of a package there that states no version."""

    name: str
    package: str
    origin: str = "not stated"

    @property
    def folder(self) -> Path | None:
        """Where it is unpacked; None if it is not."""
        root = os.environ.get(VARIABLE)
        found = Path(root) / self.name if root else None
        return found if found is not None and found.is_dir() else None

    @property
    def missing(self) -> str:
        """Why it cannot be imported; empty if it may be."""
        if self.folder is not None or importlib.util.find_spec(self.package) is not None:
            return ""
        where = f"no folder {self.name} in ${VARIABLE}" if os.environ.get(VARIABLE) else f"no ${VARIABLE}"
        return f"{self.package} is not installed, and there is {where}"

    def enter(self) -> None:
        """Put the folder, and what its .pth files name, in front of the Python path."""
        if self.folder is not None and str(self.folder) not in sys.path:
            before = sys.path.copy()
            site.addsitedir(str(self.folder))
            sys.path[:] = [entry for entry in sys.path if entry not in before] + before

    def version(self) -> str:
        """By its metadata, else by its own word."""
        path = [str(self.folder)] if self.folder is not None else sys.path
        for found in metadata.distributions(name=self.package, path=path):
            return found.version
        return str(getattr(sys.modules.get(self.package), "__version__", self.origin))
