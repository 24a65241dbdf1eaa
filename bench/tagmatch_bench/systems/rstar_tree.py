"""An R*-tree of libspatialindex, which the paper CLCB is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tagmatch.model.arrays import offsets_of
from tagmatch_bench.systems.circles import Circles, Found, boxes
from tagmatch_bench.systems.packages import needed

if TYPE_CHECKING:
    from tagmatch.model.arrays import F64Array, U32Array

_CAPACITY = 20
#: More than what libspatialindex takes for nothing when it makes the box of a node smaller, which then lacks an entry
_SLACK = 1e-12


class RStarTree:
    """An R*-tree (N. Beckmann et al., SIGMOD 1990) of the circles' boxes: Python package `rtree`. Exact.

    It is built in bulk (Sort-Tile-Recursive). Candidates are found for many points by one call, and then tested. A move
    is a deletion and an insertion, one by one, as the library has it. libspatialindex does not say how large it is.

    Parameters
    ----------
    circles : Circles
    threads : int
        Not used.
    capacity : int
        Entries of a node, at most.

    Raises
    ------
    UnavailableError
        The package is not installed.
    """

    def __init__(self, circles: Circles, *, threads: int = 1, capacity: int = _CAPACITY) -> None:  # noqa: ARG002
        with needed("rtree"):
            from rtree import index
        self._circles = Circles(circles.x.copy(), circles.y.copy(), circles.radius)
        options = index.Property(variant=index.RT_Star, leaf_capacity=capacity, index_capacity=capacity)
        if len(circles):
            lowest, highest = _boxes(circles.x, circles.y, circles.radius)
            self._tree: Any = index.Index((np.arange(len(circles)), lowest, highest), properties=options)
        else:
            self._tree = index.Index(properties=options)

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        points = np.stack([x, y], axis=1)
        return self._circles.keep(self._candidates(points, points), x, y)

    def within(self, x: F64Array, y: F64Array, radius: F64Array) -> Found:
        """Return the circles whose centres are at most `radius` from each point."""
        return self._circles.keep_centres(self._candidates(*boxes(x, y, radius)), x, y, radius)

    def _candidates(self, lowest: F64Array, highest: F64Array) -> Found:
        if not len(lowest):
            return Found(np.zeros(1, np.int64), np.zeros(0, np.uint32))
        ids, counts = self._tree.intersection_v(lowest, highest)
        return Found(offsets_of(counts), ids.astype(np.uint32))

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres, each circle once."""
        before = np.concatenate(_boxes(self._circles.x[ids], self._circles.y[ids], self._circles.radius[ids]), axis=1)
        after = np.concatenate(_boxes(x, y, self._circles.radius[ids]), axis=1)
        for number, old, new in zip(ids.tolist(), before.tolist(), after.tolist(), strict=True):
            self._tree.delete(number, old)
            self._tree.insert(number, new)
        self._circles.move(ids, x, y)

    def nbytes(self) -> int | None:
        """Unknown."""
        return None

    def close(self) -> None:
        """Free the tree."""
        self._tree.close()


def _boxes(x: F64Array, y: F64Array, radius: F64Array) -> tuple[F64Array, F64Array]:
    lowest, highest = boxes(x, y, radius)
    return lowest - _SLACK, highest + _SLACK
