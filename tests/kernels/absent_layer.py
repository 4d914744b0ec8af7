"""A layer for launches that compile only: shapes and addresses are real, the memory behind them is never touched."""

from dataclasses import dataclass, replace
from unittest import mock

import torch

from moesaic import Activation, ExpertWeights, GroupedBatch, Machine, Problem, Routing, SwiGLU
from moesaic.backends.coded_products import coded_tokens
from moesaic.backends.device_weights import DeviceWeights
from moesaic.backends.expanded_products import expanded_tokens
from moesaic.backends.hopper_products import product_rows, product_tokens
from moesaic.backends.nibble_products import nibble_tokens
from moesaic.backends.split_products import split_tokens
from moesaic.backends.stored_products import tokens as stored_tokens
from moesaic.backends.stored_weights import StoredWeights
from moesaic.backends.triton_streamed import streamed_rows, streamed_tokens, vector_tokens
from moesaic.tuning import Product

EXPERTS = 8
TOP_K = 4


@dataclass(frozen=True)
class AbsentLayer:
    """One method for each way in which the Triton backends compute."""

    hidden: int = 2048
    inner: int = 768
    activation: Activation = SwiGLU()
    bias: bool = False
    dtype: torch.dtype = torch.bfloat16
    weight_on_input: bool = False

    @property
    def problem(self):
        """Of the layer, in the layout of tokens."""
        return Problem(
            num_experts=EXPERTS,
            top_k=TOP_K,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            activation=self.activation,
            dtype=self.dtype,
            bias=self.bias,
            weight_on_input=self.weight_on_input,
        )

    def empty(self, *shape):
        """Memory in the layer's dtype."""
        return torch.empty(shape, dtype=self.dtype)

    @property
    def prepared(self):
        """Weights that nobody drew."""
        width = self.problem.width
        biases = {"gate_up_bias": self.empty(EXPERTS, width), "down_bias": self.empty(EXPERTS, self.hidden)}
        gate_up, down = self.empty(EXPERTS, width, self.hidden), self.empty(EXPERTS, self.hidden, self.inner)
        return DeviceWeights.of(ExpertWeights.plain(gate_up, down, **(biases if self.bias else {})), self.problem)

    @property
    def plain(self):
        """Zeros, which every format stores."""
        gate_up = torch.zeros(EXPERTS, self.problem.width, self.hidden, dtype=self.dtype)
        return ExpertWeights.plain(gate_up, torch.zeros(EXPERTS, self.hidden, self.inner, dtype=self.dtype))

    def tokens(self, count):
        """Hidden states and a routing."""
        ids, weights = torch.zeros(count, TOP_K, dtype=torch.int32), torch.ones(count, TOP_K)
        return self.empty(count, self.hidden), Routing(ids, weights), self.prepared, self.problem

    def rows(self, count):
        """Rows in expert order."""
        begins = torch.arange(EXPERTS, dtype=torch.int32) * (count // EXPERTS)
        batch = GroupedBatch(self.empty(count, self.hidden), begins, torch.zeros_like(begins), alignment=64)
        return batch, self.prepared, self.problem

    def stored(self, scheme, count, machine):
        """Weights as stored: order, rounding, both products, sum; with the tiles of `machine`."""
        problem = replace(self.problem, scheme=scheme)
        prepared = StoredWeights.of(self.plain.quantize(scheme.weights), problem)
        states, routing, _, _ = self.tokens(count)
        with mock.patch.object(Machine, "current", return_value=machine):
            return stored_tokens(states, routing, prepared, problem)

    def expanded(self, scheme, count):
        """The same of many rows on Hopper."""
        problem = replace(self.problem, scheme=scheme)
        prepared = StoredWeights.of(self.plain.quantize(scheme.weights), problem)
        states, routing, _, _ = self.tokens(count)
        return expanded_tokens(states, routing, prepared, problem)

    def coded(self, scheme, count):
        """FP8 codes on both sides in grouped products on Hopper."""
        problem = replace(self.problem, scheme=scheme)
        prepared = StoredWeights.of(self.plain.quantize(scheme.weights), problem)
        states, routing, _, _ = self.tokens(count)
        return coded_tokens(states, routing, prepared, problem)

    def nibbles(self, scheme, count, tile_rows=128):
        """Codes of 4 bits in grouped products on Hopper."""
        problem = replace(self.problem, scheme=scheme)
        weights = self.plain.quantize(scheme.weights)
        if self.bias:
            biases = (self.empty(EXPERTS, self.problem.width), self.empty(EXPERTS, self.hidden))
            weights = ExpertWeights(weights.gate_up, weights.down, *biases)
        states, routing, _, _ = self.tokens(count)
        return nibble_tokens(states, routing, StoredWeights.of(weights, problem), problem, tile_rows=tile_rows)

    def split(self, scheme, count):
        """The same with rows split in two numbers of FP8."""
        problem = replace(self.problem, scheme=scheme)
        weights = self.plain.quantize(scheme.weights)
        if self.bias:
            biases = (self.empty(EXPERTS, self.problem.width), self.empty(EXPERTS, self.hidden))
            weights = ExpertWeights(weights.gate_up, weights.down, *biases)
        states, routing, _, _ = self.tokens(count)
        return split_tokens(states, routing, StoredWeights.of(weights, problem), problem)

    def vectors(self, strips):
        """Each pair by itself."""
        return vector_tokens(*self.tokens(2), strips)

    def streamed(self, tiling, *, count=64):
        """Order, both products, sum."""
        return streamed_tokens(*self.tokens(count), tiling)

    def streamed_in_place(self, tiling):
        """Rows that lie in expert order."""
        return streamed_rows(*self.rows(1024), tiling)

    def products(self, count):
        """Two products of many rows on Hopper."""
        return product_tokens(*self.tokens(count))

    def summed(self, count):
        """The same with sums between blocks of columns."""
        return product_tokens(*self.tokens(count), Product(gather=False, blocks=8))

    def products_in_place(self, count):
        """The same of rows in expert order."""
        return product_rows(*self.rows(count))
