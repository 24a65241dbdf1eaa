"""What the paper on areas prints: that its numbers go together, and that systems have their names here."""

from __future__ import annotations

import pytest

from tagmatch.workloads.bench.figures import published_location as published
from tagmatch.workloads.bench.harness.results import Row
from tagmatch.workloads.location import SCENARIOS
from tagmatch.workloads.systems.catalogue import CIRCLES, CONTENT, LOCATED_GPU


def by_place(rows: list[Row]) -> dict[tuple[str, str | float], float]:
    return {(row.what, row.x): row.value for row in rows}


def test_speed_ups_are_those_of_times() -> None:
    """Within what rounding leaves, of all pairs whose times are printed."""
    for rows, times in ((published.TABLE2, published.TABLE2_TIMES), (published.FIGURE5, published.FIGURE5_TIMES)):
        of = by_place(rows)
        for row in times:
            system, other = row.what.split(" against ")
            assert row.value == pytest.approx(of[other, row.x] / of[system, row.x], rel=0.01)
    of = by_place(published.TABLE2)
    for row in published.TABLE2_SLOWER:
        ratio = of[row.what, published.WITH_LOCATION] / of[row.what, published.WITHOUT_LOCATION]
        assert row.value == pytest.approx(ratio, rel=0.01)


def test_systems_have_the_names_of_the_catalogue() -> None:
    known = {**CONTENT, **CIRCLES, **LOCATED_GPU}.keys()
    assert {row.what for row in (*published.TABLE2, *published.TABLE2_UPDATE, *published.FIGURE5)} <= known
    pairs = [
        row.what.split(" against ") for rows in (published.TABLE2_TIMES, *published.TIMES.values()) for row in rows
    ]
    assert {name for pair in pairs for name in pair} <= known


def test_figures_3_and_4_go_by_coverage() -> None:
    assert {row.x for row in published.TIMES[4]} == set(published.COVERAGES)
    assert {row.x for row in published.TIMES[3]} < set(published.COVERAGES)
    assert 100 * SCENARIOS["clcb"].coverage in published.COVERAGES
    for rows in published.TIMES.values():
        assert [row.value for row in rows] == sorted(row.value for row in rows)
