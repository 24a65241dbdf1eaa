"""Circles, points and moves that Hypothesis draws, and what holds the systems that match areas to brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from support.circles import Floats, inside

from tagmatch.workloads.systems.circles import Circles, CircleSystem, Dual, Found, Moves, Stabs

Build = Callable[[Circles], CircleSystem]

_FINE = 1024
#: Eighths make points that are on edges, as 3, 4 and 5 of them are sides of a triangle; single precision has all
PLACES = st.integers(0, 8).map(lambda n: n / 8) | st.integers(0, _FINE).map(lambda n: n / _FINE)
RADII = st.integers(0, 12).map(lambda n: n / 8) | st.integers(0, _FINE).map(lambda n: n / _FINE)
#: Of double precision, also a little more or less; not so small that its square is 0
ALL_PLACES = PLACES | st.floats(2.0**-30, 1)
ALL_RADII = (
    RADII | RADII.map(lambda x: math.nextafter(x, 9) if x else x) | RADII.map(lambda x: max(0.0, math.nextafter(x, -9)))
)


class Case(NamedTuple):
    """Circles, points with a radius each for the dual, and moves, each of some circles."""

    circles: Circles
    points: tuple[Floats, Floats, Floats]
    moves: list[tuple[npt.NDArray[np.uint32], Floats, Floats]]


@st.composite
def cases(draw: st.DrawFn, places: Any = ALL_PLACES, radii: Any = ALL_RADII) -> Case:
    rows = draw(st.lists(st.tuples(places, places, radii), max_size=12))
    asked = draw(st.lists(st.tuples(places, places, radii), max_size=6))
    moves = []
    for _ in range(draw(st.integers(0, 2))):
        ids = draw(st.lists(st.sampled_from(range(len(rows))), unique=True)) if rows else []
        to = draw(st.lists(st.tuples(places, places), min_size=len(ids), max_size=len(ids)))
        moves.append((np.array(ids, np.uint32), *_columns(to, 2)))
    return Case(Circles(*_columns(rows, 3)), (*_columns(asked, 3),), moves)  # type: ignore[arg-type]


def random_case(seed: int, circles: int, points: int) -> Case:
    """Many small circles of different sizes, gathered a little, larger ones of points; exact in single precision."""
    rng = np.random.default_rng(seed)

    def some(count: int, most: float = 1.0) -> Floats:
        drawn: Floats = np.floor(rng.random(count) ** 2 * most * _FINE) / _FINE
        return drawn

    ids = rng.permutation(circles).astype(np.uint32)
    moves = [(part, some(len(part)), some(len(part))) for part in np.array_split(ids, 3)[:2]]
    stored = Circles(some(circles), some(circles), some(circles, 0.05))
    return Case(stored, (some(points), some(points), some(points, 0.2)), moves)


def one_radius(case: Case) -> Case:
    """The same with circles of one radius."""
    radius = case.circles.radius
    same = np.full(len(radius), radius[:1].sum() if len(radius) else 0.0)
    return case._replace(circles=Circles(case.circles.x, case.circles.y, same))


def check(build: Build, case: Case) -> int:
    """Compare all answers with brute force, before moves and after each; returns how many there are."""
    x, y, radius = (column.copy() for column in (case.circles.x, case.circles.y, case.circles.radius))
    (px, py, reach), found = case.points, 0
    with closing(build(Circles(x.copy(), y.copy(), radius))) as system:  # type: ignore[type-var]
        assert isinstance(system, Stabs | Dual)
        for move in [None, *(case.moves if isinstance(system, Moves) else ())]:
            if move is not None:
                ids, *places = move
                system.move(ids, *places)  # type: ignore[union-attr]
                x[ids], y[ids] = places
            if isinstance(system, Stabs):
                found += _equal(system.stab(px, py), inside((x, y, radius), px, py))
            if isinstance(system, Dual):
                # A point has a centre in its circle if the centre's, as a point, has the point in it
                found += _equal(system.within(px, py, reach), inside((px, py, reach), x, y).T)
        assert system.nbytes() is None or isinstance(system.nbytes(), int)
    return found


def _equal(found: Found, right: npt.NDArray[np.bool_]) -> int:
    assert found.offsets.dtype == np.int64
    assert found.ids.dtype == np.uint32
    assert len(found.offsets) == len(right) + 1
    assert found.offsets[-1] == len(found.ids)
    for i, row in enumerate(right):
        assert sorted(found.ids[found.offsets[i] : found.offsets[i + 1]].tolist()) == np.flatnonzero(row).tolist()
    return len(found.ids)


def _columns(rows: list[Any], width: int) -> npt.NDArray[np.float64]:
    return np.array(rows, np.float64).reshape(-1, width).T.copy()
