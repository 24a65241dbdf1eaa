"""The command `tagmatch-bench location`: what it measures and compares, not how fast anything is."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.circles import inside, matching_rows, metres
from typer.testing import CliRunner, Result

from tagmatch.model.errors import TagMatchError
from tagmatch.workloads.bench.figures import location_content, location_exact, location_live, location_spatial
from tagmatch.workloads.bench.figures import published_location as published
from tagmatch.workloads.bench.figures.location import PARTS
from tagmatch.workloads.bench.figures.location_exact import pairs
from tagmatch.workloads.bench.figures.location_scenarios import alerts, circles, located
from tagmatch.workloads.bench.harness import circles as circle_harness
from tagmatch.workloads.bench.harness.circles import Moving, circles_with
from tagmatch.workloads.bench.harness.located import WHOLE, LocatedScenario, great_circle
from tagmatch.workloads.commands import bench_location
from tagmatch.workloads.commands.bench import app
from tagmatch.workloads.content.generate import CONSTRAINT
from tagmatch.workloads.systems.catalogue import ALERTS, CIRCLES, OWN_CIRCLES, OWN_CIRCLES_GPU
from tagmatch.workloads.systems.circles import Found, Moves
from tagmatch.workloads.systems.clcb import Clcb
from tagmatch.workloads.systems.clcb_tables import AreasAlone
from tagmatch.workloads.systems.duckdb_bounds import DuckDBBounds
from tagmatch.workloads.systems.h3_cells import H3Cells
from tagmatch.workloads.systems.matcher import UnavailableError
from tagmatch.workloads.systems.rstar_tree import RStarTree
from tagmatch.workloads.systems.scipy_tree import ScipyTree
from tagmatch.workloads.systems.shapely_filter import ShapelyFilter
from tagmatch.workloads.systems.shapely_tree import ShapelyTree
from tagmatch.workloads.systems.tagmatch_circles import CirclesInIndex, ClientCircles, FixedCircles
from tagmatch.workloads.systems.tagmatch_content import TagmatchContent
from tagmatch.workloads.systems.tagmatch_located import LocatedMatching, LocatedOneByOne, TagmatchLocated

pytestmark = pytest.mark.slow

SERVERS = ("--skip", "PostGIS", "--skip", "Redis GEO")
SPATIAL = {*OWN_CIRCLES, *CIRCLES} - {"PostGIS", "Redis GEO"}
MOVING = {"tagmatch, clients", "tagmatch, clients, end to end", "CLCB, CPU", "R*-tree", "H3 cells in a dict"}
MOVING |= {"DuckDB, bounds"}
LOCATED = {"tagmatch, end to end", "tagmatch, contents and areas", "tagmatch, a call each", "CLCB, CPU"}


def run(folder: Path, *more: str) -> Result:
    options = ["--allow-changes", "--filters", "300", "--filters", "2000", "--located", "4000", "--figures", "3000"]
    options += ["--live", "6000", "--pairs", "30000", "--alerts", "400", "--messages", "600", "--rounds", "2"]
    return CliRunner().invoke(app, ["location", *options, "--seconds", "0.002", "--output", str(folder), *more])


def measured(folder: Path, *more: str) -> dict[str, Any]:
    done = run(folder, *more)
    assert done.exit_code == 0, done.exception
    found: dict[str, Any] = json.loads((folder / "location.json").read_text())
    assert all(row["missing"] == row["wrong"] == 0 for row in found["answers"])
    assert (folder / "location.png").read_bytes().startswith(b"\x89PNG") or not found["panels"]
    return found


def systems(found: dict[str, Any], title: str) -> dict[str, set[Any]]:
    """The places at which each system is in a panel."""
    panel = next(panel for panel in found["panels"] if panel["title"] == title)
    places: dict[str, set[Any]] = {}
    for value in panel["values"]:
        assert value["value"] > 0
        places.setdefault(value["system"], set()).add(value["x"])
    return places


def printed(found: dict[str, Any], title: str) -> list[tuple[str, Any, float]]:
    panel = next(panel for panel in found["panels"] if panel["title"] == title)
    return [(value["system"], value["x"], value["value"]) for value in panel["published"]]


def facts(rows: list[Any]) -> list[tuple[str, Any, float]]:
    return [(row.what, row.x, row.value) for row in rows]


def limits(found: dict[str, Any]) -> dict[str, float]:
    return {line["what"]: line["target"]["limit"] for line in found["lines"] if line["target"]}


def in_all(names: set[str], where: set[Any]) -> dict[str, set[Any]]:
    return dict.fromkeys(names, where)


# -- parts -------------------------------------------------------------------------------------------------------------


def test_parts_are_those_of_the_command() -> None:
    assert tuple(bench_location.Part) == PARTS


def test_spatial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "LARGE", 2000)
    found = measured(tmp_path, "--part", "spatial", *SERVERS)
    whats = [f"areas, {each}, {share} % each" for each in ("uniform", "Zipf") for share in ("0.001", "0.01", "0.1")]
    for what in whats:
        assert systems(found, f"{what}: messages") == in_all(SPATIAL, {300, 2000})
        assert systems(found, f"{what}: moves") == in_all(MOVING, {300, 2000})
    places = {f"{size}, {each}" for size in ("300", "2,000") for each in ("uniform", "Zipf")}
    assert systems(found, "areas: build") == in_all(SPATIAL, places)
    assert systems(found, "areas: memory") == in_all({*OWN_CIRCLES, "CLCB, CPU", "DuckDB, bounds"}, places)
    with_limits = limits(found)
    for what in whats:
        for own in ("tagmatch, areas", "tagmatch, clients"):
            assert with_limits.pop(f"2,000 {what}: messages, {own} against R*-tree") == 50
            assert with_limits.pop(f"2,000 {what}: memory, {own}") == 80
        assert with_limits.pop(f"2,000 {what}: moves, tagmatch, clients against R*-tree") == 500
    assert not with_limits
    on_gpu = {"CLCB", *OWN_CIRCLES_GPU}
    assert found["unavailable"].keys() == {"R*-tree as Boost has it", "PostGIS", "Redis GEO", *on_gpu}
    compared = Counter(row["system"] for row in found["answers"] if row["where"].endswith("each, beside brute force"))
    assert compared == dict.fromkeys(SPATIAL, 12)
    compared = Counter(row["system"] for row in found["answers"] if row["where"].endswith("moved, beside brute force"))
    assert compared == dict.fromkeys(MOVING, 12)
    compared = Counter(row["system"] for row in found["answers"] if row["where"].endswith("beside Shapely STRtree"))
    assert compared == dict.fromkeys(SPATIAL - {"Shapely STRtree"}, 12)
    assert sum(row["keys"] for row in found["answers"]) > 10_000


def test_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "COVERAGES", (1e-3,))
    monkeypatch.setattr(location_spatial, "DISTRIBUTIONS", {"uniform": "clcb"})
    libraries = [name for name in CIRCLES if name not in ("PostGIS", "Redis GEO")]
    skipped = [word for name in libraries for word in ("--skip", name)]
    found = measured(tmp_path, "--part", "spatial", *skipped)
    title = "areas, uniform, 0.1 % each: messages"
    assert systems(found, title) == in_all({*OWN_CIRCLES, "PostGIS", "Redis GEO (dual)"}, {300, 2000})
    assert {name: found["unavailable"][name] for name in libraries} == dict.fromkeys(libraries, "skipped")


def test_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_content, "_FROM", 4000)
    found = measured(tmp_path, "--part", "content", "--located", "8000")
    for kind in ("constraints", "tags"):
        title = f"CLCB's default scenario, {kind}"
        assert systems(found, f"{title}: one by one") == in_all({"tagmatch, a call each", "CLCB, CPU"}, {4000, 8000})
        assert systems(found, f"{title}: throughput") == in_all(LOCATED - {"tagmatch, a call each"}, {4000, 8000})
    assert limits(found) == {
        f"{size} filters with {kind}: {own} against CLCB, CPU": 2000
        for size in ("4,000", "8,000")
        for kind in ("constraints", "tags")
        for own in ("tagmatch, contents and areas", "tagmatch, end to end")
    }
    compared = Counter((row["where"].partition(", beside ")[2], row["system"]) for row in found["answers"])
    assert compared == {
        **{("brute force", system): 4 for system in LOCATED},
        **{(WHOLE, system): 4 for system in LOCATED - {WHOLE}},
    }
    assert {"CLCB", "tagmatch, contents and areas, GPU"} <= found["unavailable"].keys()


def test_table2(tmp_path: Path) -> None:
    found = measured(tmp_path, "--part", "table2")
    both = {"without location", "with location"}
    own = {"tagmatch, end to end", "tagmatch, contents and areas", "SFF", "BE-Tree"}
    expected = in_all(own, both) | in_all({"CLCB, CPU", "tagmatch, a call each"}, {"with location"})
    assert systems(found, "CLCB Table 2") == expected
    assert printed(found, "CLCB Table 2") == facts(published.TABLE2)
    assert printed(found, "CLCB Table 2: speed-ups") == facts(published.TABLE2_TIMES)
    assert printed(found, "CLCB Table 2: times as long with areas") == facts(published.TABLE2_SLOWER)
    assert printed(found, "CLCB Table 2: update") == facts(published.TABLE2_UPDATE)
    assert systems(found, "CLCB Table 2: update").keys() == {"CLCB, CPU", "tagmatch, clients, end to end", "SFF"}
    wheres = {row["where"] for row in found["answers"] if row["system"] in ("SFF", "BE-Tree")}
    assert wheres == {
        "CLCB Table 2, without areas, beside brute force",
        "CLCB Table 2, areas as constraints, beside brute force",
    }


@pytest.mark.parametrize("number", [3, 4])
def test_figures_of_messages(tmp_path: Path, number: int) -> None:
    found = measured(tmp_path, "--part", f"figure{number}")
    kind = {3: "uniform", 4: "Zipf"}[number]
    names = {"R*-tree", "tagmatch, areas", "CLCB, CPU", "tagmatch, end to end", "tagmatch, contents and areas"}
    for percent in ("0.001", "0.01", "0.1", "1"):
        assert systems(found, f"CLCB Figure {number}, {kind}, {percent} %") == in_all(names, {3, 30, 300})
    title = f"CLCB Figure {number}: speed-ups over an R*-tree"
    pairs_of = {f"{name} against R*-tree" for name in names - {"R*-tree"}}
    assert systems(found, title) == in_all(pairs_of, set(published.COVERAGES))
    assert printed(found, title) == facts(published.TIMES[number])


def test_other_figures(tmp_path: Path) -> None:
    found = measured(tmp_path, "--part", "figure5", "--part", "figure6", "--part", "figure7")
    movers = {"tagmatch, clients", "tagmatch, clients, end to end", "CLCB, CPU", "R*-tree"}
    for title in ("CLCB Figure 5 (a), uniform", "CLCB Figure 5 (b), Zipf"):
        assert systems(found, title) == in_all(movers, {3, 30, 300})
    assert printed(found, "CLCB Figure 5 (a), uniform") == facts(published.FIGURE5)
    for title in ("CLCB Figure 6 (a)", "CLCB Figure 6 (b), content selects all"):
        assert systems(found, title) == {"tagmatch, contents and areas": {"contents", "areas", "keys"}}
    stored = {"tagmatch, contents and areas", "tagmatch, end to end, with the stored rows", "CLCB, CPU"}
    assert systems(found, "CLCB Figure 7: memory") == in_all(stored, {3, 30, 300})
    assert printed(found, "CLCB Figure 7: subscriptions in 1 GB") == facts(published.FIGURE7_AT_LEAST)


def test_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_live, "_LARGE", 6000)
    found = measured(tmp_path, "--part", "live")
    assert systems(found, "moves and messages at once") == in_all({"moves", "messages"}, {"alone", "together"})
    assert limits(found) == {
        "live, 6,000 clients: moves together": 1.5e6,
        "live, 6,000 clients: messages together": 0.4e6,
    }
    assert [row["where"] for row in found["answers"]] == [
        "live, before moves, beside brute force",
        "live, after moves, beside brute force",
    ]


def test_exact(tmp_path: Path) -> None:
    found = measured(tmp_path, "--part", "exact")
    own = ("tagmatch, areas", "tagmatch, clients", "tagmatch, end to end")
    lines = {line["what"]: line for line in found["lines"]}
    for name in own:
        line = lines[f"30,000 areas and positions, {name}: wrong answers"]
        assert line["value"] == 0
        assert line["target"]["limit"] == 0
        assert lines[f"30,000 areas and positions, {name}: inside"]["value"] > 1000
    assert [row["queries"] for row in found["answers"]] == [30_000] * 3


def test_cities(tmp_path: Path) -> None:
    found = measured(tmp_path, "--part", "cities")
    expected = in_all(LOCATED - {"CLCB, CPU"} | ALERTS.keys(), {"cities"})
    assert systems(found, "alerts near cities, 400 of them") == expected
    assert sum(row["keys"] for row in found["answers"]) > 100


def test_cities_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cities.parquet"
    rows = {"country": ["IT", "NO"], "timezone": ["Europe/Rome", "Europe/Oslo"], "population": [5_000_000, 600_000]}
    pq.write_table(pa.table(rows | {"lat": [41.9, 59.9], "lon": [12.5, 10.8]}), path)
    scenario = alerts(50, 30, 1, path)
    assert {tag for tags in scenario.messages["tags"].to_pylist() for tag in tags} == {
        "country:IT", "country:NO", "timezone:Europe/Rome", "timezone:Europe/Oslo",
    }  # fmt: skip
    with pytest.raises(UnavailableError, match="there is no "):
        alerts(50, 30, 1, tmp_path / "nothing")


def test_bad_parameters(tmp_path: Path) -> None:
    for wrong in (
        ["--filters", "0"],
        ["--located", "1"],
        ["--part", "tags"],
        ["--cities", str(tmp_path / "no")],
        ["--skip", "OCM"],
    ):
        done = run(tmp_path, *wrong)
        assert done.exit_code == 2
        assert wrong[0] in done.stderr


# -- what is wrong is found --------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize("name", WRONG_CIRCLES)
def test_a_wrong_system_of_areas_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: bool
) -> None:
    """One that gives a circle too many to the first point that has one, or one too few."""
    system: Any = WRONG_CIRCLES[name]
    right = system.stab

    def wrong(self: Any, x: Any, y: Any) -> Found:
        found = right(self, x, y)
        if not len(found.ids):
            return found
        point = int(np.searchsorted(found.offsets, 1)) - 1
        offsets, at = found.offsets.copy(), int(found.offsets[point])
        offsets[point + 1 :] += 1 if more else -1
        return Found(offsets, np.insert(found.ids, at, 2**31) if more else np.delete(found.ids, at))

    monkeypatch.setattr(system, "stab", wrong)
    monkeypatch.setattr(location_spatial, "COVERAGES", (1e-3,))
    skipped = [word for each in CIRCLES if each not in (name, "Shapely STRtree") for word in ("--skip", each)]
    is_wrong(tmp_path, name, more, "--part", "spatial", *skipped)


def is_wrong(tmp_path: Path, name: str, more: bool, *options: str) -> None:
    done = run(tmp_path, *options)
    assert isinstance(done.exception, TagMatchError)
    assert f"{name} gave" in str(done.exception)
    found = json.loads((tmp_path / "location.json").read_text())["answers"]
    by_brute_force = [row for row in found if row["system"] == name and row["where"].endswith("brute force")]
    assert sum(row["wrong" if more else "missing"] for row in by_brute_force) > 0
    assert sum(row["missing" if more else "wrong"] for row in by_brute_force) == 0


WRONG_LISTS: dict[str, tuple[Any, str]] = {
    "tagmatch, end to end": (TagmatchLocated, "content"),
    "tagmatch, contents and areas": (LocatedMatching, "content"),
    "tagmatch, a call each": (LocatedOneByOne, "cities"),
    "CLCB, CPU": (Clcb, "content"),
    "Shapely STRtree and Python": (ShapelyFilter, "cities"),
    "tagmatch": (TagmatchContent, "live"),
}


@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize("name", WRONG_LISTS)
def test_a_wrong_system_with_content_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: bool
) -> None:
    system, part = WRONG_LISTS[name]
    right = system.match_many

    def wrong(self: Any, messages: Any, *, unique: bool = False) -> Any:
        given = right(self, messages, unique=unique)
        answers = given.to_pylist() if isinstance(given, pa.Array) else [list(keys) for keys in given]
        some = next((keys for keys in answers if keys), answers[0])
        if more:
            some.append(2**63)
        elif some:
            some.pop()
        return pa.array(answers, pa.list_(pa.uint64()))

    monkeypatch.setattr(system, "match_many", wrong)
    # So large that messages are in some of them
    is_wrong(tmp_path, name, more, "--part", part, "--located", "60000", "--live", "60000")


def test_a_wrong_index_of_areas_alone_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = CirclesInIndex.match_many

    def wrong(self: Any, messages: Any) -> Any:
        answers = right(self, messages).to_pylist()
        answers[0].append(5000)
        return pa.array(answers, pa.list_(pa.uint64()))

    monkeypatch.setattr(CirclesInIndex, "match_many", wrong)
    skipped = [word for each in CIRCLES for word in ("--skip", each)]
    is_wrong(tmp_path, "tagmatch, end to end", True, "--part", "spatial", *skipped)


def test_a_move_that_is_forgotten_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "COVERAGES", (1e-3,))
    monkeypatch.setattr(ClientCircles, "move", lambda *_: None)
    skipped = [word for each in CIRCLES for word in ("--skip", each)]
    done = run(tmp_path, "--part", "spatial", *skipped)
    assert "moved, beside brute force: tagmatch, clients gave" in str(done.exception)


@pytest.mark.parametrize("way", ["_fixed", "_of_clients"])
def test_one_wrong_pair_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    right = getattr(location_exact, way)

    def wrong(some: Any) -> Any:
        given = right(some)
        given[np.argmax(np.abs(great_circle(*some[:2], *some[3:]) - some.metres))] ^= True
        return given

    monkeypatch.setattr(location_exact, way, wrong)
    done = run(tmp_path, "--part", "exact")
    assert isinstance(done.exception, TagMatchError)
    assert "wrong answers" in str(done.exception)


# -- what it compares with ---------------------------------------------------------------------------------------------


def test_brute_force_on_areas() -> None:
    scenario = circles("some", 500, 200, 3, "Zipf", 1e-2)
    has = inside((scenario.circles.x, scenario.circles.y, scenario.circles.radius), scenario.x, scenario.y)
    found = circles_with(scenario.circles, scenario.x, scenario.y)
    assert found.ids.tolist() == np.nonzero(has)[1].tolist()
    assert np.diff(found.offsets).tolist() == has.sum(axis=1).tolist()


def test_moves_go_on_and_are_of_different_circles() -> None:
    scenario = circles("some", 50, 10, 3, "uniform", 1e-2)
    calls = []

    class Mover(Moves):
        def move(self, ids: Any, x: Any, y: Any) -> None:
            calls.append((ids.tolist(), x.tolist(), y.tolist()))

    moving = Moving(Mover(), scenario)
    for _ in range(9):
        moving(40)
    assert all(len(set(ids)) == 40 for ids, _, _ in calls)
    assert len({tuple(x) for _, x, _ in calls}) == 5, "then they begin anew"
    where = dict(enumerate(zip(scenario.circles.x.tolist(), scenario.circles.y.tolist(), strict=True)))
    for ids, x, y in calls:
        where |= dict(zip(ids, zip(x, y, strict=True), strict=True))
    moved = moving.circles()
    assert list(where.values()) == list(zip(moved.x.tolist(), moved.y.tolist(), strict=True))


@pytest.mark.parametrize("content", ["constraints", "tags"])
def test_brute_force_on_contents_and_areas(content: Any) -> None:
    scenario = located("some", 3000, 60, 5, content, coverage=0.2, selectivity=0.02)
    right = matching_rows(scenario.subscriptions.to_pylist(), rows_of(scenario))
    assert [keys.tolist() for keys in scenario.right] == [
        sorted({scenario.subscriptions["key"][row].as_py() for row in rows}) for rows in right[: scenario.sample]
    ]
    assert sum(map(len, right)) > 100


def rows_of(scenario: LocatedScenario) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None} for row in scenario.messages.to_pylist()]


def test_brute_force_on_the_sphere() -> None:
    scenario = alerts(300, 40, 2, None)
    right = matching_rows(scenario.subscriptions.to_pylist(), rows_of(scenario))
    assert [keys.tolist() for keys in scenario.right] == right[: scenario.sample]
    assert sum(map(len, right)) > 5


def test_single_precision_may_differ_on_edges_only() -> None:
    """A circle that a point is a little off the edge of counts neither as wrong nor as missing, others do."""
    stored = pa.table(
        {
            "key": pa.array([0, 1, 2], pa.uint64()),
            "tags": pa.array([[], [], []], pa.list_(pa.string())),
            "constraints": pa.array([[], [], []], pa.list_(CONSTRAINT)),
            "area": [{"x": 0.0, "y": 0.0, "radius": r} for r in (0.5, 0.5 * (1 + 1e-8), 0.51)],
        }
    )
    sent = pa.table({"tags": pa.array([[]], pa.list_(pa.string())), "location": [{"x": 0.5, "y": 0.0}]})
    scenario = LocatedScenario("edges", stored, sent)
    assert [scenario.on_edge(0, key) for key in range(3)] == [True, True, False]
    some = circles("some", 3, 1, 1, "uniform", 1e-2)
    some.circles.x[:], some.circles.y[:], some.circles.radius[:] = 0.0, 0.0, (0.5, 0.5 * (1 + 1e-8), 0.51)
    moved = circle_harness.CircleScenario(
        "some", some.circles, np.array([0.5]), np.array([0.0]), some.ids, some.to_x, some.to_y
    )
    on_edge = circle_harness._on_edge(np.arange(3, dtype=np.uint64), moved, some.circles)
    assert on_edge.tolist() == [True, True, False]


def test_great_circle_is_that_of_the_haversine_formula() -> None:
    some = pairs(20_000, np.random.default_rng(4))
    one = great_circle(some.lon, some.lat, some.at_lon, some.at_lat)
    other = metres(some.lon, some.lat, some.at_lon, some.at_lat)
    # The haversine loses digits near the antipodes
    assert np.allclose(one, other, rtol=1e-7, atol=1e-6)


def test_pairs_have_all_sizes_poles_the_anti_meridian_and_both_sides_of_the_border() -> None:
    some = pairs(200_000, np.random.default_rng(4))
    right, near = some.has()
    assert 0.3 < right.mean() < 0.7
    assert near.mean() < 0.01
    off = np.abs(great_circle(some.lon, some.lat, some.at_lon, some.at_lat) / some.metres - 1)
    assert (off < 1e-5).mean() > 0.05
    assert some.metres.min() < 2
    assert (some.metres > 10_007_543).mean() > 0.05
    assert (np.abs(some.lat) == 90).sum() > 1000
    assert (np.abs(some.lon) == 180).sum() > 1000
    across = np.abs(some.lon - some.at_lon) > 180
    assert (across & right).sum() > 10_000
    for lon, lat in ((some.lon, some.lat), (some.at_lon, some.at_lat)):
        assert np.abs(lon).max() <= 180
        assert np.abs(lat).max() <= 90
