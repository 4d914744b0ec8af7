"""Weights read back into memory, and rows rounded to a format, by kernels: bit for bit what the formats say."""

from dataclasses import dataclass

import torch

from moesaic import FP8, SCHEMES, ExpertWeights, Format, PerGroup, PerRow, Plain, Problem, Scheme, SwiGLU
from moesaic.backends.format_forms import rounded_form
from moesaic.backends.stored_weights import StoredWeights
from tests.kernels.stored_cases import MORE

EXPERTS, HIDDEN, INNER = 3, 136, 72


def drawn(*shape, seed):
    """Numbers of very different size."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g) * torch.exp2(torch.randint(-6, 3, (*shape[:-1], 1), generator=g).float())


@dataclass(frozen=True)
class Expanded:
    """Both projections of a layer with one expert of zeros."""

    format: Format

    @property
    def weights(self):
        """As stored."""
        gate_up, down = drawn(EXPERTS, 2 * INNER, HIDDEN, seed=1), drawn(EXPERTS, HIDDEN, INNER, seed=2)
        gate_up[1], down[1] = 0, 0
        return ExpertWeights.plain(gate_up, down).quantize(self.format)

    def run(self, device):
        """[gate_up, down] in float32, and the canonical form again."""
        from moesaic.kernels.expand_weights import expand_weights  # noqa: PLC0415

        case = Problem(
            num_experts=EXPERTS,
            top_k=1,
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            activation=SwiGLU(),
            dtype=torch.float32,
            scheme=Scheme(self.format, Plain()),
        )
        prepared = StoredWeights.of(self.weights, case)
        found = [
            expand_weights(p.stored, INNER if p is prepared.gate_up else HIDDEN, p.origin.shape[-1], torch.float32)
            for p in (prepared.gate_up, prepared.down)
        ]
        return [*found, *prepared.canonical().tensors]

    def check(self, found):
        """Both are what the formats read, bit for bit, and the canonical form is the one that came."""
        weights = self.weights
        for got, stored in zip(found, (weights.gate_up, weights.down), strict=False):
            assert torch.equal(got, stored.dequantize(torch.float32))
        for got, came in zip(found[2:], weights.tensors, strict=True):
            assert torch.equal(got.view(torch.uint8), came.contiguous().view(torch.uint8))


@dataclass(frozen=True)
class Rounded:
    """Rows of which only some are live, the others NaN, and one holds an infinity."""

    format: Format
    counts = (5, 0, 4)

    @property
    def rows(self):
        """[R, 136]."""
        rows = drawn(12, HIDDEN, seed=3)
        rows[5] = 0
        rows[0, 7], rows[6, 3] = torch.inf, torch.nan
        rows[[9, 10, 11]] = torch.nan
        return rows

    def run(self, device):
        """The rows rounded."""
        from moesaic.kernels.round_rows import round_rows  # noqa: PLC0415
        from moesaic.kernels.tile_map import map_tiles  # noqa: PLC0415

        index = {"dtype": torch.int32}
        order = map_tiles(torch.tensor(self.counts, **index), torch.tensor([0, 5, 5], **index), 12, tile_rows=16)
        return round_rows(self.rows.to(device), order, rounded_form(self.format), torch.float32)

    def check(self, found):
        """Live rows are what the format says of them, bit for bit."""
        live = self.rows[:9]
        assert torch.equal(found[:9].isnan(), live.isnan())
        assert torch.equal(found[:9].nan_to_num(nan=0.5), self.format.round_trip(live).nan_to_num(nan=0.5))


@dataclass(frozen=True)
class Spread:
    """Tokens rounded to codes and written to the rows of their pairs, or, without slots, to their own."""

    format: Format
    slots: int = 0
    weighted: bool = False

    @property
    def given(self):
        """(tokens [9, 136] with an infinity, a NaN and a row of zeros; row of each pair, -1 for none; its weight)."""
        rows = drawn(9, HIDDEN, seed=3)
        rows[5] = 0
        rows[0, 7], rows[6, 3] = torch.inf, torch.nan
        places = torch.randperm(30, generator=torch.Generator().manual_seed(4))[: 9 * max(1, self.slots)].int()
        places[4] = -1
        return rows, places, torch.linspace(-2, 3, places.numel())

    def run(self, device):
        """Codes and scales of 30 rows, undefined ones of 77."""
        from moesaic.kernels.spread_codes import spread_codes  # noqa: PLC0415

        rows, places, weights = self.given
        if not self.slots:
            return spread_codes(rows.to(device), None, None, 1, 9, rounded_form(self.format))
        weighted = weights.to(device) if self.weighted else None
        return spread_codes(rows.to(device), places.to(device), weighted, self.slots, 30, rounded_form(self.format))

    def check(self, found):
        """Codes times scales are what the format says, bit for bit."""
        codes, scales = found[0].cpu(), found[1].cpu()
        rows, places, weights = self.given
        if not self.slots:
            places = torch.arange(9)
        for pair, place in enumerate(places.tolist()):
            if place >= 0:
                row = rows[pair // max(1, self.slots)]
                row = row * weights[pair] if self.weighted else row
                scale = scales[:, place].repeat_interleave(128 if scales.shape[0] > 1 else HIDDEN)[:HIDDEN]
                wanted = self.format.round_trip(row[None])[0]
                read = codes[place].float() * scale
                assert torch.equal(read.isnan(), ~row.isfinite())  # E4M3 has no infinity
                assert torch.equal(read[row.isfinite()], wanted[row.isfinite()])


SPREAD = {
    f"spread-{f}-{slots}{'-weighted' if weighted else ''}": Spread(f, slots, weighted)
    for f in (FP8(PerGroup(128)), FP8(PerRow()), FP8(PerGroup(128), scale=torch.float8_e8m0fnu))
    for slots, weighted in ((0, False), (3, False), (3, True))
}
CASES = {
    **SPREAD,
    **{f"expanded-{f}": Expanded(f) for f in dict.fromkeys(s.weights for s in (*SCHEMES, *MORE)) if f != Plain()},
    **{f"rounded-{f}": Rounded(f) for f in dict.fromkeys(s.inputs for s in (*SCHEMES, *MORE)) if f != Plain()},
}
