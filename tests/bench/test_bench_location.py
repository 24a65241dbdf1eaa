"""Systems that match areas, alone or with constraints: against brute force, and in `tagmatch-bench location`."""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import systems as shared
from support.bench import Found, at, facts, measured, run
from support.servers import needs
from support.systems import Case, cases, check_circles, check_located, one_radius, random_case, right_keys

from tagmatch.model.errors import TagMatchError
from tagmatch_bench.figures import location as location_figure
from tagmatch_bench.figures import location_content, location_spatial, published
from tagmatch_bench.harness.located import WHOLE, great_circle, tags_as_attributes, tags_as_constraints
from tagmatch_bench.systems import servers
from tagmatch_bench.systems.catalogue import ALERTS, CIRCLES, GRID, LOCATED, OWN_CIRCLES, OWN_CIRCLES_GPU, System
from tagmatch_bench.systems.circle_databases import PostGis, RedisGeo
from tagmatch_bench.systems.circle_trees import RStarTree, ScipyTree
from tagmatch_bench.systems.circles import Circles
from tagmatch_bench.systems.circles import Found as FoundCircles
from tagmatch_bench.systems.matcher import UnavailableError, answers_to_pylist
from tagmatch_bench.systems.servers import PostgresServer, RedisServer
from tagmatch_bench.systems.tagmatch_circles import ClientCircles, FixedCircles
from tagmatch_bench.systems.tagmatch_content import LocatedMatching, LocatedOneByOne, TagmatchLocated
from tagmatch_bench.workloads.location import LocationOptions, LocationWorkload

Build = Callable[..., Any]

SINGLE = "CLCB, CPU"
ON_SERVERS = ("PostGIS", "Redis GEO")
SYSTEMS = {name: system for name, system in {**CIRCLES, **OWN_CIRCLES}.items() if system.needs is None}


@pytest.fixture(scope="module", params=[*SYSTEMS, *ON_SERVERS])
def areas(request: pytest.FixtureRequest) -> tuple[str, Build]:
    """A system that matches areas, by name; on the one server of its kind."""
    name = request.param
    if name == "PostGIS":
        server = request.getfixturevalue("postgis")
        return name, lambda circles, threads: PostGis(circles, threads=threads, server=server)
    if name == "Redis GEO":
        server = request.getfixturevalue("redis")
        return name, lambda circles, _: RedisGeo(circles, server=server)
    if name == GRID:
        needs("g++", "g++")
    return name, SYSTEMS[name]


@given(data=st.data())
def test_areas(areas: tuple[str, Build], data: st.DataObject) -> None:
    name, build = areas
    case = data.draw(cases(shared.PLACES, shared.RADII) if name == SINGLE else cases())
    check_circles(lambda circles: build(circles, 1), one_radius(case) if name == "SciPy cKDTree" else case)


@pytest.mark.parametrize("threads", [1, 2])
def test_many_areas(areas: tuple[str, Build], threads: int, seed: int) -> None:
    name, build = areas
    for number in (seed, 17):  # with which a box of an R*-tree once became too small
        case = random_case(number, 700, 150)
        if name == "SciPy cKDTree":
            case = one_radius(case)
            case.circles.radius[:] = 0.05
        assert check_circles(lambda circles: build(circles, threads), case) > 100
    if name != SINGLE:
        # Circles that have a point, as their distance is rounded, which is beyond the centre less the radius
        x, radius = 0.5 + np.random.default_rng(1).random(200) / 10, np.full(200, 0.5)
        px = np.nextafter(x - radius, -1)
        odd = (px - x) * (px - x) <= radius * radius
        assert odd.sum() > 50
        y = np.full(odd.sum(), 0.5)
        check_circles(lambda circles: build(circles, threads), Case(Circles(x[odd], y, y), (px[odd], y, y), []))


