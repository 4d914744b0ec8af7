"""Problem: one MoE layer on one rank, everything that a choice of backend may depend on, without tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from moesaic.activations import Activation
from moesaic.checks import flag, instance, whole_number
from moesaic.errors import ActivationError, ProblemError
from moesaic.layouts import Layout, Standard
from moesaic.output_norm import OutputNorm
from moesaic.quant import UNQUANTIZED, Scheme

DTYPES: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""The dtypes that hidden states, router input and output may have."""


@final
@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is to be computed. Equal problems have one hash and one repr, and the repr evaluates.

    `num_experts` L: experts held by this rank. `top_k` K: slots per token. `hidden_size` H: what the experts see,
    which differs from the model's hidden size in latent-MoE models. `intermediate_size` I. `dtype`: of hidden
    states, output and plain weights. `layout`: how rows reach the experts. `bias`: both projections have one.
    `weight_on_input`: the router weight multiplies the hidden state instead of the output (Llama-4).
    `inactive_slots`, `duplicate_ids`: ids outside `[0, L)`, or one expert twice in a row, may occur.
    `deterministic`: two runs must agree bit for bit. `graph_capture`: the call is captured in a CUDA graph.
    `differentiable`: gradients are needed.
    """

    num_experts: int
    top_k: int
    hidden_size: int
    intermediate_size: int
    activation: Activation
    dtype: torch.dtype = torch.bfloat16
    scheme: Scheme = UNQUANTIZED
    layout: Layout = Standard()
    bias: bool = False
    output_norm: OutputNorm | None = None
    weight_on_input: bool = False
    inactive_slots: bool = True
    duplicate_ids: bool = True
    deterministic: bool = False
    graph_capture: bool = False
    differentiable: bool = False

    def __post_init__(self) -> None:
        for name in ("num_experts", "top_k", "hidden_size", "intermediate_size"):
            object.__setattr__(self, name, whole_number("Problem", name, getattr(self, name), ProblemError))
        instance("Problem", "activation", self.activation, Activation, ProblemError, example="SwiGLU()")
        instance("Problem", "scheme", self.scheme, Scheme, ProblemError, example="Scheme(Plain(), Plain())")
        instance("Problem", "layout", self.layout, Layout, ProblemError, example="Standard()")
        if self.output_norm is not None:
            instance("Problem", "output_norm", self.output_norm, OutputNorm, ProblemError, example="OutputNorm()")
        if self.dtype not in DTYPES:
            raise ProblemError(f"Problem.dtype is {self.dtype!r}, but it needs one of {', '.join(map(str, DTYPES))}")
        flags = ("bias", "weight_on_input", "inactive_slots", "duplicate_ids", "deterministic", "graph_capture")
        for name in (*flags, "differentiable"):
            flag("Problem", name, getattr(self, name), ProblemError)
        for columns in (self.hidden_size, self.intermediate_size):
            self.scheme.check_columns(columns)
        for name, length in self.activation.per_expert().items():
            if length != self.num_experts:
                raise ActivationError(
                    f"{type(self.activation).__name__}.{name} holds {length} values, but the problem has "
                    f"{self.num_experts} experts: give one number, or one per local expert (Activation.select)"
                )
        if self.weight_on_input and not self.layout.has_routing:
            raise ProblemError(
                f"weight_on_input with {self.layout!r}, whose rows carry no weights: the dispatcher multiplies them "
                "into the rows, so the experts' problem has weight_on_input=False"
            )

    @property
    def width(self) -> int:
        """Columns of the first projection: 2I if the activation is gated, else I."""
        return self.activation.width(self.intermediate_size)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all experts' two projections as the scheme stores them, scales included.

        Biases and the norm's scale are not: no field states their dtype. `ExpertWeights.num_bytes` counts them.
        """
        stored, parts = self.scheme.weights, self.width // self.intermediate_size
        shapes = ((parts, self.intermediate_size, self.hidden_size), (self.hidden_size, self.intermediate_size))
        return self.num_experts * sum(stored.num_bytes(shape, self.dtype) for shape in shapes)

    @property
    def num_weights(self) -> int:
        """Numbers in the two projections of one expert, not of all `num_experts`; biases are not counted."""
        return self.hidden_size * (self.width + self.intermediate_size)

    def flops(self, num_rows: int) -> int:
        """Multiplications and additions of both projections over `num_rows` (token, slot) pairs."""
        return 2 * num_rows * self.num_weights
