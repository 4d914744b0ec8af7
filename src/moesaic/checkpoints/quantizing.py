"""quantize_checkpoint: a plain checkpoint with its experts quantized, layer by layer, and all else as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from moesaic.checkpoints.appearing import appearing
from moesaic.checkpoints.checkpoint import Checkpoint
from moesaic.checkpoints.excluded import quantization_config
from moesaic.checkpoints.files import read_json
from moesaic.checkpoints.layers import ExpertLayer
from moesaic.checkpoints.methods import GptOssMXFP4, Unquantized
from moesaic.checkpoints.naming import GPT_OSS, PROJ, Naming, PerExpert
from moesaic.checkpoints.reading import Progress
from moesaic.checkpoints.recipes import Recipe
from moesaic.checkpoints.rest import copy_files, plain_modules, read_rest, rest_of
from moesaic.checkpoints.writing import layer_tensors, write_config, write_files
from moesaic.errors import CheckpointError, FormatError
from moesaic.quant import Plain, Quantized
from moesaic.weights import ExpertWeights


def quantize_checkpoint(
    source: Checkpoint, target: str | Path, recipe: Recipe, *, replace: bool = False, progress: Progress | None = None
) -> Checkpoint:
    """Write `target`: the experts of every layer of `source` as `recipe` says, everything else copied.

    One expert's plain weights are in memory at a time, and one layer's quantized ones. `progress` is called after each
    expert with the numbers done and in all. The directory appears when it is complete and has been opened again; a
    directory of that name is replaced if `replace`. Raises CheckpointError naming layer and expert; then nothing is
    written. Stacked experts are written one by one, but for gpt-oss's own MXFP4: they share no scale, and no kept
    matrix would interleave them.
    """
    into, place = Path(target), Path(source.directory)
    _check(source, into, replace=replace)
    written = [_written(layer, recipe) for layer in source.layers]
    counts = [source.num_experts(layer.name) for layer in source.layers]
    rest = rest_of(source)
    quantization = quantization_config(recipe.method, plain_modules(source, rest))

    def layers() -> Iterator[Mapping[str, Tensor]]:
        done = 0
        for layer, (naming, block), count in zip(source.layers, written, counts, strict=True):
            experts: list[ExpertWeights] = []
            for expert in range(count):
                experts.append(_quantized(source, layer, expert, recipe))
                done += 1
                if progress is not None:
                    progress(done, sum(counts))
            yield layer_tensors(block, _stacked(experts), recipe.method, naming)

    with appearing(into, replace=replace) as directory:
        copy_files(place, directory)
        write_files(directory, chain(read_rest(rest), layers()), total=len(rest) + len(counts))
        write_config(directory, {**read_json(place / "config.json"), "quantization_config": quantization})
        _reopened(directory, [block for _, block in written], counts, recipe)
    return Checkpoint(into)


def _check(source: Checkpoint, target: Path, *, replace: bool) -> None:
    if target.exists() and not replace:
        raise CheckpointError(
            f"{target} is there already: give a directory that is not, or replace it (replace=True, --force)"
        )
    if not isinstance(source.method, Unquantized):
        raise CheckpointError(
            f"{source.directory} is quantized already ({source.method.__class__.__name__}): give the plain checkpoint "
            "that it is of, rounding twice loses more than either format does"
        )
    inside, outside = target.resolve(), Path(source.directory).resolve()
    if inside == outside or outside in inside.parents or inside in outside.parents:
        raise CheckpointError(f"{target} and {source.directory} lie within each other: give a directory elsewhere")


def _written(layer: ExpertLayer, recipe: Recipe) -> tuple[Naming, str]:
    """The naming in which a layer is written, and what the names of its tensors begin with."""
    if isinstance(recipe.method, GptOssMXFP4):
        if layer.naming != GPT_OSS:
            raise CheckpointError(
                f"{recipe.name} is gpt-oss's own form, but {layer.name} is no layer of it: give mxfp4"
            )
        return layer.naming, layer.name
    if isinstance(layer.naming, PerExpert):
        return layer.naming, layer.name
    return PROJ, layer.name if layer.name.rpartition(".")[2] == "experts" else f"{layer.name}.experts"


def _quantized(source: Checkpoint, layer: ExpertLayer, expert: int, recipe: Recipe) -> ExpertWeights:
    """One expert, `[1, ...]`."""
    plain = source.read(layer.name, experts=[expert])
    if not isinstance(plain.gate_up.format, Plain):
        raise CheckpointError(f"{layer.name} is stored as {plain.gate_up.format!r}: give a plain checkpoint")
    try:
        return plain.quantize(recipe.weights)
    except FormatError as fault:
        raise CheckpointError(f"{source.directory}: {layer.name}, expert {expert}: {fault}") from fault


def _stacked(experts: Sequence[ExpertWeights]) -> ExpertWeights:
    """All experts of a layer, from one by one."""

    def joined(stored: Sequence[Quantized]) -> Quantized:
        first = stored[0]
        scales = {name: torch.cat([each.scales[name] for each in stored]) for name in first.scales}
        return Quantized(first.format, torch.cat([each.data for each in stored]), scales, first.parts)

    def bias(values: Sequence[Tensor | None]) -> Tensor | None:
        found = [value for value in values if value is not None]
        return torch.cat(found) if found else None

    return ExpertWeights(
        joined([each.gate_up for each in experts]),
        joined([each.down for each in experts]),
        bias([each.gate_up_bias for each in experts]),
        bias([each.down_bias for each in experts]),
        experts[0].output_scale,
    )


def _reopened(directory: Path, blocks: Sequence[str], counts: Sequence[int], recipe: Recipe) -> None:
    """Raise CheckpointError unless `directory` is read as what was to be written."""
    found = Checkpoint(directory)
    for block, count in zip(blocks, counts, strict=True):
        stored = found.read(block, experts=[count - 1]).gate_up.format
        if stored != recipe.weights or found.num_experts(block) != count:
            raise CheckpointError(
                f"{block} was written as {count} experts in {recipe.weights!r}, but is read as "
                f"{found.num_experts(block)} in {stored!r}"
            )
