"""Checkpoint: what a directory of safetensors files holds, and reading the experts of a layer from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch

from moesaic.activations import Activation
from moesaic.checkpoints.configuration import configured_dtype, configured_experts, read_configuration
from moesaic.checkpoints.files import TensorFiles
from moesaic.checkpoints.layers import ExpertLayer, find_layers, layer_named, main_stack
from moesaic.checkpoints.matrix import StoredMatrix
from moesaic.checkpoints.methods import Method, Settings, method_of
from moesaic.checkpoints.naming import NAMINGS, Naming, PerExpert
from moesaic.checkpoints.reading import Progress, read_layer
from moesaic.errors import CheckpointError
from moesaic.problem import Problem
from moesaic.quant import Plain, Scheme
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A directory with `config.json` and `*.safetensors`: its quantization and its layers with experts.

    Constructing it reads names and headers, no weight. `namings` are tried in order; give your own for a model that is
    not known. Raises CheckpointError, naming what is wrong, also if no layer has experts.
    """

    directory: str | Path
    namings: tuple[Naming, ...] = NAMINGS
    config: Mapping[str, Any] = field(init=False, repr=False)
    method: Method = field(init=False)
    layers: tuple[ExpertLayer, ...] = field(init=False, repr=False)
    _files: TensorFiles = field(init=False, repr=False)

    def __post_init__(self) -> None:
        directory = Path(self.directory)
        config = read_configuration(directory)
        place = f"{directory / 'config.json'}: quantization_config"
        method = method_of(Settings(place, config["quantization_config"] or {}))
        files = TensorFiles.of(directory)
        layers = find_layers(files, config, self.namings)
        if not layers:
            raise CheckpointError(
                f"{directory} has no tensor that is named as experts are (for instance model.layers.0.mlp.experts.0."
                "up_proj.weight): give an MoE model, or a Naming"
            )
        values = {"directory": directory, "config": config, "method": method, "layers": layers, "_files": files}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def layer(self, asked: int | str) -> ExpertLayer:
        """The layer of that number in the stack with most of them, or of that name (`mtp.layers.0.mlp.experts`)."""
        return layer_named(self.layers, asked, self.directory)

    def num_experts(self, layer: int | str) -> int:
        """E of a layer. Raises CheckpointError if tensors and configuration count differently."""
        asked = self.layer(layer)
        with self._files.opened() as files:
            found = asked.naming.num_experts(asked.name, files, self.config)
        wanted = configured_experts(self.config)
        if (
            isinstance(asked.naming, PerExpert)
            and asked.stack == main_stack(self.layers)
            and wanted not in {None, found}
        ):
            raise CheckpointError(
                f"{self.directory} has tensors of {found} experts in {asked.name}, but config.json says {wanted}: "
                "complete the checkpoint"
            )
        return found

    def read(
        self,
        layer: int | str,
        *,
        experts: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
        progress: Progress | None = None,
    ) -> ExpertWeights:
        """The weights of `experts` (all if None; `range(32, 64)` for a rank) of `layer`, in the format of the files.

        Only their bytes are read, each copied once to its place on `device`: what is allocated is the result, and one
        matrix where a convention packs otherwise. `progress` is called after each expert with the numbers done and
        in all. Raises CheckpointError naming file and tensor; then nothing is kept.
        """
        asked, total = self.layer(layer), self.num_experts(layer)
        chosen = range(total) if experts is None else experts
        wrong = [expert for expert in chosen if not 0 <= expert < total]
        if wrong or not len(chosen):
            raise CheckpointError(f"experts is {experts!r}, but {asked.name} needs some of 0 to {total - 1}")
        with self._files.opened() as files:
            return read_layer(
                files,
                asked,
                self.method,
                self.config,
                experts=chosen,
                device=torch.device(device),
                progress=progress,
            )

    def scheme(self, layer: int | str, *, expert: int = 0) -> Scheme:
        """The format of the weights of `layer`, and that of its inputs as its makers serve it; reads `expert` alone."""
        weights = self.read(layer, experts=(expert,)).gate_up.format
        asked = self.layer(layer)
        with self._files.opened() as files:
            arrangement = asked.naming.arrangement(asked.name, files)
            piece = asked.naming.pieces(asked.name, expert, self.num_experts(layer), arrangement)[0]
            module = StoredMatrix(files, piece).module
        return Scheme(weights, Plain() if isinstance(weights, Plain) else self.method.inputs(module))

    def problem(
        self, layer: int | str, *, activation: Activation, top_k: int, num_experts: int | None = None, expert: int = 0
    ) -> Problem:
        """The problem of `layer` with `num_experts` local experts (all if None); reads `expert` alone.

        What applies between the projections, and to how many experts a token goes, no tensor says.
        """
        first = self.read(layer, experts=(expert,))
        inner, rows = first.down.shape[-1], first.gate_up.shape[-2]
        if activation.width(inner) != rows:
            raise CheckpointError(
                f"{self.layer(layer).name} has {rows} rows for an intermediate size of {inner}, which {activation!r} "
                f"does not read: it needs {activation.width(inner)}"
            )
        plain = first.gate_up.data.dtype if isinstance(first.gate_up.format, Plain) else None
        return Problem(
            num_experts=num_experts or self.num_experts(layer),
            top_k=top_k,
            hidden_size=first.gate_up.shape[-1],
            intermediate_size=inner,
            activation=activation,
            dtype=plain or configured_dtype(self.config),
            scheme=self.scheme(layer, expert=expert),
            bias=first.down_bias is not None,
        )


def read_experts(
    directory: str | Path,
    layer: int | str,
    *,
    experts: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> ExpertWeights:
    """`Checkpoint(directory).read(layer, ...)`: the experts of one layer, or one rank's, straight from safetensors."""
    return Checkpoint(Path(directory)).read(layer, experts=experts, device=device, progress=progress)
