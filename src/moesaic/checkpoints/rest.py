"""What a checkpoint holds beside its experts, to be copied as it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from moesaic.checkpoints.checkpoint import Checkpoint
from moesaic.checkpoints.files import INDEX, TensorFiles


def rest_of(source: Checkpoint) -> dict[Path, tuple[str, ...]]:
    """The names of the tensors that belong to no expert, by the file that holds them."""
    blocks = {(layer.name, layer.naming) for layer in source.layers}
    namings = {naming for _, naming in blocks}
    found: dict[Path, list[str]] = {}
    for name, path in TensorFiles.of(Path(source.directory)).where.items():
        if not any((naming.block(name), naming) in blocks for naming in namings):
            found.setdefault(path, []).append(name)
    return {path: tuple(names) for path, names in sorted(found.items())}


def read_rest(rest: Mapping[Path, tuple[str, ...]]) -> Iterator[dict[str, Tensor]]:
    """These tensors, file by file, as views of the files."""
    for path, names in rest.items():
        with safe_open(path, framework="pt") as opened:
            yield {name: opened.get_tensor(name) for name in names}


def plain_modules(source: Checkpoint, rest: Mapping[Path, tuple[str, ...]]) -> tuple[str, ...]:
    """The modules beside the experts whose weight is a matrix, in order."""
    weights = [name for names in rest.values() for name in names if name.endswith(".weight")]
    with TensorFiles.of(Path(source.directory)).opened() as files:
        return tuple(sorted(name.removesuffix(".weight") for name in weights if len(files.shape(name)) == 2))


def copy_files(source: Path, target: Path) -> None:
    """Copy what holds no tensors and describes none: tokenizer, code, licence, directories. Links are followed."""
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            shutil.copytree(entry, target / entry.name)
        elif entry.suffix != ".safetensors" and entry.name not in {INDEX, "config.json"}:
            shutil.copy2(entry, target / entry.name)
