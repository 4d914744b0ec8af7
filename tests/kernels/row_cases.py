"""Rows brought to their places and summed back, in numpy."""

from dataclasses import dataclass

import numpy as np
import torch

from tests.kernels.order_cases import routing

EXPERTS = 5


@dataclass(frozen=True)
class RowCase:
    """Tokens [T, H] with a routing, of which some slots are inactive."""

    num_tokens: int
    hidden: int
    top_k: int = 3
    dtype: torch.dtype = torch.float16
    weighted: bool = True
    placed: bool = True

    @property
    def ids(self):
        """[T, K], with a token that no expert has."""
        ids = np.array(routing(self.num_tokens, self.top_k, EXPERTS, empty=2, seed=self.hidden))
        ids[self.num_tokens // 2] = EXPERTS
        return ids

    @property
    def active(self):
        """[T, K]."""
        return (self.ids >= 0) & (self.ids < EXPERTS)

    @property
    def places(self):
        """Any row that no other pair has, with gaps; -1 where a slot is inactive."""
        free = np.random.default_rng(self.hidden).permutation(2 * self.ids.size)[: self.ids.size]
        return np.where(self.active, free.reshape(self.ids.shape), -1).astype(np.int32)

    @property
    def weights(self):
        """NaN where a slot is inactive."""
        drawn = np.random.default_rng(1).random(self.ids.shape).astype(np.float32) + 0.1
        return np.where(self.active, drawn, np.float32(np.nan))

    def drawn(self, rows):
        """Normal values in the case's dtype."""
        return torch.randn(rows, self.hidden, generator=torch.Generator().manual_seed(3)).to(self.dtype)

    def tensor(self, values, device, dtype):
        return torch.tensor(values, dtype=dtype, device=device)


@dataclass(frozen=True)
class CombineCase(RowCase):
    """One call of `combine_rows`."""

    @property
    def rows(self):
        """NaN where no pair has its row."""
        rows = self.drawn(2 * self.ids.size if self.placed else self.ids.size)
        taken = self.places[self.active] if self.placed else np.flatnonzero(self.active)
        free = torch.ones(len(rows), dtype=torch.bool)
        free[torch.from_numpy(np.asarray(taken, dtype=np.int64))] = False
        rows[free] = torch.nan
        return rows

    def run(self, device):
        """The sums."""
        from moesaic.kernels.combine_rows import combine_rows  # noqa: PLC0415

        ids = self.tensor(self.ids, device, torch.int32)
        weights = self.tensor(self.weights, device, torch.float32) if self.weighted else None
        places = self.tensor(self.places.ravel(), device, torch.int32) if self.placed else None
        out = torch.full((self.num_tokens + 1, self.hidden), torch.nan, dtype=self.dtype, device=device)
        combine_rows(self.rows.to(device), ids, weights, places, EXPERTS, out[:-1])
        return out.cpu()

    def check(self, out):
        """Sums in float32, in the order of the slots, rounded once."""
        rows, places = self.rows.float().numpy(), self.places
        wanted = np.zeros((self.num_tokens, self.hidden), dtype=np.float32)
        for token, slot in np.argwhere(self.active):
            row = rows[places[token, slot] if self.placed else token * self.top_k + slot]
            wanted[token] += row * self.weights[token, slot] if self.weighted else row
        assert out[-1].isnan().all()
        got, wanted = out[:-1], torch.from_numpy(wanted).to(self.dtype)
        torch.testing.assert_close(got, wanted)
        if (
            self.dtype != torch.float32
        ):  # a GPU multiplies and adds in one rounding: hardly ever a bit of a narrow dtype
            assert (got != wanted).double().mean() < (0.01 if self.weighted else 1e-9)
        assert not out[self.num_tokens // 2].any()


@dataclass(frozen=True)
class SpreadCase(RowCase):
    """One call of `spread_rows`, of tokens that lie apart."""

    def run(self, device):
        """The rows, NaN where nothing was written."""
        from moesaic.kernels.spread_rows import spread_rows  # noqa: PLC0415

        wide = torch.full((self.num_tokens, self.hidden + 8), torch.nan, dtype=self.dtype, device=device)
        x = wide[:, : self.hidden].copy_(self.drawn(self.num_tokens))
        places = self.tensor(self.places.ravel(), device, torch.int32)
        weights = self.tensor(self.weights, device, torch.float32) if self.weighted else None
        out = torch.full((2 * self.ids.size + 1, self.hidden), torch.nan, dtype=self.dtype, device=device)
        spread_rows(x, places, weights, self.top_k, out[:-1])
        return out.cpu()

    def check(self, out):
        """Copies, times the weight in float32 and rounded once: every bit; all other rows as they were."""
        x = self.drawn(self.num_tokens).float().numpy()
        wanted = np.full(tuple(out.shape), np.nan, dtype=np.float32)
        for token, slot in np.argwhere(self.active):
            scale = self.weights[token, slot] if self.weighted else np.float32(1)
            wanted[self.places[token, slot]] = x[token] * scale
        assert torch.equal(out.nan_to_num(-7.0), torch.from_numpy(wanted).to(self.dtype).nan_to_num(-7.0))


CASES = {
    "combine": CombineCase(7, 72),
    "combine-float32": CombineCase(7, 300, dtype=torch.float32),
    "combine-as-they-are": CombineCase(7, 257, weighted=False),
    "combine-by-pair": CombineCase(7, 72, placed=False),
    "combine-one-slot": CombineCase(3, 1, top_k=1),
    "combine-many-tokens": CombineCase(65, 1030, top_k=2),
    "combine-22-slots": CombineCase(3, 40, top_k=22, weighted=False, placed=False),
    "spread": SpreadCase(7, 72),
    "spread-float32": SpreadCase(7, 2055, dtype=torch.float32),
    "spread-as-they-are": SpreadCase(7, 257, weighted=False),
    "spread-one-slot": SpreadCase(3, 1, top_k=1),
}
