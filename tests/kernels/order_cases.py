"""Routings for `order_rows`, and its meaning in plain Python."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from moesaic.kernels.order_rows import FEW, FEW_EXPERTS
from moesaic.kernels.row_order import HEADER

GARBAGE = (-1, -7, 2**31 - 1, -(2**31))


def routing(num_tokens, top_k, num_experts, *, empty=None, share=0.2, seed=0):
    """Skewed ids [T, K]: `share` of the slots are inactive, in every way there is; expert `empty` gets none."""
    g = np.random.default_rng(seed)
    load = np.array([0.0 if e == empty else 1 / (1 + e) for e in range(num_experts)])
    ids = g.choice(num_experts, size=(num_tokens, top_k), p=load / load.sum())
    dead = g.choice((*GARBAGE, num_experts, num_experts + 5), size=ids.shape)
    return np.where(g.random(ids.shape) < share, dead, ids).tolist()


@dataclass(frozen=True)
class OrderCase:
    """One call of `order_rows`."""

    ids: list
    num_experts: int
    tile_rows: int = 16
    spare: int = 0
    alignment: int = 1
    group: int = 1

    def run(self, device):
        """The four tensors of the order."""
        from moesaic.kernels.order_rows import order_rows  # noqa: PLC0415

        ids = torch.tensor(self.ids, dtype=torch.int32, device=device)
        sizes = {"tile_rows": self.tile_rows, "spare": self.spare, "alignment": self.alignment, "group": self.group}
        order = order_rows(ids, self.num_experts, **sizes)
        assert order.tile_rows == self.tile_rows
        return {name: getattr(order, name).cpu() for name in ("pairs", "places", "tiles", "control")}

    @property
    def owned(self):
        """Of each expert its pairs, in order."""
        flat = [expert for row in self.ids for expert in row]
        return [[p for p, expert in enumerate(flat) if expert == e] for e in range(self.num_experts)]

    def check(self, found):
        """Rows, pairs and places; then the tiles."""
        pairs, places = found["pairs"].tolist(), found["places"].tolist()
        active = {p for own in self.owned for p in own}
        assert {p for p, row in enumerate(places) if row == -1} == set(range(len(places))) - active
        spans, start = [], 0
        for own in self.owned:
            assert [places[p] for p in own] == list(range(start, start + len(own)))
            assert pairs[start : start + len(own)] == own
            spans.append((start, start + len(own)))
            start = math.ceil((start + len(own)) / self.alignment) * self.alignment
        assert start <= len(pairs)
        check_tiles(found, spans, self)


def cut(spans, tile_rows, spare):
    """(expert, first row, stop) of each tile: a new one begins where more rows are left than the last may take."""
    for expert, (first, stop) in enumerate(spans):
        row = first
        while row < stop:
            end = stop if stop - row <= tile_rows + spare else row + tile_rows
            yield expert, row, end
            row = end


def check_tiles(found, spans, case):
    """Tiles that cut `spans`, the rows (first, stop) of each expert, in groups of about `case.group`."""
    tiles, control = [tuple(tile) for tile in found["tiles"].T.tolist()], found["control"].tolist()
    wanted = list(cut(spans, case.tile_rows, case.spare))
    assert [tile[:3] for tile in tiles[: len(wanted)]] == wanted
    # Where no slot is active, the first of these is looked up all the same: it has to lead nowhere.
    assert set(tiles[len(wanted) :]) <= {(-1, 0, 0, 0, 1)}
    assert control == [len(wanted), *[0] * (HEADER - 1 + len(tiles))]
    groups = {}
    for number, (expert, _, _, first, size) in enumerate(tiles[: len(wanted)]):
        assert first <= number < first + size
        groups.setdefault(expert, {})[first] = size
    for expert, of in groups.items():
        held = sum(tile[0] == expert for tile in wanted)
        assert sum(of.values()) == held
        assert max(of.values()) - min(of.values()) <= 1
        assert len(of) == max(1, math.floor(held / case.group + 0.5))


CASES = {
    "skewed": OrderCase(routing(19, 3, 5, empty=2), 5),
    "aligned": OrderCase(routing(67, 5, 6, empty=2), 6, tile_rows=128, alignment=64, group=12),
    "spare": OrderCase(routing(211, 3, 5, empty=2), 5, tile_rows=48, spare=16, alignment=16, group=2),
    "tiles-of-48": OrderCase(routing(83, 3, 3, empty=1), 3, tile_rows=48, group=2),
    "one-pair": OrderCase([[3]], 5),
    "one-pair-of-nobody": OrderCase([[5]], 5),
    "one-expert": OrderCase(routing(33, 3, 1), 1, group=3),
    "nobody": OrderCase(routing(13, 3, 5, share=1.0), 5, alignment=64),
    "one-hot-expert": OrderCase([[4, 4, 4]] * 111, 7, group=4),
    "150-experts": OrderCase(routing(3, 7, 150, empty=2), 150, alignment=64),
    "few": OrderCase(routing(FEW // 8, 8, 9, empty=2), 9, alignment=64, group=3),
    "many": OrderCase(routing(FEW + 1, 1, 13, empty=2), 13),
    "many-aligned": OrderCase(routing(FEW // 7 + 30, 7, 13, empty=2), 13, 128, 32, alignment=32, group=2),
    "many-one-expert": OrderCase(routing(FEW + 57, 1, 1), 1, group=12),
    "many-nobody": OrderCase(routing(FEW // 3 + 1, 3, 5, share=1.0), 5),
    "many-hot": OrderCase([[3, 3, 3]] * (FEW // 3 + 20), 5, tile_rows=160, group=4),
    "896-experts": OrderCase(routing(333, 7, 896, empty=2), 896, alignment=64),
    "one-pair-of-896": OrderCase([[895]], 896, alignment=64),
    "one-expert-more": OrderCase(routing(21, 3, FEW_EXPERTS + 1), FEW_EXPERTS + 1),
}
