"""The command `tagmatch-bench location`: what it measures and compares, not how fast anything is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.bench import Found, at, facts, is_told, measured, run, spoil
from support.circles import inside, matching_rows, metres

from tagmatch.model.errors import TagMatchError
from tagmatch.workloads.bench.figures import location_content, location_exact, location_live, location_spatial
from tagmatch.workloads.bench.figures import published_location as published
from tagmatch.workloads.bench.figures.location_exact import pairs
from tagmatch.workloads.bench.figures.location_scenarios import alerts, circles, located
from tagmatch.workloads.bench.harness.circles import circles_with
from tagmatch.workloads.bench.harness.located import WHOLE, great_circle
from tagmatch.workloads.bench.harness.results import Row
from tagmatch.workloads.systems.catalogue import ALERTS, CIRCLES, CONTENT, LOCATED_GPU, OWN_CIRCLES, OWN_CIRCLES_GPU
from tagmatch.workloads.systems.circles import Found as Circles
from tagmatch.workloads.systems.clcb import Clcb
from tagmatch.workloads.systems.clcb_tables import AreasAlone
from tagmatch.workloads.systems.duckdb_bounds import DuckDBBounds
from tagmatch.workloads.systems.h3_cells import H3Cells
from tagmatch.workloads.systems.matcher import UnavailableError
from tagmatch.workloads.systems.rstar_tree import RStarTree
from tagmatch.workloads.systems.scipy_tree import ScipyTree
from tagmatch.workloads.systems.shapely_filter import ShapelyFilter
from tagmatch.workloads.systems.shapely_tree import ShapelyTree
from tagmatch.workloads.systems.tagmatch_circles import ClientCircles, FixedCircles
from tagmatch.workloads.systems.tagmatch_content import TagmatchContent
from tagmatch.workloads.systems.tagmatch_located import LocatedMatching, LocatedOneByOne, TagmatchLocated

pytestmark = pytest.mark.nightly

SERVERS = {"PostGIS", "Redis GEO"}
SPATIAL = {*OWN_CIRCLES, *CIRCLES} - SERVERS
MOVING = {"tagmatch, clients", "tagmatch, clients, end to end", "CLCB, CPU", "R*-tree", "H3 cells in a dict"}
MOVING |= {"DuckDB, bounds"}
LOCATED = {"tagmatch, end to end", "tagmatch, contents and areas", "tagmatch, a call each", "CLCB, CPU"}
SMALL = (
    *("--filters", 300, "--filters", 2000, "--located", 4000, "--figures", 3000, "--live", 6000, "--pairs", 30_000),
    *("--alerts", 400, "--messages", 600, "--rounds", 2, "--seconds", 0.002),
)


def of(*parts: str, skip: Any = ()) -> list[str]:
    """Options for some parts, and to leave out systems."""
    return [word for part in parts for word in ("--part", part)] + [word for name in skip for word in ("--skip", name)]


def found_in(folder: Path, *options: object) -> Found:
    found = measured("location", folder, *SMALL, *options)
    assert all(value > 0 for title in found.panels for value in found.values(title).values())
    return found


# -- parts -------------------------------------------------------------------------------------------------------------


def test_spatial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "LARGE", 2000)
    found = found_in(tmp_path, *of("spatial", skip=SERVERS))
    whats = [f"areas, {each}, {share} % each" for each in ("uniform", "Zipf") for share in ("0.001", "0.01", "0.1")]
    for what in whats:
        assert found.places(f"{what}: messages") == at(SPATIAL, {300, 2000})
        assert found.places(f"{what}: moves") == at(MOVING, {300, 2000})
    places = {f"{size}, {each}" for size in ("300", "2,000") for each in ("uniform", "Zipf")}
    assert found.places("areas: build") == at(SPATIAL, places)
    assert found.places("areas: memory") == at({*OWN_CIRCLES, "CLCB, CPU", "DuckDB, bounds"}, places)
    assert len(found.limits) == 5 * len(whats)
    assert found.unavailable.keys() == {"R*-tree as Boost has it", *SERVERS, "CLCB", *OWN_CIRCLES_GPU}
    for where, systems in (
        ("each, beside brute force", SPATIAL),
        ("moved, beside brute force", MOVING),
        ("beside Shapely STRtree", SPATIAL - {"Shapely STRtree"}),
    ):
        compared = [row["system"] for row in found.answers if row["where"].endswith(where)]
        assert {name: compared.count(name) for name in compared} == dict.fromkeys(systems, 12)
    assert sum(row["keys"] for row in found.answers) > 10_000


@pytest.mark.usefixtures("postgis", "redis")
def test_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "COVERAGES", (1e-3,))
    monkeypatch.setattr(location_spatial, "DISTRIBUTIONS", {"uniform": "clcb"})
    libraries = CIRCLES.keys() - SERVERS
    found = found_in(tmp_path, *of("spatial", skip=libraries))
    title = "areas, uniform, 0.1 % each: messages"
    assert found.places(title) == at({*OWN_CIRCLES, "PostGIS", "Redis GEO (dual)"}, {300, 2000})
    assert {name: found.unavailable[name] for name in libraries} == dict.fromkeys(libraries, "skipped")


def test_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_content, "_FROM", 4000)
    found = found_in(tmp_path, *of("content"), "--located", 8000)
    for kind in ("constraints", "tags"):
        title = f"CLCB's default scenario, {kind}"
        assert found.places(f"{title}: one by one") == at({"tagmatch, a call each", "CLCB, CPU"}, {4000, 8000})
        assert found.places(f"{title}: throughput") == at(LOCATED - {"tagmatch, a call each"}, {4000, 8000})
    assert list(found.limits.values()) == 8 * [2000]
    assert found.compared("brute force") == dict.fromkeys(LOCATED, 4)
    assert found.compared(WHOLE) == dict.fromkeys(LOCATED - {WHOLE}, 4)
    assert {"CLCB", "tagmatch, contents and areas, GPU"} <= found.unavailable.keys()


def test_table2(tmp_path: Path) -> None:
    found = found_in(tmp_path, *of("table2"))
    both = at(("tagmatch, end to end", "tagmatch, contents and areas", "SFF", "BE-Tree"), published_places())
    with_areas = at(("CLCB, CPU", "tagmatch, a call each"), {published.WITH_LOCATION})
    assert found.places("CLCB Table 2") == both | with_areas
    assert found.published("CLCB Table 2") == facts(published.TABLE2)
    assert found.published("CLCB Table 2: speed-ups") == facts(published.TABLE2_TIMES)
    assert found.published("CLCB Table 2: times as long with areas") == facts(published.TABLE2_SLOWER)
    assert found.published("CLCB Table 2: update") == facts(published.TABLE2_UPDATE)
    assert found.places("CLCB Table 2: update").keys() == {"CLCB, CPU", "tagmatch, clients, end to end", "SFF"}
    wheres = {row["where"] for row in found.answers if row["system"] in ("SFF", "BE-Tree")}
    ways = ("without areas", "areas as constraints")
    assert wheres == {f"CLCB Table 2, {way}, beside brute force" for way in ways}


def published_places() -> set[str]:
    return {published.WITHOUT_LOCATION, published.WITH_LOCATION}


def test_figures(tmp_path: Path) -> None:
    found = found_in(tmp_path, *of(*(f"figure{number}" for number in (3, 4, 5, 6, 7))))
    names = {"R*-tree", "tagmatch, areas", "CLCB, CPU", "tagmatch, end to end", "tagmatch, contents and areas"}
    for number, kind in ((3, "uniform"), (4, "Zipf")):
        for percent in ("0.001", "0.01", "0.1", "1"):
            assert found.places(f"CLCB Figure {number}, {kind}, {percent} %") == at(names, {3, 30, 300})
        title = f"CLCB Figure {number}: speed-ups over an R*-tree"
        against = {f"{name} against R*-tree" for name in names - {"R*-tree"}}
        assert found.places(title) == at(against, published.COVERAGES)
        assert found.published(title) == facts(published.TIMES[number])
    movers = {"tagmatch, clients", "tagmatch, clients, end to end", "CLCB, CPU", "R*-tree"}
    for title in ("CLCB Figure 5 (a), uniform", "CLCB Figure 5 (b), Zipf"):
        assert found.places(title) == at(movers, {3, 30, 300})
    assert found.published("CLCB Figure 5 (a), uniform") == facts(published.FIGURE5)
    for title in ("CLCB Figure 6 (a)", "CLCB Figure 6 (b), content selects all"):
        assert found.places(title) == {"tagmatch, contents and areas": {"contents", "areas", "keys"}}
    stored = {"tagmatch, contents and areas", "tagmatch, end to end, with the stored rows", "CLCB, CPU"}
    assert found.places("CLCB Figure 7: memory") == at(stored, {3, 30, 300})
    assert found.published("CLCB Figure 7: subscriptions in 1 GB") == facts(published.FIGURE7_AT_LEAST)


def test_live_exact_and_cities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_live, "_LARGE", 6000)
    found = found_in(tmp_path, *of("live", "exact", "cities"))
    assert found.places("moves and messages at once") == at({"moves", "messages"}, {"alone", "together"})
    what = "30,000 areas and positions, tagmatch, {}: {}".format
    own = ("areas", "clients", "end to end")
    assert all(found.value(what(name, "wrong answers")) == 0 for name in own)
    assert all(found.value(what(name, "inside")) > 1000 for name in own)
    wheres = [row["where"] for row in found.answers if row["where"].startswith("live")]
    assert wheres == [f"live, {when} moves, beside brute force" for when in ("before", "after")]
    assert [row["queries"] for row in found.answers].count(30_000) == 3
    near = "alerts near cities, 400 of them"
    assert found.places(near) == at(LOCATED - {"CLCB, CPU"} | ALERTS.keys(), {"cities"})
    assert sum(row["keys"] for row in found.answers if "cities" in row["where"]) > 100


def test_cities_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cities.parquet"
    rows = {"country": ["IT", "NO"], "timezone": ["Europe/Rome", "Europe/Oslo"], "population": [5_000_000, 600_000]}
    pq.write_table(pa.table(rows | {"lat": [41.9, 59.9], "lon": [12.5, 10.8]}), path)
    tags = {tag for each in alerts(50, 30, 1, path).messages["tags"].to_pylist() for tag in each}
    assert tags == {"country:IT", "country:NO", "timezone:Europe/Rome", "timezone:Europe/Oslo"}
    with pytest.raises(UnavailableError, match="there is no "):
        alerts(50, 30, 1, tmp_path / "nothing")


# -- wrong systems are told --------------------------------------------------------------------------------------------


WRONG_CIRCLES = {
    "tagmatch, areas": FixedCircles,
    "tagmatch, clients": ClientCircles,
    "R*-tree": RStarTree,
    "Shapely STRtree": ShapelyTree,
    "SciPy cKDTree": ScipyTree,
    "H3 cells in a dict": H3Cells,
    "DuckDB, bounds": DuckDBBounds,
    "CLCB, CPU": AreasAlone,
}


@pytest.mark.parametrize(("name", "more"), [(name, len(name) % 2 == 0) for name in WRONG_CIRCLES])
def test_a_wrong_system_of_areas_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: bool
) -> None:
    """One that gives a circle too many to the first point that has one, or one too few."""
    system: Any = WRONG_CIRCLES[name]
    right = system.stab

    def wrong(self: Any, x: Any, y: Any) -> Circles:
        found = right(self, x, y)
        if not len(found.ids):
            return found
        point = int(np.searchsorted(found.offsets, 1)) - 1
        offsets, place = found.offsets.copy(), int(found.offsets[point])
        offsets[point + 1 :] += 1 if more else -1
        return Circles(offsets, np.insert(found.ids, place, 2**31) if more else np.delete(found.ids, place))

    monkeypatch.setattr(system, "stab", wrong)
    monkeypatch.setattr(location_spatial, "COVERAGES", (1e-3,))
    skipped = CIRCLES.keys() - {name, "Shapely STRtree"}
    done = run("location", tmp_path, *SMALL, *of("spatial", skip=skipped))
    assert isinstance(done.exception, TagMatchError)
    assert f"{name} gave" in str(done.exception)
    by_brute_force = [row for row in Found(tmp_path, "location").answers if row["where"].endswith("brute force")]
    wrong_of, missing = (sum(row[what] for row in by_brute_force) for what in ("wrong", "missing"))
    assert (wrong_of > 0, missing > 0) == (more, not more)


WRONG_LISTS: dict[str, tuple[Any, str]] = {
    "tagmatch, end to end": (TagmatchLocated, "content"),
    "tagmatch, contents and areas": (LocatedMatching, "content"),
    "tagmatch, a call each": (LocatedOneByOne, "cities"),
    "CLCB, CPU": (Clcb, "content"),
    "Shapely STRtree and Python": (ShapelyFilter, "cities"),
    "tagmatch": (TagmatchContent, "live"),
}


@pytest.mark.parametrize(("name", "more"), [(name, len(name) % 2 == 0) for name in WRONG_LISTS])
def test_a_wrong_system_with_content_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: bool
) -> None:
    system, part = WRONG_LISTS[name]
    spoil(monkeypatch, system, more=more)
    # So large that messages are in some of them
    done = run("location", tmp_path, *SMALL, *of(part), "--located", 60_000, "--live", 60_000)
    is_told(done, tmp_path, "location", name, more=more)


def test_a_move_that_is_forgotten_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "COVERAGES", (1e-3,))
    monkeypatch.setattr(ClientCircles, "move", lambda *_: None)
    done = run("location", tmp_path, *SMALL, *of("spatial", skip=CIRCLES))
    assert "moved, beside brute force: tagmatch, clients gave" in str(done.exception)


@pytest.mark.parametrize("way", ["_fixed", "_of_clients"])
def test_one_wrong_pair_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    right = getattr(location_exact, way)

    def wrong(some: Any) -> Any:
        given = right(some)
        given[np.argmax(np.abs(great_circle(*some[:2], *some[3:]) - some.metres))] ^= True
        return given

    monkeypatch.setattr(location_exact, way, wrong)
    done = run("location", tmp_path, *SMALL, *of("exact"))
    assert isinstance(done.exception, TagMatchError)
    assert "wrong answers" in str(done.exception)


# -- brute force -------------------------------------------------------------------------------------------------------


def test_brute_force_on_areas() -> None:
    scenario = circles("some", 500, 200, 3, "Zipf", 1e-2)
    has = inside((scenario.circles.x, scenario.circles.y, scenario.circles.radius), scenario.x, scenario.y)
    found = circles_with(scenario.circles, scenario.x, scenario.y)
    assert found.ids.tolist() == np.nonzero(has)[1].tolist()
    assert np.diff(found.offsets).tolist() == has.sum(axis=1).tolist()


@pytest.mark.parametrize("content", ["constraints", "tags", "alerts"])
def test_brute_force_on_contents_and_areas(content: Any) -> None:
    scenario = (
        alerts(300, 40, 2, None)
        if content == "alerts"
        else located("some", 3000, 60, 5, content, coverage=0.2, selectivity=0.02)
    )
    sent = [{name: x for name, x in row.items() if x is not None} for row in scenario.messages.to_pylist()]
    right = matching_rows(scenario.subscriptions.to_pylist(), sent)
    keys = scenario.subscriptions["key"].to_pylist()
    assert [found.tolist() for found in scenario.right] == [
        sorted({keys[row] for row in rows}) for rows in right[: scenario.sample]
    ]
    assert sum(map(len, right)) > (5 if content == "alerts" else 100)


def test_great_circle_is_that_of_the_haversine_formula() -> None:
    """Of pairs of all sizes, at poles, across the anti-meridian, and on both sides of the border."""
    some = pairs(200_000, np.random.default_rng(4))
    one = great_circle(some.lon, some.lat, some.at_lon, some.at_lat)
    # The haversine loses digits near the antipodes
    assert np.allclose(one, metres(some.lon, some.lat, some.at_lon, some.at_lat), rtol=1e-7, atol=1e-6)
    right, near = some.has()
    assert 0.3 < right.mean() < 0.7
    assert near.mean() < 0.01
    assert (np.abs(one / some.metres - 1) < 1e-5).mean() > 0.05
    assert some.metres.min() < 2
    assert (some.metres > 10_007_543).mean() > 0.05
    assert (np.abs(some.lat) == 90).sum() > 1000
    assert (np.abs(some.lon) == 180).sum() > 1000
    assert ((np.abs(some.lon - some.at_lon) > 180) & right).sum() > 10_000
    for lon, lat in ((some.lon, some.lat), (some.at_lon, some.at_lat)):
        assert np.abs(lon).max() <= 180
        assert np.abs(lat).max() <= 90


# -- published numbers -------------------------------------------------------------------------------------------------


def by_place(rows: list[Row]) -> dict[tuple[str, str | float], float]:
    return {(row.what, row.x): row.value for row in rows}


def test_published_speed_ups_are_those_of_published_times() -> None:
    """Within what rounding leaves, of all pairs whose times are printed; systems have their names here."""
    for rows, times in ((published.TABLE2, published.TABLE2_TIMES), (published.FIGURE5, published.FIGURE5_TIMES)):
        micros = by_place(rows)
        for row in times:
            system, other = row.what.split(" against ")
            assert row.value == pytest.approx(micros[other, row.x] / micros[system, row.x], rel=0.01)
    micros = by_place(published.TABLE2)
    for row in published.TABLE2_SLOWER:
        ratio = micros[row.what, published.WITH_LOCATION] / micros[row.what, published.WITHOUT_LOCATION]
        assert row.value == pytest.approx(ratio, rel=0.01)
    known = {**CONTENT, **CIRCLES, **LOCATED_GPU}.keys()
    assert {row.what for row in (*published.TABLE2, *published.TABLE2_UPDATE, *published.FIGURE5)} <= known
    speed_ups = [row.what for rows in (published.TABLE2_TIMES, *published.TIMES.values()) for row in rows]
    assert {name for what in speed_ups for name in what.split(" against ")} <= known
