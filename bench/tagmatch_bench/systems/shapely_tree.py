"""Shapely's tree of boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tagmatch_bench.systems.circles import Circles, Found, boxes, lists_of
from tagmatch_bench.systems.packages import needed

if TYPE_CHECKING:
    from tagmatch.model.arrays import F64Array


class ShapelyTree:
    """`shapely.STRtree` of the circles' boxes, packed and asked for many points by one call. Exact; takes no moves.

    Parameters
    ----------
    circles : Circles
    threads : int
        Not used.

    Raises
    ------
    UnavailableError
        The package is not installed.
    """

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:  # noqa: ARG002
        with needed("shapely"):
            import shapely
        self._shapely, self._circles = shapely, circles
        self._tree = shapely.STRtree(self._box(*circles.boxes()))

    def _box(self, lowest: F64Array, highest: F64Array) -> Any:
        return self._shapely.box(*lowest.T, *highest.T)

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        points, ids = self._tree.query(self._shapely.points(x, y))
        return self._circles.keep(lists_of(points, ids, len(x)), x, y)

    def within(self, x: F64Array, y: F64Array, radius: F64Array) -> Found:
        """Return the circles whose centres are at most `radius` from each point."""
        points, ids = self._tree.query(self._box(*boxes(x, y, radius)))
        return self._circles.keep_centres(lists_of(points, ids, len(x)), x, y, radius)

    def nbytes(self) -> int | None:
        """Unknown."""
        return None

    def close(self) -> None:
        """Nothing was started."""
