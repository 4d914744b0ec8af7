"""appearing: a directory that is there when it is complete, and not before."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from moesaic.errors import CheckpointError


@contextmanager
def appearing(target: Path, *, replace: bool = False) -> Generator[Path, None, None]:
    """A new directory beside `target`, which takes its name when the block ends; any exception removes it.

    With `replace` a directory of that name is put aside at the end, and removed when the new one has its place.
    Raises CheckpointError if `target` is there without `replace`, or is anything but a checkpoint or empty.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CheckpointError(f"{target} is there and is no directory: give another name")
    if target.exists() and not replace:
        raise CheckpointError(f"{target} is there already: give a directory that is not, or say that it is replaced")
    if target.exists() and any(target.iterdir()) and not (target / "config.json").is_file():
        raise CheckpointError(
            f"{target} holds something else than a checkpoint, which is not replaced: remove it first"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    unfinished, before = beside / "unfinished", beside / "before"
    try:
        unfinished.mkdir()  # with the mode of any new directory, which mkdtemp's has not
        yield unfinished
        _rename(unfinished, target, before)
    finally:
        if target.exists() or not before.exists():  # else what was there could not be put back, and is kept
            shutil.rmtree(beside, ignore_errors=True)


def _rename(unfinished: Path, target: Path, before: Path) -> None:
    """Give `unfinished` the name `target`; a directory that has it becomes `before`, or is put back if that fails."""
    try:
        if target.exists():
            os.replace(target, before)  # noqa: PTH105 - Path.replace would say the same
        os.replace(unfinished, target)  # noqa: PTH105
    except BaseException:
        if before.exists() and not target.exists():
            os.replace(before, target)  # noqa: PTH105
        raise
