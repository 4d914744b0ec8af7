"""Layers with weights as stored: every scheme of the package, tokens and rows in place, and each kind of tiling."""

from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import torch

from moesaic import FP8, INT4, INT8, SCHEMES, GroupedBatch, PerGroup, PerRow, Plain, Scheme, SwiGLU
from moesaic.backends import stored_products
from moesaic.backends.stored_weights import StoredWeights
from moesaic.quant.schemes import FP8_BLOCK, FP8_TENSOR, MXFP4_MXFP8, NVFP4_NVFP4, UNQUANTIZED
from tests.backends import example
from tests.quant import layer_oracle
from tests.tolerance import assert_close

ODD = {"hidden_size": 72, "intermediate_size": 40}
BLOCKS = {"hidden_size": 136, "intermediate_size": 256}
COUNTS = (5, 0, 33, 0, 17)
LIMITS = SwiGLU(alpha=1.702, limit=(1.5, 0.5, 1.0, 2.0, 0.25))
MORE = (
    Scheme(FP8(PerRow(), scale=torch.bfloat16), Plain()),
    Scheme(INT4(PerGroup(128), scale=torch.float16), Plain()),
    Scheme(INT4(PerRow()), Plain()),
    Scheme(INT4(PerGroup(128), zero_point=True, scale=torch.float16), Plain()),
    Scheme(INT8(PerGroup(128), scale=torch.bfloat16), FP8(PerRow(), scale=torch.float16)),
    Scheme(INT4(PerGroup(32), scale=torch.bfloat16), Plain()),
    Scheme(INT4(PerGroup(64)), Plain()),
)
"""Formats that checkpoints hold and no named scheme has."""


@dataclass(frozen=True)
class StoredCase:
    """One call of a layer; `tiling`: the launcher's own if None; `grouped`: rows lie in expert order, with gaps."""

    problem: object
    grouped: bool = False
    tiling: object = None

    @property
    def given(self):
        """(weights as stored, what the oracle reads of them)."""
        case = self.problem
        plain = example.weights(replace(case, scheme=UNQUANTIZED))
        oracle = example.as_oracle(case, plain)
        oracle["gate_up"] = layer_oracle.read_weights(oracle["gate_up"], case.scheme.weights, 2)
        oracle["down"] = layer_oracle.read_weights(oracle["down"], case.scheme.weights, 1)
        return plain.quantize(case.scheme.weights), oracle

    @property
    def rows_in_order(self):
        """(rows with NaN in the gaps, offsets, expert of each row or -1)."""
        offsets, owner, at = [], [], 3
        for count in COUNTS:
            offsets.append(at)
            at += count + 3
        owner = np.full(at, -1)
        for expert, (start, count) in enumerate(zip(offsets, COUNTS, strict=True)):
            owner[start : start + count] = expert
        rows = example.rows(self.problem, at)
        rows[torch.from_numpy(owner < 0)] = torch.nan
        return rows, offsets, owner

    def run(self, device):
        """What the layer answers."""
        case = self.problem
        weights, _ = self.given
        prepared = StoredWeights.of(weights, case)
        own = stored_products.stored_tiling
        with mock.patch.object(stored_products, "stored_tiling", lambda *a, **k: self.tiling or own(*a, **k)):
            if self.grouped:
                rows, offsets, _ = self.rows_in_order
                index = {"dtype": torch.int32, "device": device}
                batch = GroupedBatch(rows.to(device), torch.tensor(offsets, **index), torch.tensor(COUNTS, **index))
                return stored_products.in_place(batch, prepared, case).cpu()
            routing = example.routing(case, 19)
            return stored_products.tokens(example.rows(case, 19).to(device), routing, prepared, case).cpu()

    def check(self, found):
        """Every row that is owed is the oracle's."""
        _, oracle = self.given
        inputs = self.problem.scheme.inputs
        if self.grouped:
            rows, _, owner = self.rows_in_order
            live = owner >= 0
            wanted = layer_oracle.expert_rows(
                rows[torch.from_numpy(live)].double().numpy(), owner[live], oracle, inputs
            )
            assert_close(found[torch.from_numpy(live)], wanted, self.problem.dtype)
        else:
            rows, routing = example.rows(self.problem, 19).double().numpy(), example.routing(self.problem, 19)
            ids, p = routing.topk_ids.numpy(), routing.topk_weights.double().numpy()
            assert_close(found, layer_oracle.tokens(rows, ids, p, oracle, inputs), self.problem.dtype)


def tilings():
    """Each kind: wgmma or not, TMA or not."""
    from moesaic.kernels.stored_experts import StoredTiling  # noqa: PLC0415

    yield "swapped", StoredTiling(16, up=16, down=32, stages=2, warps=4, swap=True)
    yield "tma", StoredTiling(32, up=32, down=64, stages=2, warps=4, swap=True, tma=True)
    yield "narrow", StoredTiling(16, up=32, down=32, stages=2, warps=2, swap=False)


def cases():
    """Every scheme once, in turn over what else there is; then what a kernel branches on."""
    base = example.problem(dtype=torch.float32, activation=LIMITS)
    schemes = [scheme for scheme in (*SCHEMES, *MORE) if scheme != UNQUANTIZED]
    for number, scheme in enumerate(schemes):
        sizes = BLOCKS if number % 2 else ODD
        case = replace(base, scheme=scheme, bias=number % 3 == 0, weight_on_input=number % 4 == 1, **sizes)
        yield f"{number}-tokens", StoredCase(case)
    for scheme in (FP8_BLOCK, FP8_TENSOR, MXFP4_MXFP8, NVFP4_NVFP4):
        yield f"{scheme.weights}-rows", StoredCase(replace(base, scheme=scheme, **BLOCKS), grouped=True)
    for name, tiling in tilings():
        for scheme in (Scheme(INT4(PerGroup(128)), Plain()), NVFP4_NVFP4):
            case = replace(base, scheme=scheme, hidden_size=144, intermediate_size=272)
            yield f"{scheme.weights}-{name}", StoredCase(case, tiling=tiling)


CASES = dict(cases())
