"""The commit of the source that runs, so that a measurement can be found again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def source_commit() -> str | None:
    """The commit of moesaic's own checkout, with `-dirty` if files were changed; None if it is installed elsewhere."""
    git, package = shutil.which("git"), Path(__file__).parents[1]
    if git is None or not _git(git, package, "ls-files", "__init__.py"):
        return None  # without this, a virtual environment inside another project would give that project's commit
    return _git(git, package, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or None


def _git(git: str, directory: Path, *arguments: str) -> str:
    done = subprocess.run((git, *arguments), cwd=directory, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() if done.returncode == 0 else ""
