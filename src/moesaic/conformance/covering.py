"""covering: few rows in which every value of each axis meets every value of each other axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import TypeAlias, final

Row: TypeAlias = Mapping[str, Hashable]
"""A value for each axis, or for some of them."""

Place: TypeAlias = tuple[int, int]
"""An axis and one of its values, by number."""


def covering(
    axes: Mapping[str, Sequence[Hashable]],
    *,
    seeds: Iterable[Row] = (),
    met: Iterable[Row] = (),
    admits: Callable[[Row], bool] = lambda _: True,
) -> Iterator[dict[str, Hashable]]:
    """One row for each of `seeds`, with its values, then rows until each pair of values that `admits` takes has met.

    `met`: rows, or parts of rows, that are there already; what they have on no axis does not count. A row takes what it
    is not bound to by the most pairs that have not met yet; of equally many the value that is left with the most.
    Nothing is drawn: equal axes, equal rows.
    """
    names = tuple(axes)
    places = [{value: i for i, value in enumerate(axes[name])} for name in names]

    def numbered(row: Row) -> dict[int, int]:
        known = ((axis, row[name]) for axis, name in enumerate(names) if name in row)
        return {axis: places[axis][value] for axis, value in known if value in places[axis]}

    left = _Left([len(axes[name]) for name in names])
    for one, other in combinations(range(len(names)), 2):
        for (a, i), (b, j) in product(places[one].items(), places[other].items()):
            if not admits({names[one]: a, names[other]: b}):
                left.bar((one, i), (other, j))
    for row in met:
        left.cross_out(numbered(row))
    for start in left.starts([numbered(seed) for seed in seeds]):
        row = left.completed(start)
        yield {name: axes[name][row[axis]] for axis, name in enumerate(names)}


@final
class _Left:
    """The pairs that have not met yet, and those that never may."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.pairs: dict[tuple[Place, Place], None] = {}
        self.barred: set[tuple[Place, Place]] = set()
        self.count: Counter[Place] = Counter()
        for one, other in combinations(range(len(sizes)), 2):
            for i, j in product(range(sizes[one]), range(sizes[other])):
                self.pairs[(one, i), (other, j)] = None
                self.count.update([(one, i), (other, j)])

    def bar(self, one: Place, other: Place) -> None:
        """Never let the two meet."""
        self.barred.add((one, other))
        self._remove((one, other))

    def cross_out(self, row: Mapping[int, int]) -> None:
        """The values of `row` have met."""
        for pair in combinations(sorted(row.items()), 2):
            self._remove(pair)

    def starts(self, seeds: Iterable[dict[int, int]]) -> Iterator[dict[int, int]]:
        """`seeds`, then the first pair that is left, as long as there is one."""
        yield from seeds
        while self.pairs:
            yield dict(next(iter(self.pairs)))

    def completed(self, start: dict[int, int]) -> dict[int, int]:
        """`start` with a value for every axis, the longest axis first; what meets there is crossed out."""
        row = dict(start)
        for axis in sorted((a for a in range(len(self.sizes)) if a not in row), key=lambda a: -self.sizes[a]):
            each = [(axis, i) for i in range(self.sizes[axis])]
            fitting = [place for place in each if not any(pair in self.barred for pair in self._with(row, place))]
            row[axis] = max(fitting, key=lambda place: (self._fresh(row, place), self.count[place]))[1]
        self.cross_out(row)
        return row

    def _fresh(self, row: Mapping[int, int], place: Place) -> int:
        return sum(pair in self.pairs for pair in self._with(row, place))

    @staticmethod
    def _with(row: Mapping[int, int], place: Place) -> Iterator[tuple[Place, Place]]:
        for other in row.items():
            yield (other, place) if other < place else (place, other)

    def _remove(self, pair: tuple[Place, Place]) -> None:
        if pair in self.pairs:
            del self.pairs[pair]
            self.count.subtract(pair)
