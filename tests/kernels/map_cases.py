"""Rows that lie in expert order, for `map_tiles`; cut as `order_cases.check_tiles` says."""

from dataclasses import dataclass

import torch

from moesaic.kernels.row_order import HEADER
from tests.kernels.order_cases import check_tiles


@dataclass(frozen=True)
class MapCase:
    """One call of `map_tiles`. `spans`: the rows of each expert that are to be computed."""

    counts: tuple
    offsets: tuple | None
    num_rows: int
    spans: tuple
    tile_rows: int = 16
    spare: int = 0
    group: int = 1

    def run(self, device):
        """Both tensors that it writes, and the memory behind them."""
        from moesaic.kernels.tile_map import map_tiles  # noqa: PLC0415

        counts = torch.tensor(self.counts, dtype=torch.int32, device=device)
        offsets = None if self.offsets is None else torch.tensor(self.offsets, dtype=torch.int32, device=device)
        sizes = {"tile_rows": self.tile_rows, "spare": self.spare, "group": self.group}
        order = map_tiles(counts, offsets, self.num_rows, **sizes)
        assert order.pairs.numel() == order.places.numel() == 0
        return {"tiles": order.tiles.cpu(), "control": order.control.cpu()}

    def check(self, found):
        """The tiles of `spans`."""
        check_tiles(found, self.spans, self)


@dataclass(frozen=True)
class BrokenCase(MapCase):
    """Experts that claim each other's rows: what comes back is undefined, but it stays in its memory."""

    def check(self, found):
        """Not more tiles than there is room for, and nothing written behind them."""
        total, *rest = found["control"].tolist()
        experts = found["tiles"][0]
        assert 0 < total <= len(experts)
        assert set(experts.tolist()) <= {-1, *range(len(self.counts))}
        assert rest == [0] * (HEADER - 1 + len(experts))


def gapped(heights, gap, alignment):
    """Offsets and spans of experts whose rows have `gap` aligned steps between them, and the number of rows."""
    spans, at = [], gap * alignment
    for height in heights:
        spans.append((at, at + height))
        at += -(-height // alignment) * alignment + gap * alignment
    return tuple(first for first, _ in spans), tuple(spans), at


OFFSETS, SPANS, ROWS = gapped((17, 0, 1, 16, 130), 2, 8)
MANY = tuple(e * 37 % 23 for e in range(896))
MANY_OFFSETS, MANY_SPANS, MANY_ROWS = gapped(MANY, 0, 1)
CASES = {
    "gaps": MapCase((17, 0, 1, 16, 130), OFFSETS, ROWS, SPANS),
    "groups": MapCase((17, 0, 1, 16, 130), OFFSETS, ROWS, SPANS, group=4),
    "spare": MapCase((17, 0, 1, 16, 130), OFFSETS, ROWS, SPANS, spare=8, group=2),
    "tiles-of-160": MapCase((17, 0, 1, 16, 130), OFFSETS, ROWS, SPANS, tile_rows=160),
    "nobody": MapCase((0, 0, 0), (0, 8, 16), 24, ((0, 0), (8, 8), (16, 16))),
    "one-expert": MapCase((1,), (0,), 1, ((0, 1),)),
    "896-experts": MapCase(MANY, MANY_OFFSETS, MANY_ROWS, MANY_SPANS),
    "past-the-rows": MapCase((20, 2**31 - 1, 3), (0, 24, 99), 40, ((0, 20), (24, 40), (99, 99))),
    "below-zero": MapCase((-3, 5, -(2**31)), (0, 8, 16), 24, ((0, 0), (8, 13), (16, 16))),
    "broken-promise": BrokenCase((2**31 - 1,) * 3, (0, 8, 16), 400, ()),
    "slabs": MapCase((33, 0, 7, 40), None, 160, ((0, 33), (40, 40), (80, 87), (120, 160))),
    "slabs-overfull": MapCase((41, -1, 2**31 - 1), None, 120, ((0, 40), (40, 40), (80, 120)), group=2),
    "slabs-896-experts": MapCase(MANY, None, 896 * 23, tuple((23 * e, 23 * e + n) for e, n in enumerate(MANY))),
}
