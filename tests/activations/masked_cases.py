"""Cases of the count-aware activation, the same for every implementation, and what numpy expects of them."""

import dataclasses
import warnings
from collections.abc import Callable

import numpy as np
import torch

from moesaic import GeGLU, PowLU, ReLU2, SiTU, SwiGLU, SwiGLUStep
from tests.activations import formulas
from tests.tolerance import assert_close

SENTINEL = 42.0
"""What the caller's buffer holds before the call."""

POISONS = (float("nan"), 1e4, float("inf"))
FOUR_EXPERTS = (
    SwiGLU(alpha=(1.0, 1.702, 1.0, 0.5), beta=(0.0, 1.0, 2.0, 0.0), limit=(7.0, 1.0, 2.0, 0.5)),
    SwiGLUStep(limit=(1.0, 7.0, 0.5, 2.0)),
    SiTU(gate_scale=(4.0, 2.0, 1.0, 8.0), linear_scale=(25.0, 3.0, 1.0, 2.0)),
    PowLU(exponent=(2.5, 1.0, 3.0, 4.0), limit=(1.0, 2.0, 4.0, 8.0)),
    ReLU2(limit=(0.5, 1.0, 2.0, 4.0)),
)
GARBAGE_IDS = (-1, 4, 2**31 - 1, -(2**31), 4096)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Arguments of one call; `rows(poison)` has that value in every undefined place."""

    name: str
    activation: object
    rows: Callable
    counts: torch.Tensor
    out: Callable
    expert_ids: torch.Tensor | None = None

    @property
    def live(self):
        """Which rows are defined."""
        capacity = self.rows(0.0).shape[-2]
        live = np.arange(capacity) < self.counts.numpy()[..., None]
        ids = self.expert_ids
        return live if ids is None else live & (ids.numpy() >= 0) & (ids.numpy() < 4)

    def expected(self):
        """The float64 value of every row, each by the constants of its expert."""
        rows = self.rows(0.0).double().numpy()
        experts = np.arange(len(rows))[:, None] if rows.ndim == 3 else 0
        if self.expert_ids is not None:
            experts = self.expert_ids.numpy()
        experts = np.broadcast_to(experts, rows.shape[:-1])
        lengths = self.activation.per_expert()
        if not lengths:
            return formulas.expected(self.activation, rows)
        out = np.zeros((*rows.shape[:-1], self.out().shape[-1]))
        for e in range(4):
            own = experts == e
            out[own] = formulas.expected(self.activation.select((e,)), rows[own])
        return out

    def run(self, apply, poison):
        """The buffer after the call."""
        rows, out = self.rows(poison), self.out()
        before = rows.clone()
        returned = apply(self.activation, rows, self.counts, out=out, expert_ids=self.expert_ids)
        assert returned is out
        same = rows.isnan() & before.isnan() | (rows == before)
        assert same.all(), "the input was changed"
        return out

    def check(self, out):
        """Live rows are the oracle's, every other row has the bits that it had."""
        live = self.live
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_close(out[torch.from_numpy(live)], self.expected()[live], out.dtype)
        rest = out[torch.from_numpy(~live)]
        assert torch.equal(rest, torch.full_like(rest, SENTINEL))


def case(activation, counts, shape, *, dtype=torch.float32, out_dtype=None, expert_ids=None, seed=0):
    """`shape` is that of the output; counts a number or a list."""
    width = activation.width(shape[-1])
    source = np.random.default_rng(seed).normal(0.0, 2.0, (*shape[:-1], width))
    counts = torch.tensor(counts, dtype=torch.int32)
    ids = None if expert_ids is None else torch.tensor(expert_ids, dtype=torch.int32)

    def rows(poison):
        given = torch.from_numpy(source).to(dtype)
        dead = torch.arange(shape[-2]) >= counts.unsqueeze(-1)
        if ids is not None:
            dead = dead | (ids < 0) | (ids >= 4)
        given[dead] = poison
        return given

    def out():
        return torch.full(shape, SENTINEL, dtype=out_dtype or dtype)

    dtypes = f"{str(dtype)[6:]}-{str(out_dtype or dtype)[6:]}"
    name = f"{activation!r}-{list(shape)}-{counts.tolist()}-{dtypes}" + ("-ids" if ids is not None else "")
    return Case(name, activation, rows, counts, out, ids)


