"""The tensors of a checkpoint directory: which file holds each of them, and reading only what is asked for."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from moesaic.errors import CheckpointError

INDEX = "model.safetensors.index.json"
"""The file that says which shard holds which tensor."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError naming the file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise CheckpointError(f"{path} cannot be read as JSON: {fault}") from fault
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a JSON {found.__class__.__name__}, but it needs an object")
    return found


@final
@dataclass(frozen=True, eq=False)
class TensorFiles:
    """Every tensor's name, in order, and the file that holds it. Nothing is open, no weight has been read."""

    directory: Path
    where: Mapping[str, Path]
    names: tuple[str, ...]

    @classmethod
    def of(cls, directory: Path) -> TensorFiles:
        """By the index if there is one, else by the headers of all `*.safetensors`."""
        where = _indexed(directory) if (directory / INDEX).exists() else _listed(directory)
        return cls(directory, where, tuple(sorted(where)))

    def under(self, prefix: str) -> tuple[str, ...]:
        """The names that begin with `prefix`."""
        return self.names[bisect_left(self.names, prefix) : bisect_left(self.names, prefix + "\U0010ffff")]

    @contextmanager
    def opened(self) -> Generator[OpenFiles]:
        """The same files, each of them opened at its first use and closed at the end."""
        with ExitStack() as stack:
            yield OpenFiles(self, stack, {})


@final
@dataclass(frozen=True, eq=False)
class OpenFiles:
    """Files while they are read: memory maps, so that a tensor is read from disk as it is copied, and no byte else."""

    files: TensorFiles
    _stack: ExitStack
    _handles: dict[Path, Any]

    def file(self, name: str) -> Path:
        """The file that holds the tensor `name`. Raises CheckpointError if none does."""
        if name not in self.files.where:
            raise CheckpointError(
                f"{self.files.directory} has no tensor {name!r}: complete the checkpoint (a shard that was not "
                "downloaded is missing from no index), or ask for other experts"
            )
        return self.files.where[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of `name`, from the file's header."""
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, expert: int | None = None, of: int | None = None) -> Tensor:
        """The tensor `name`, a view of the file. `expert`: that entry of its first dimension, cut into `of` entries."""
        part = self._slice(name)
        shape = tuple(part.get_shape())
        if expert is None:
            return self._handles[self.file(name)].get_tensor(name)
        entries = shape[0] if shape else 0
        if of is not None and (entries % of or not entries):
            raise CheckpointError(
                f"{self.file(name)}: {name} is {shape}, but it needs {of} experts of equal height along its first "
                "dimension: the number of experts in config.json is another"
            )
        if expert >= (of or entries):
            raise CheckpointError(f"{self.file(name)}: {name} is {shape}, so it has no expert {expert}")
        rows = 1 if of is None else entries // of
        return part[expert] if of is None else part[expert * rows : (expert + 1) * rows]

    def _slice(self, name: str) -> Any:
        path = self.file(name)
        if path not in self._handles:
            self._handles[path] = self._stack.enter_context(_opened(path))
        try:
            return self._handles[path].get_slice(name)
        except SafetensorError as fault:
            raise CheckpointError(f"{path} has no tensor {name!r}, though {INDEX} says so ({fault})") from fault


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as fault:
        raise CheckpointError(f"{path} cannot be read ({fault}): fetch or write it again") from fault


def _indexed(directory: Path) -> dict[str, Path]:
    path = directory / INDEX
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(f, str) and Path(f).name == f for f in found.values()):
        raise CheckpointError(f"{path} has no weight_map from tensors to names of files beside it")
    return {name: directory / file for name, file in found.items()}


def _listed(directory: Path) -> dict[str, Path]:
    where: dict[str, Path] = {}
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{directory} has no *.safetensors: other files of weights are not read")
    for path in paths:
        with _opened(path) as handle:
            for name in handle.keys():  # noqa: SIM118 - not a dict
                if name in where:
                    raise CheckpointError(
                        f"{name!r} is in {where[name].name} and in {path.name} of {directory}, and no {INDEX} says "
                        "which counts: remove one of the files"
                    )
                where[name] = path
    return where
