"""SciPy's k-d tree of the circles' centres."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tagmatch_bench.systems.circles import Circles, Found, joined
from tagmatch_bench.systems.packages import needed

if TYPE_CHECKING:
    from tagmatch.model.arrays import F64Array

#: By which share of it, and of coordinates, a distance is longer for the tree, whose rounding may differ
_LONGER = 2.0**-40


class ScipyTree:
    """`scipy.spatial.cKDTree` of the circles' centres. Exact; takes no moves, and circles must have one radius.

    Such a tree has points and finds those near a point. So circles are found where all have the same radius, and the
    dual with any.

    Parameters
    ----------
    circles : Circles
    threads : int
        Threads that share out the points of a call.

    Raises
    ------
    UnavailableError
        The package is not installed.
    """

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:
        with needed("scipy"):
            from scipy.spatial import cKDTree
        self._circles, self._threads = circles, threads
        self._tree = cKDTree(np.stack([circles.x, circles.y], axis=1))

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point.

        Raises
        ------
        ValueError
            Circles have different radii.
        """
        radii = self._circles.radius
        if len(radii) and (radii != radii[0]).any():
            raise ValueError("circles have different radii, where a k-d tree of their centres needs one")
        return self.within(x, y, np.full(len(x), radii[0] if len(radii) else 0.0))

    def within(self, x: F64Array, y: F64Array, radius: F64Array) -> Found:
        """Return the circles whose centres are at most `radius` from each point."""
        if not len(x) or not len(self._circles):
            return joined([[]] * len(x))
        reach = radius + (np.abs(x) + np.abs(y) + radius) * _LONGER
        near = self._tree.query_ball_point(np.stack([x, y], axis=1), reach, workers=self._threads)
        return self._circles.keep_centres(joined(list(near)), x, y, radius)

    def nbytes(self) -> int | None:
        """Unknown."""
        return None

    def close(self) -> None:
        """Nothing was started."""