def _ids(length):
    ids = np.random.default_rng(3).integers(0, 4, length)
    ids[1 : 2 * len(GARBAGE_IDS) : 2] = GARBAGE_IDS
    return ids.tolist()


def every():
    """One axis at a time: activations, per-expert constants, counts, dtypes, sizes."""
    for activation in formulas.CASES:
        yield case(activation, 11, (17, 65))
        yield case(activation, [11, 0, 17, 1], (4, 17, 65))
    for activation in FOUR_EXPERTS:
        yield case(activation, [11, 3, 17, 1], (4, 17, 65))
        yield case(activation, 13, (17, 65), expert_ids=_ids(17))
    for count in (0, 1, 17, 18, -1, 2**31 - 1, -(2**31)):
        yield case(SwiGLU(), count, (17, 5))
        yield case(ReLU2(), [count, 2], (2, 17, 5))
    for dtype in (torch.float16, torch.bfloat16):
        for out_dtype in (dtype, torch.float32):
            yield case(SiTU(), 11, (17, 65), dtype=dtype, out_dtype=out_dtype)
            yield case(GeGLU(), [9, 17], (2, 17, 65), dtype=dtype, out_dtype=out_dtype)
        yield case(SwiGLU(), 11, (17, 65), out_dtype=dtype)
    for shape in ((0, 5), (4, 0), (0, 4, 5), (3, 0, 5), (3, 1030), (2, 3, 2049), (1, 1), (300, 16)):
        counts = [2] * shape[0] if len(shape) == 3 else max(shape[0] - 1, 0)
        yield case(SwiGLU(), counts, shape)
    yield case(SwiGLU(), [0, 200, 0, 0, 1, 190, 0], (7, 200, 16))


EVERY = {c.name: c for c in every()}


SPECIAL = (-np.inf, -90.0, -30.0, -2.0, -1e-3, -0.0, 0.0, 1e-5, 0.5, 1.0, 3.0, 8.0, 50.0, np.inf, np.nan)


def special_rows(activation):
    """One row of every pair of special values as gate and up, or of every value on its own."""
    if not activation.gated:
        return torch.tensor([SPECIAL], dtype=torch.float32)
    gate, up = np.meshgrid(SPECIAL, SPECIAL, indexing="ij")
    return torch.from_numpy(np.concatenate([gate.ravel(), up.ravel()])[None].astype(np.float32))


def specials(apply, device="cpu"):
    """repr -> the value of the special rows."""
    one = torch.tensor(1, dtype=torch.int32, device=device)
    return {repr(a): apply(a, special_rows(a).to(device), one).cpu() for a in formulas.CASES}


def check_specials(outs):
    """NaN and infinity come out where the formula has them, and small values keep their leading digits."""
    for activation in formulas.CASES:
        wanted = formulas.expected(activation, special_rows(activation).double().numpy())
        got = outs[repr(activation)].numpy()
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6, err_msg=repr(activation))


def strided(apply, device="cpu"):
    """Rows and out as views into wider memory, with gaps between rows, slabs and columns: (got, wanted, canaries)."""
    memory, target = torch.full((3, 9, 40), float("nan")).to(device), torch.full((3, 20, 11), SENTINEL).to(device)
    rows, out = memory[:, 1:8, 3:33:3], target[:, 2:16:2, 1:6]
    rows.copy_(torch.linspace(-3, 3, rows.numel()).view(rows.shape))
    counts = torch.tensor([7, 2, 0], dtype=torch.int32, device=device)
    wanted = apply(SwiGLU(), rows.contiguous(), counts, out=torch.full((3, 7, 5), SENTINEL, device=device))
    apply(SwiGLU(), rows, counts, out=out)
    got = out.clone()
    out.fill_(SENTINEL)
    return got, wanted, target
