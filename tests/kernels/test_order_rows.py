"""The pairs of a routing in expert order, against plain Python: rows, places, tiles, counters."""

import itertools

import pytest
import torch

pytest.importorskip("triton")
from moesaic.kernels.row_order import RowOrder, most_rows, most_tiles
from tests.kernels import order_cases as cases

each = pytest.mark.parametrize("name", cases.CASES)


@each
def test_in_the_interpreter(name, interpreted):
    cases.CASES[name].check(interpreted[name])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each
def test_on_cuda(name, poisoned):
    found = cases.CASES[name].run(torch.device("cuda"))
    cases.CASES[name].check(found)


def test_no_routing_needs_more_rows_or_tiles_than_there_is_memory_for():
    for counts in itertools.product(range(6), repeat=3):
        total = sum(counts)
        for tile_rows, alignment in ((2, 1), (4, 4), (3, 2)):
            if total:
                assert sum(-(-n // tile_rows) for n in counts) <= most_tiles(total, 3, tile_rows)
                padded = sum(-(-n // alignment) * alignment for n in counts[:-1]) + counts[-1]
                assert padded <= most_rows(total, 3, alignment)


def test_every_piece_of_the_memory_begins_at_16_bytes_and_none_meets_another():
    order = RowOrder.empty(7, 5, 3, 16, torch.device("cpu"))
    pieces = (order.pairs, order.places, order.tiles, order.control)
    for number, piece in enumerate(pieces):
        assert piece.data_ptr() % 16 == 0
        piece.fill_(number)
    assert [piece.unique().tolist() for piece in pieces] == [[0], [1], [2], [3]]
    assert [tuple(piece.shape) for piece in pieces] == [(7,), (5,), (5, 3), (15,)]
    assert order.max_tiles == 3
