"""Every tiling that the backends choose, at sizes that no block divides and at sizes that all do."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from moesaic import Problem, ReLU2, SwiGLU, known_machine
from moesaic.backends.triton_tilings import streamed_launch
from moesaic.tuning.tilings import tilings as tilings_of
from tests.backends import example, numpy_oracle
from tests.kernels.map_cases import gapped
from tests.kernels.order_cases import GARBAGE
from tests.tolerance import assert_close

ODD = {"hidden_size": 72, "intermediate_size": 40}
WHOLE = {"hidden_size": 128, "intermediate_size": 128}
LIMITS = SwiGLU(alpha=1.702, limit=(1.5, 0.5, 1.0, 2.0, 0.25))


def tilings():
    """Name -> tiling, for every mean number of rows, with and without Hopper's instructions."""
    named = {}
    for machine in ("h200", "a100"):
        for mean, tiling in tilings_of(known_machine(machine)):
            named.setdefault(streamed_launch(tiling), f"{machine}-{mean:g}")
    return {name: tiling for tiling, name in named.items()}


@dataclass(frozen=True)
class ExpertsCase:
    """Both products of five experts, of which one has no rows and weights of NaN."""

    problem: Problem

    @property
    def weights(self):
        """Those of `example`; NaN in the expert that is never named."""
        given = example.weights(self.problem)
        given.gate_up.data[example.EMPTY_EXPERT] = torch.nan
        given.down.data[example.EMPTY_EXPERT] = torch.nan
        return given

    @property
    def oracle(self):
        """What `numpy_oracle` reads."""
        return example.as_oracle(self.problem, self.weights)

    def on(self, device):
        """Both projections, both biases and the activation, as a launcher takes them."""
        from moesaic.kernels.activation_expressions import expression  # noqa: PLC0415

        given = self.weights
        biases = (given.gate_up_bias, given.down_bias)
        return (
            given.gate_up.data.to(device),
            given.down.data.to(device),
            tuple(None if bias is None else bias.to(device) for bias in biases),
            expression(self.problem.activation, device),
        )

    def rows(self, height, live, device):
        """[height, H] that lie apart, NaN where they are not `live` and between them."""
        wide = torch.full((height, self.problem.hidden_size + 8), torch.nan, dtype=self.problem.dtype)
        x = wide[:, : self.problem.hidden_size].copy_(example.rows(self.problem, height))
        x[~torch.from_numpy(live)] = torch.nan
        return wide.to(device)[:, : self.problem.hidden_size]

    def fresh(self, rows, columns, device):
        """Memory of NaN."""
        return torch.full((rows, columns), torch.nan, dtype=self.problem.dtype, device=device)


@dataclass(frozen=True)
class StreamedCase(ExpertsCase):
    """One call of `streamed_experts`. `sorted_rows`: rows lie in expert order, with gaps, and not with their tokens."""

    tiling: Any
    sorted_rows: bool = False
    top_k: int = 3

    @property
    def heights(self):
        """Two tiles and a bit, one with rows beyond the first part, nobody, one that is full, and one row."""
        whole, part = self.tiling.tile_rows, self.tiling.rows
        return (whole + 3, min(part + 1, whole), 0, part, 1)

    @property
    def ids(self):
        """[T, K]: each expert in as many slots as it has rows, in any order, and garbage."""
        ids = np.repeat(np.arange(5), self.heights)
        ids = np.concatenate([ids, np.resize((*GARBAGE, 5, 10), 5 + -(len(ids) + 5) % self.top_k)])
        return np.random.default_rng(5).permutation(ids).reshape(-1, self.top_k)

    @property
    def scales(self):
        """A router weight for every pair."""
        return np.random.default_rng(6).random(self.ids.size).astype(np.float32) + 0.5

    @property
    def owners(self):
        """Of each row of the results its expert, which is none of [0, 5) if it is undefined; and its row of x."""
        if not self.sorted_rows:
            ids = self.ids.ravel()
            return ids, np.arange(ids.size) // self.top_k
        _, spans, height = gapped(self.heights, 1, 8)
        experts = np.full(height, -1)
        for expert, (first, stop) in enumerate(spans):
            experts[first:stop] = expert
        return experts, np.arange(height)

    def run(self, device):
        """The results and a row behind them."""
        from moesaic.kernels.order_rows import order_rows  # noqa: PLC0415
        from moesaic.kernels.streamed_experts import streamed_experts  # noqa: PLC0415
        from moesaic.kernels.tile_map import map_tiles  # noqa: PLC0415

        experts, sources = self.owners
        live = np.zeros(sources.max() + 1, dtype=bool)
        live[sources[(experts >= 0) & (experts < 5)]] = True
        x = self.rows(len(live), live, device)
        if self.sorted_rows:
            offsets, _, height = gapped(self.heights, 1, 8)
            given = (torch.tensor(v, dtype=torch.int32, device=device) for v in (self.heights, offsets))
            order = map_tiles(*given, height, tile_rows=self.tiling.tile_rows)
        else:
            ids = torch.tensor(self.ids, dtype=torch.int32, device=device)
            order = order_rows(ids, 5, tile_rows=self.tiling.tile_rows)
        gate_up, down, biases, activation = self.on(device)
        inner = self.fresh(len(experts), self.problem.intermediate_size, device)
        out = self.fresh(len(experts) + 1, self.problem.hidden_size, device)
        scaled = self.problem.weight_on_input
        streamed_experts(
            x,
            order,
            gate_up,
            down,
            inner,
            out[:-1],
            tiling=self.tiling,
            activation=activation,
            biases=biases,
            top_k=0 if self.sorted_rows else self.top_k,
            row_weights=torch.from_numpy(self.scales).to(device) if scaled else None,
        )
        return out.cpu()

    def check(self, out):
        """Every row of an expert is the oracle's; every other is as it was."""
        experts, sources = self.owners
        live = (experts >= 0) & (experts < 5)
        x = example.rows(self.problem, sources.max() + 1).double().numpy()
        scales = self.scales if self.problem.weight_on_input else np.ones(len(experts))
        layer = self.oracle
        wanted = [numpy_oracle.one_row(scales[r] * x[sources[r]], experts[r], layer) for r in np.flatnonzero(live)]
        assert out[-1].isnan().all()
        assert out[:-1][~torch.from_numpy(live)].isnan().all()
        assert_close(out[:-1][torch.from_numpy(live)], np.array(wanted), self.problem.dtype)


def cases_of(name, tiling):
    """Three cases in which everything occurs that a kernel branches on."""
    float32, float16 = ({"dtype": dtype} for dtype in (torch.float32, torch.float16))
    pairs = example.problem(activation=LIMITS, bias=True, **ODD, **float32)
    scaled = dataclasses.replace(pairs, bias=False, weight_on_input=True, activation=SwiGLU())
    pointwise = example.problem(activation=ReLU2(), **WHOLE, **float16)
    yield f"{name}-pairs-bias-per-expert", StreamedCase(pairs, tiling)
    yield f"{name}-pairs-scaled", StreamedCase(dataclasses.replace(scaled, **WHOLE), tiling, top_k=1)
    yield f"{name}-rows-pointwise", StreamedCase(pointwise, tiling, sorted_rows=True)
    yield (
        f"{name}-rows-pointwise-bias",
        StreamedCase(dataclasses.replace(pointwise, bias=True, **ODD), tiling, sorted_rows=True),
    )


CASES = dict(case for name, tiling in tilings().items() for case in cases_of(name, tiling))
