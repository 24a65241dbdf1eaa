"""What the systems that match areas share: circles on the plane as columns, what a system answers, and its last test.

A circle has the points that are at most its radius from its centre, by double precision: `dx * dx + dy * dy <= r * r`.
Its edge belongs to it. Systems find candidates in their own ways, and, if these may be wrong, the last test is
the one here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import F64Array, I64Array, U32Array, offsets_of
from tagmatch.model.kernels.jit import kernel

#: A side's share by which boxes are larger than circles, so that rounding leaves none out
_LARGER = 2.0**-48


class Found(NamedTuple):
    """Circles of each point, in any order: those of point `i` are `ids[offsets[i] : offsets[i + 1]]`."""

    offsets: I64Array
    ids: U32Array

    @classmethod
    def of(cls, lists: pa.ListArray) -> Found:
        """Take Arrow lists of circles' numbers."""
        return cls(lists.offsets.to_numpy().astype(np.int64), lists.values.to_numpy().astype(np.uint32))


@dataclass(frozen=True, slots=True)
class Circles:
    """Circles as columns; a circle's number is its row."""

    x: F64Array  # centre and radius of each; a radius is not negative
    y: F64Array
    radius: F64Array

    @classmethod
    def of(cls, areas: pa.Table) -> Circles:
        """Take column `area` of a table, a struct of `x`, `y` and `radius`."""
        area = areas["area"].combine_chunks()
        columns = dict(zip((field.name for field in area.type), area.flatten(), strict=True))
        return cls.checked(*(columns[name].to_numpy(zero_copy_only=False) for name in ("x", "y", "radius")))

    @classmethod
    def checked(cls, x: npt.ArrayLike, y: npt.ArrayLike, radius: npt.ArrayLike) -> Circles:
        """Take three columns, each with a number a circle; errors as for `of`."""
        columns = [np.array(column, np.float64) for column in (x, y, radius)]
        if len({len(column) for column in columns}) > 1:
            raise ValueError(f"columns of circles have different lengths: {', '.join(str(len(c)) for c in columns)}")
        if not all(np.isfinite(column).all() for column in columns):
            raise ValueError("a circle has a coordinate or a radius that is null, NaN or infinite")
        if (columns[2] < 0).any():
            raise ValueError("a circle has a negative radius")
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.x)

    def movable(self) -> Circles:
        """The same, with their own centres."""
        return Circles(self.x.copy(), self.y.copy(), self.radius)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return self.x.nbytes + self.y.nbytes + self.radius.nbytes

    def boxes(self) -> tuple[F64Array, F64Array]:
        """The least and the greatest coordinates of each circle, [n, 2]; a little more than these."""
        return boxes(self.x, self.y, self.radius)

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres, in order: the last one counts if a circle is there twice."""
        self.x[ids], self.y[ids] = x, y

    def keep(self, candidates: Found, x: F64Array, y: F64Array) -> Found:
        """Keep those circles that have their point."""
        return _kept(candidates, x, y, self, self.radius, of_points=False)

    def keep_centres(self, candidates: Found, x: F64Array, y: F64Array, radius: F64Array) -> Found:
        """Keep those circles whose centre is within some distance from their point."""
        return _kept(candidates, x, y, self, radius, of_points=True)


class CircleSystem(Protocol):
    """A system that is built from `Circles` and a number of threads.

    It also has one or several of `stab(x, y)`, the circles that have each point, as a message finds the areas that have
    its position; `within(x, y, radius)`, the dual: circles whose centres are so near each point, as if the radius were
    the message's; and `move(ids, x, y)`, which gives circles new centres, each circle once. Coordinates are float64
    arrays of one length.
    """

    def nbytes(self) -> int | None:
        """Bytes of memory or disk that the circles take, `None` where that is unknown."""

    def close(self) -> None:
        """Stop all threads and processes, and free all memory."""


def boxes(x: F64Array, y: F64Array, radius: F64Array) -> tuple[F64Array, F64Array]:
    """The least and the greatest coordinates of circles, [n, 2], each a little more than it is, but not by rounding."""
    centres = np.stack([x, y], axis=1)
    reach = radius[:, None] + (np.abs(centres) + radius[:, None]) * _LARGER
    return centres - reach, centres + reach


def lists_of(points: npt.NDArray[Any], ids: npt.NDArray[Any], count: int) -> Found:
    """Sort pairs of a point and a circle by point; there are `count` points."""
    order = np.argsort(points, kind="stable")
    return Found(offsets_of(np.bincount(points, minlength=count)), ids[order].astype(np.uint32))


def joined(each: list[Any]) -> Found:
    """Join lists of circles, one for each point."""
    lengths = np.array([len(ids) for ids in each], np.int64)
    ids = np.concatenate([np.zeros(0, np.uint32), *(np.asarray(some, np.uint32) for some in each)])
    return Found(offsets_of(lengths), ids)


def _kept(candidates: Found, x: F64Array, y: F64Array, circles: Circles, radius: F64Array, of_points: bool) -> Found:
    kept = Found(np.zeros_like(candidates.offsets), np.empty_like(candidates.ids))
    used = _inside(candidates, (x, y), (circles.x, circles.y), radius, of_points, kept)
    return Found(kept.offsets, kept.ids[:used])


@kernel
def _inside(candidates, points, centres, radius, of_points, kept):
    """Write the circles that are near enough to their point: by its radius, with `of_points`, or else their own."""
    (x, y), (of_x, of_y), used = points, centres, 0
    for i in range(len(x)):
        for j in range(candidates.offsets[i], candidates.offsets[i + 1]):
            of = candidates.ids[j]
            across, up = x[i] - of_x[of], y[i] - of_y[of]
            reach = radius[i] if of_points else radius[of]
            if across * across + up * up <= reach * reach:
                kept.ids[used] = of
                used += 1
        kept.offsets[i + 1] = used
    return used
