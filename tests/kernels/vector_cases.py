"""Every pair of strips that `TritonGrouped` chooses for a known model, on a few tokens."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from moesaic import ReLU2, SwiGLU
from moesaic.backends.triton_tilings import vector_launch
from moesaic.models import MODELS
from moesaic.tuning.strips import strips as strips_for
from tests.backends import example, numpy_oracle
from tests.kernels.streamed_cases import LIMITS, ODD, WHOLE, ExpertsCase
from tests.tolerance import assert_close


def strips():
    """Name of a model -> strips for one token of it, until each product's every strip was there."""
    named, seen = {}, set()
    for model in MODELS:
        found = vector_launch(strips_for(model.problem, 1))
        if not seen.issuperset(enumerate(found)):
            named[model.name] = found
            seen.update(enumerate(found))
    return named


@dataclass(frozen=True)
class VectorCase(ExpertsCase):
    """One call of `vector_experts`."""

    strips: Any
    num_tokens: int = 3

    @property
    def routing(self):
        """Ids outside of the range with weights of NaN: at some slots, and at all of the last of several tokens."""
        routing = example.routing(self.problem, self.num_tokens, garbage=False, seed=11)
        garbage = torch.tensor([10, 5, -1, 2**31 - 1, -(2**31)], dtype=torch.int32)
        routing.topk_ids[:, 1:2] = garbage[: self.num_tokens, None]
        if self.num_tokens > 1:
            routing.topk_ids[-1] = garbage[-self.problem.top_k :]
        dead = (routing.topk_ids < 0) | (routing.topk_ids >= 5)
        routing.topk_weights[dead] = torch.nan
        return routing, (~dead).any(1).numpy()

    def run(self, device):
        """The sums and a row behind them."""
        from moesaic.kernels.vector_experts import vector_experts  # noqa: PLC0415

        routing, live = self.routing
        gate_up, down, biases, activation = self.on(device)
        out = self.fresh(self.num_tokens + 1, self.problem.hidden_size, device)
        vector_experts(
            self.rows(self.num_tokens, live, device),
            routing.topk_ids.to(device),
            routing.topk_weights.to(device),
            gate_up,
            down,
            self.fresh(routing.topk_ids.numel(), self.problem.intermediate_size, device),
            out[:-1],
            strips=self.strips,
            activation=activation,
            biases=biases,
            weight_on_input=self.problem.weight_on_input,
        )
        return out.cpu()

    def check(self, out):
        """The oracle's sums; zero where nobody computes."""
        routing, live = self.routing
        x = example.rows(self.problem, self.num_tokens).double().numpy()
        weights = np.nan_to_num(routing.topk_weights.double().numpy())
        assert live.any()
        assert out[-1].isnan().all()
        assert not out[:-1][~torch.from_numpy(live)].any()
        assert_close(
            out[:-1], numpy_oracle.tokens(x, routing.topk_ids.numpy(), weights, self.oracle), self.problem.dtype
        )


def cases_of(name, found):
    """What a kernel branches on: gate, bias, constants, the weight's place, sizes that a block divides or not."""
    gated = example.problem(activation=LIMITS, bias=True, dtype=torch.float32, **ODD)
    pointwise = example.problem(activation=ReLU2(), dtype=torch.float16, **WHOLE)
    yield f"{name}-bias-per-expert", VectorCase(gated, found)
    scaled = dataclasses.replace(gated, weight_on_input=True, top_k=2, hidden_size=found[0].depth + 8)
    yield f"{name}-scaled", VectorCase(scaled, found, num_tokens=1)
    whole = dataclasses.replace(gated, activation=SwiGLU(), bias=False, top_k=1, **blocks(found))
    yield f"{name}-whole", VectorCase(whole, found, num_tokens=1)
    yield f"{name}-pointwise", VectorCase(pointwise, found, num_tokens=1)


def blocks(found):
    """The smallest sizes that the first product's strip divides."""
    return {"hidden_size": found[0].depth, "intermediate_size": 2 * found[0].columns}


def long_rows():
    """Inner rows of one whole block of the second product's and a part, beside the widest first strip."""
    widest = max((up for up, _ in strips().values()), key=lambda up: up.columns)
    for down in {down for _, down in strips().values()}:
        sizes = {"hidden_size": 72, "intermediate_size": down.depth + 8, "top_k": 2}
        case = example.problem(activation=LIMITS, bias=True, dtype=torch.float32, **sizes)
        yield f"inner-{down.depth + 8}", VectorCase(case, (widest, down), num_tokens=2)


CASES = dict([*long_rows(), *(case for name, found in strips().items() for case in cases_of(name, found))])
