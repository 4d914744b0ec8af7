"""Backends for tests only: one that keeps copies, one whose `prepare` fails on a given layer."""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

from moesaic import Backend, Capabilities, ExpertWeights, TorchGrouped


@dataclass(frozen=True)
class Packing(Backend[ExpertWeights]):
    """Keeps a copy of all weights, as a backend with a layout of its own does; computes no gradients."""

    name: ClassVar[str] = "packing"
    capabilities: ClassVar[Capabilities] = dataclasses.replace(TorchGrouped.capabilities, differentiable=False)

    def prepare(self, weights, problem):
        def packed(tensor):
            return None if tensor is None else tensor.detach().clone()

        return ExpertWeights.plain(
            packed(weights.gate_up.data),
            packed(weights.down.data),
            gate_up_bias=packed(weights.gate_up_bias),
            down_bias=packed(weights.down_bias),
            output_scale=packed(weights.output_scale),
        )

    def canonical(self, prepared, problem):
        return self.prepare(prepared, problem)

    def tensors(self, prepared):
        return prepared.tensors

    def run(self, batch, prepared, problem):
        return TorchGrouped().run(batch, prepared, problem)

    def workspace(self, problem, num_rows):
        return TorchGrouped().workspace(problem, num_rows)


@dataclass(frozen=True, eq=False)
class FailsOnLayer(Backend[ExpertWeights]):
    """`Packing`, but the preparation of one layer, counted from one, raises."""

    name: ClassVar[str] = "fails_on_layer"
    capabilities: ClassVar[Capabilities] = dataclasses.replace(TorchGrouped.capabilities, differentiable=False)
    layer: int
    fault: BaseException
    prepared: list[int] = field(default_factory=list)

    def prepare(self, weights, problem):
        self.prepared.append(len(self.prepared))
        if len(self.prepared) == self.layer:
            raise self.fault
        return Packing().prepare(weights, problem)

    def canonical(self, prepared, problem):
        return Packing().canonical(prepared, problem)

    def tensors(self, prepared):
        return prepared.tensors

    def run(self, batch, prepared, problem):
        return Packing().run(batch, prepared, problem)

    def workspace(self, problem, num_rows):
        return Packing().workspace(problem, num_rows)
