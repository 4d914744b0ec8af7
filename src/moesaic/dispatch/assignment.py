"""Assignment: the one-to-one pairing of rows and columns with the largest sum of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence


def assignment(scores: Sequence[Sequence[float]]) -> list[int]:
    """The column of each row of a square table, all different, with the largest sum; the same in every run.

    The Hungarian method with potentials (Kuhn 1955; Jonker and Volgenant 1987), of cubic cost.
    """
    size = len(scores)
    row_potential, column_potential = [0.0] * size, [0.0] * size
    row_of = [-1] * size
    for new in range(size):
        # Grow a tree of shortest paths from `new` until it meets a free column, then turn the path over.
        distance, before = [math.inf] * size, [-1] * size
        open_columns = list(range(size))
        row, column = new, -1
        while True:
            for other in open_columns:
                reduced = -scores[row][other] - row_potential[row] - column_potential[other]
                if reduced < distance[other]:
                    distance[other], before[other] = reduced, column
            nearest = min(open_columns, key=distance.__getitem__)
            step = distance[nearest]
            row_potential[new] += step
            for other in range(size):
                if other in open_columns:
                    distance[other] -= step
                elif row_of[other] >= 0:
                    row_potential[row_of[other]] += step
                    column_potential[other] -= step
            open_columns.remove(nearest)
            column, row = nearest, row_of[nearest]
            if row < 0:
                break
        while column >= 0:
            row_of[column] = new if before[column] < 0 else row_of[before[column]]
            column = before[column]
    return [row_of.index(row) for row in range(size)]
