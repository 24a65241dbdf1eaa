"""The systems that match areas, against brute force; those that need a server or a GPU have tests of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from support.circle_systems import PLACES, RADII, Case, cases, check, one_radius, random_case

from tagmatch.workloads.systems.catalogue import CIRCLES, OWN_CIRCLES, System
from tagmatch.workloads.systems.circles import Circles, Dual, Moves, Stabs
from tagmatch.workloads.systems.clcb_tables import without_constraints
from tagmatch.workloads.systems.scipy_tree import ScipyTree

SINGLE = {"CLCB, CPU"}
SYSTEMS = {name: system for name, system in {**CIRCLES, **OWN_CIRCLES}.items() if system.needs is None}
#: What each can do, beside nothing
ABILITIES = {
    "CLCB, CPU": {Stabs, Moves},
    "R*-tree": {Stabs, Dual, Moves},
    "Shapely STRtree": {Stabs, Dual},
    "SciPy cKDTree": {Stabs, Dual},
    "H3 cells in a dict": {Stabs, Dual, Moves},
    "DuckDB, bounds": {Stabs, Dual, Moves},
    "tagmatch, areas": {Stabs},
    "tagmatch, clients": {Stabs, Moves},
    "tagmatch, end to end": {Stabs},
    "tagmatch, clients, end to end": {Stabs, Moves},
}


def fit(name: str, case: Case) -> Case:
    return one_radius(case) if name == "SciPy cKDTree" else case


@pytest.mark.parametrize("name", sorted(SYSTEMS.keys() - SINGLE))
@given(case=cases())
def test_double_precision(name: str, case: Case) -> None:
    check(lambda circles: SYSTEMS[name].build(circles, 1), fit(name, case))


@pytest.mark.parametrize("name", sorted(SINGLE))
@given(case=cases(PLACES, RADII))
def test_single_precision(name: str, case: Case) -> None:
    check(lambda circles: SYSTEMS[name].build(circles, 1), case)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("threads", [1, 2])
def test_many(name: str, threads: int, seed: int) -> None:
    case = fit(name, random_case(seed, 700, 150))
    if name == "SciPy cKDTree":
        case.circles.radius[:] = 0.05
    assert check(lambda circles: SYSTEMS[name].build(circles, threads), case) > 100


@pytest.mark.parametrize("name", sorted(SYSTEMS.keys() - SINGLE))
def test_points_that_rounding_puts_out_of_a_box(name: str) -> None:
    """Circles that have a point, as their distance is rounded, which is beyond the centre less the radius."""
    rng = np.random.default_rng(1)
    x, radius = 0.5 + rng.random(200) / 10, np.full(200, 0.5)
    px = np.nextafter(x - radius, -1)
    odd = (px - x) * (px - x) <= radius * radius
    assert odd.sum() > 50
    x, px, radius = x[odd], px[odd], radius[odd]
    case = Case(Circles(x, np.full(len(x), 0.5), radius), (px, np.full(len(x), 0.5), radius), [])
    check(lambda circles: SYSTEMS[name].build(circles, 1), case)


@pytest.mark.parametrize("name", SYSTEMS)
def test_abilities(name: str) -> None:
    system = SYSTEMS[name].build(Circles.checked([0.5], [0.5], [0.1]), 1)
    assert {kind for kind in (Stabs, Dual, Moves) if isinstance(system, kind)} == ABILITIES[name]
    system.close()


@pytest.mark.parametrize("name", SYSTEMS)
def test_circles_that_are_given_stay_as_they_are(name: str) -> None:
    given_ones = Circles.checked([0.5, 0.25], [0.5, 0.25], [0.125, 0.125])
    system: Any = SYSTEMS[name].build(given_ones, 1)
    if isinstance(system, Moves):
        system.move(np.array([1], np.uint32), np.array([0.75]), np.array([0.75]))
        assert system.stab(np.array([0.75, 0.25]), np.array([0.75, 0.25])).ids.tolist() == [1]
    assert given_ones.x.tolist() == [0.5, 0.25]
    system.close()


def test_a_tree_of_points_needs_one_radius() -> None:
    tree = ScipyTree(Circles.checked([0.5, 0.5], [0.5, 0.5], [0.1, 0.2]))
    with pytest.raises(ValueError, match="circles have different radii"):
        tree.stab(np.array([0.5]), np.array([0.5]))
    assert tree.within(np.array([0.5]), np.array([0.5]), np.array([0.1])).ids.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["H3 cells in a dict"])
def test_outside_of_the_square(name: str) -> None:
    system: System = SYSTEMS[name]
    with pytest.raises(ValueError, match="x must be from 0 to 1"):
        system.build(Circles.checked([1.5], [0.5], [0.1]), 1)
    with pytest.raises(ValueError, match="y must be from 0 to 1"):
        system.build(Circles.checked([0.5], [0.5], [0.1]), 1).stab(np.array([0.5]), np.array([-0.1]))


def test_circles_of_a_table() -> None:
    given_ones = Circles.checked([0.5, 1.0], [0.25, 2.0], [0.125, 0.0])
    found = Circles.of(without_constraints(given_ones))
    for name in ("x", "y", "radius"):
        assert getattr(found, name).tolist() == getattr(given_ones, name).tolist()
    assert found.nbytes == 48


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0.0], [0.0], [-1.0]), "a circle has a negative radius"),
        (([np.nan], [0.0], [1.0]), "null, NaN or infinite"),
        (([0.0], [np.inf], [1.0]), "null, NaN or infinite"),
        (([0.0], [0.0, 1.0], [1.0]), "different lengths: 1, 2, 1"),
    ],
)
def test_wrong_circles(columns: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Circles.checked(*columns)