def test_areas_that_a_system_does_not_take() -> None:
    tree = ScipyTree(Circles.checked([0.5, 0.5], [0.5, 0.5], [0.1, 0.2]))
    with pytest.raises(ValueError, match="circles have different radii"):
        tree.stab(np.array([0.5]), np.array([0.5]))
    assert tree.within(np.array([0.5]), np.array([0.5]), np.array([0.1])).ids.tolist() == [0, 1]
    with pytest.raises(ValueError, match="x must be from 0 to 1"):
        SYSTEMS["H3 cells in a dict"](Circles.checked([1.5], [0.5], [0.1]), 1)
    for columns, message in (
        (([0.0], [0.0], [-1.0]), "a circle has a negative radius"),
        (([np.nan], [0.0], [1.0]), "null, NaN or infinite"),
        (([0.0], [np.inf], [1.0]), "null, NaN or infinite"),
        (([0.0], [0.0, 1.0], [1.0]), "different lengths: 1, 2, 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Circles.checked(*columns)


def test_nothing_is_left_behind(
    postgis: PostgresServer, redis: RedisServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = random_case(seed, 700, 150)
    system = PostGis(case.circles, server=postgis)
    assert "Index Scan using circles" in system.plan(*case.points[:2])
    for each in (system, RedisGeo(case.circles, server=redis)):
        assert (each.nbytes() or 0) > 0
        each.close()
    with postgis.connect() as connection:
        assert connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'circles%'").fetchall() == []
    assert redis.connect().keys() == []
    for name in ON_SERVERS:  # with its own server
        with closing(CIRCLES[name](Circles.checked([0.5], [0.5], [0.1]), 1)) as system:
            found = system.stab(*np.full((2, 1), 0.5)) if name == "PostGIS" else system.within(*np.full((3, 1), 0.5))
            assert found.ids.tolist() == [0]
    monkeypatch.setattr(servers.shutil, "which", lambda *_, **__: None)
    with pytest.raises(UnavailableError, match="needs the program redis-server"):
        RedisServer()
    monkeypatch.setattr(servers.shutil, "which", lambda *_, **__: "/bin/false")
    with pytest.raises(RuntimeError, match="Redis's server does not start"):
        RedisServer()
    monkeypatch.setattr("tagmatch_bench.systems.circle_databases._EXTENSION", "postgis_of_another_world")
    with pytest.raises(UnavailableError, match=r"needs the extension postgis_of_another_world .* postgresql-postgis"):
        PostGis(case.circles, server=postgis)


@pytest.fixture(params=LOCATED, scope="module")
def system(request: pytest.FixtureRequest) -> System:
    return LOCATED[request.param]


@given(workload=shared.located_workloads(), threads=st.sampled_from([1, 3]))
def test_constraints_and_areas(system: System, workload: tuple[pa.Table, pa.Table], threads: int) -> None:
    check_located(system, *workload, threads)


@pytest.mark.parametrize("size", [254, 255, 300])
def test_as_many_constraints_as_bytes_count(system: System, size: int) -> None:
    asked = [{"attr": "x", "op": ">", "value": i % 5, "upper": None} for i in range(size)]
    struct = pa.struct({"attr": pa.string(), "op": pa.string(), "value": pa.int64(), "upper": pa.int64()})
    stored = {
        "key": pa.array([1, 2], pa.uint64()),
        "constraints": pa.array([asked, asked[:-1]], pa.list_(struct)),
        "area": pa.array([{"x": 0.5, "y": 0.5, "radius": 0.5}] * 2, shared.AREA),
    }
    sent = pa.table(
        {"x": [5, 0, 5, 4], "location": pa.array([{"x": 0.5, "y": 0.5}] * 3 + [{"x": 0, "y": 0}], shared.POINT)}
    )
    assert check_located(system, pa.table(stored), sent) == 8
    with closing(system(pa.table(stored), 1)) as matcher, pytest.raises(ValueError, match="a message has no position"):
        matcher.prepare(pa.table({"location": pa.array([{"x": 0.5, "y": None}], shared.POINT)}))


@pytest.mark.parametrize("content", ["constraints", "tags", "both"])
@pytest.mark.parametrize("degrees", [0.0, 10.0])
def test_own_systems(content: Any, degrees: float, seed: int) -> None:
    """In all three ways to ask, of any number of the first messages."""
    made = LocationWorkload(LocationOptions(seed=seed, subscribers=60, coverage=0.3, selectivity=0.02, degrees=degrees))
    stored, sent = made.subscriptions(0, 600, content=content), made.messages(0, 600, content=content)
    right = [sorted(set(keys)) for keys in right_keys(stored, sent)]
    whole = TagmatchLocated(stored)
    others = LocatedMatching(whole), LocatedOneByOne(whole)
    for each in (whole, *others):
        prepared: Any = each.prepare(sent)
        for count in (1, 511, 513, 600):
            given = answers_to_pylist(each.match_many(prepared[:count], unique=True))
            assert list(map(sorted, given)) == right[:count]
        assert each.nbytes() > 0
    with pytest.raises(IndexError, match="only the first"):
        others[0].prepare(sent)[3:]
    for other in others:
        other.close()
    assert len(whole.index) > 0, "they leave it open"
    whole.close()
    assert sum(map(len, right)) > (3 if content == "both" else 300)
    if content == "tags":
        assert right_keys(tags_as_constraints(stored), tags_as_attributes(sent)) == right_keys(stored, sent)


SERVERS = {*ON_SERVERS}
SPATIAL = {*OWN_CIRCLES, *CIRCLES} - SERVERS
MOVING = {"tagmatch, clients", "tagmatch, clients, end to end", "CLCB, CPU", "R*-tree", "H3 cells in a dict"}
MOVING |= {"DuckDB, bounds"}
MATCHING = {"tagmatch, end to end", "tagmatch, contents and areas", "tagmatch, a call each", "CLCB, CPU"}
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


def test_spatial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "LARGE", 2000)
    found = found_in(tmp_path, *of("spatial", skip=SERVERS))
    whats = [f"areas, {each}, {share} % each" for each in ("uniform", "Zipf") for share in ("0.001", "0.01", "0.1")]
    for what in whats:
        assert found.places(f"{what}: messages") == at(SPATIAL, {300, 2000})
        assert found.places(f"{what}: moves") == at(MOVING, {300, 2000})
    assert found.places("areas: build").keys() == SPATIAL
    assert found.places("areas: memory").keys() == {*OWN_CIRCLES, "CLCB, CPU", "DuckDB, bounds", GRID}
    assert len(found.limits) == 8 * len(whats)
    assert found.unavailable.keys() == {"R*-tree as Boost has it", *SERVERS, "CLCB", *OWN_CIRCLES_GPU}
    for where, systems in (
        ("each, against brute force", SPATIAL),
        ("moved, against brute force", MOVING),
        ("against Shapely STRtree", SPATIAL - {"Shapely STRtree"}),
    ):
        assert Counter(row["system"] for row in found.answers if row["where"].endswith(where)) == dict.fromkeys(
            systems, 12
        )
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
        assert found.places(f"{title}: throughput") == at(MATCHING - {"tagmatch, a call each"}, {4000, 8000})
    assert list(found.limits.values()) == 8 * [2000]
    assert found.compared("brute force") == dict.fromkeys(MATCHING, 4)
    assert found.compared(WHOLE) == dict.fromkeys(MATCHING - {WHOLE}, 4)
    assert {"CLCB", "tagmatch, contents and areas, GPU"} <= found.unavailable.keys()


def test_table2(tmp_path: Path) -> None:
    found = found_in(tmp_path, *of("table2"))
    places = {published.WITHOUT_LOCATION, published.WITH_LOCATION}
    both = at(("tagmatch, end to end", "tagmatch, contents and areas", "SFF", "BE-Tree"), places)
    with_areas = at(("CLCB, CPU", "tagmatch, a call each"), {published.WITH_LOCATION})
    assert found.places("CLCB Table 2") == both | with_areas
    for title, rows in (
        ("", published.CLCB_TABLE2), (": speed-ups", published.CLCB_TABLE2_TIMES),
        (": times as long with areas", published.CLCB_TABLE2_SLOWER), (": update", published.CLCB_TABLE2_UPDATE),
    ):  # fmt: skip
        assert found.published(f"CLCB Table 2{title}") == facts(rows)
    assert found.places("CLCB Table 2: update").keys() == {"CLCB, CPU", "tagmatch, clients, end to end", "SFF"}
    for way in ("without areas", "areas as constraints"):
        assert found.compared("brute force", f"CLCB Table 2, {way}").keys() >= {"SFF", "BE-Tree"}


def test_figures(tmp_path: Path) -> None:
    found = found_in(tmp_path, *of(*(f"figure{number}" for number in (3, 4, 5, 6, 7))))
    names = {"R*-tree", "tagmatch, areas", "CLCB, CPU", "tagmatch, end to end", "tagmatch, contents and areas"}
    movers = {"tagmatch, clients", "tagmatch, clients, end to end", "CLCB, CPU", "R*-tree"}
    stored = {"tagmatch, contents and areas", "tagmatch, end to end, with the stored rows", "CLCB, CPU"}
    sizes, phases = {3, 30, 300}, at(["tagmatch, contents and areas"], {"contents", "areas", "keys"})
    due = {
        **{f"Figure 3, uniform, {percent} %": at(names, sizes) for percent in ("0.001", "0.01", "0.1", "1")},
        **{f"Figure 4, Zipf, {percent} %": at(names, sizes) for percent in ("0.001", "0.01", "0.1", "1")},
        **dict.fromkeys(("Figure 5 (a), uniform", "Figure 5 (b), Zipf"), at(movers, sizes)),
        **dict.fromkeys(("Figure 6 (a)", "Figure 6 (b), content selects all"), phases),
        "Figure 7: memory": at(stored, sizes),
    }
    assert {title: found.places(f"CLCB {title}") for title in due} == due
    for number in (3, 4):
        title = f"CLCB Figure {number}: speed-ups over an R*-tree"
        assert found.places(title) == at(
            {f"{name} against R*-tree" for name in names - {"R*-tree"}}, published.COVERAGES
        )
        assert found.published(title) == facts(published.CLCB_TIMES[number])
    assert found.published("CLCB Figure 5 (a), uniform") == facts(published.CLCB_FIGURE5)
    assert found.published("CLCB Figure 7: subscriptions in 1 GB") == facts(published.CLCB_FIGURE7_AT_LEAST)


def test_a_coverage_alone(tmp_path: Path) -> None:
    found = found_in(tmp_path, *of("figure4"), "--coverage", "0.1")
    assert [title for title in found.panels if "Figure 4, " in title] == ["CLCB Figure 4, Zipf, 0.1 %"]


def test_live_exact_and_cities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_figure, "_LARGE", 6000)
    found = found_in(tmp_path, *of("live", "exact", "cities"))
    assert found.places("moves and messages at once") == at({"moves", "messages"}, {"alone", "together"})
    for name in ("areas", "clients", "end to end"):
        what = f"30,000 areas and positions, tagmatch, {name}"
        assert found.value(f"{what}: wrong answers") == 0
        assert found.value(f"{what}: inside") > 1000
    for when in ("before", "after"):
        assert found.compared("brute force", f"live, {when} moves")
    near = "alerts near cities, 400 of them"
    assert found.places(near) == at(MATCHING - {"CLCB, CPU"} | ALERTS.keys(), {"cities"})
    assert sum(row["keys"] for row in found.answers if "cities" in row["where"]) > 100


WRONG = {
    "tagmatch, areas": (FixedCircles, "more"),
    "R*-tree": (RStarTree, "less"),
    "tagmatch, clients": (ClientCircles, ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_system_of_areas_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One that gives a circle too many to the first point that has one, or one too few; or that moves none."""
    system: Any
    system, fault = WRONG[name]
    right = system.stab

    def wrong(self: Any, x: Any, y: Any) -> FoundCircles:
        found = right(self, x, y)
        if not len(found.ids):
            return found
        point = int(np.searchsorted(found.offsets, 1)) - 1
        offsets, place = found.offsets.copy(), int(found.offsets[point])
        offsets[point + 1 :] += 1 if fault == "more" else -1
        ids = np.insert(found.ids, place, 2**31) if fault == "more" else np.delete(found.ids, place)
        return FoundCircles(offsets, ids)

    monkeypatch.setattr(system, *(("stab", wrong) if fault else ("move", lambda *_: None)))
    monkeypatch.setattr(location_spatial, "COVERAGES", (1e-3,))
    done = run("location", tmp_path, *SMALL, *of("spatial", skip=CIRCLES.keys() - {name}))
    assert isinstance(done.exception, TagMatchError)
    assert f"{'' if fault else 'moved, '}against brute force: {name} gave" in str(done.exception)
    rows = [row for row in Found(tmp_path, "location").answers if row["where"].endswith("brute force")]
    for what, its in (("wrong", "more"), ("missing", "less")):
        assert not fault or (sum(row[what] for row in rows) > 0) == (fault == its)


@pytest.mark.parametrize("way", ["_fixed", "_of_clients"])
def test_one_wrong_pair_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    right = getattr(location_figure, way)

    def wrong(some: Any) -> Any:
        given = right(some)
        given[np.argmax(np.abs(great_circle(*some[:2], *some[3:]) - some.metres))] ^= True
        return given

    monkeypatch.setattr(location_figure, way, wrong)
    done = run("location", tmp_path, *SMALL, *of("exact"))
    assert isinstance(done.exception, TagMatchError)
    assert "wrong answers" in str(done.exception)
