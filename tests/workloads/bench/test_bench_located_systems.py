"""The systems that match areas, alone and with contents, against brute force; those on a GPU: tests/pipeline/cuda."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.circle_systems import PLACES, RADII, Case, cases, check, one_radius, random_case
from support.located_systems import AREA, POINT, check_located, located_workloads, on_a_grid, right_keys

from tagmatch.workloads.content.generate import CONSTRAINT
from tagmatch.workloads.location import SCENARIOS, Location, LocationOptions
from tagmatch.workloads.location.as_constraints import tags_as_attributes, tags_as_constraints
from tagmatch.workloads.location.generate import SPHERE_AREA, SPHERE_POINT
from tagmatch.workloads.systems import redis_server
from tagmatch.workloads.systems.catalogue import ALERTS, CIRCLES, LOCATED, OWN_CIRCLES, System
from tagmatch.workloads.systems.circles import Circles, Dual, Moves, Stabs
from tagmatch.workloads.systems.matcher import UnavailableError, answers_to_pylist
from tagmatch.workloads.systems.postgis import PostGis
from tagmatch.workloads.systems.postgres_server import PostgresServer
from tagmatch.workloads.systems.redis_geo import RedisGeo
from tagmatch.workloads.systems.redis_server import RedisServer
from tagmatch.workloads.systems.scipy_tree import ScipyTree
from tagmatch.workloads.systems.tagmatch_located import LocatedMatching, LocatedOneByOne, TagmatchLocated

pytestmark = pytest.mark.nightly

Build = Callable[..., Any]

ONE = Circles.checked([0.5], [0.5], [0.1])
SINGLE = "CLCB, CPU"
ON_SERVERS = ("PostGIS", "Redis GEO")
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
    "PostGIS": {Stabs, Dual, Moves},
    "Redis GEO": {Dual, Moves},
}
assert ABILITIES.keys() == {*SYSTEMS, *ON_SERVERS}


@pytest.fixture(scope="module", params=ABILITIES)
def areas(request: pytest.FixtureRequest) -> tuple[str, Build]:
    """A system that matches areas, by name; on the one server of its kind."""
    name = request.param
    if name == "PostGIS":
        server = request.getfixturevalue("postgis")
        return name, lambda circles, threads: PostGis(circles, threads=threads, server=server)
    if name == "Redis GEO":
        server = request.getfixturevalue("redis")
        return name, lambda circles, _: RedisGeo(circles, server=server)
    return name, SYSTEMS[name].build


@given(data=st.data())
def test_areas(areas: tuple[str, Build], data: st.DataObject) -> None:
    name, build = areas
    case = data.draw(cases(PLACES, RADII) if name == SINGLE else cases())
    check(lambda circles: build(circles, 1), one_radius(case) if name == "SciPy cKDTree" else case)


@pytest.mark.parametrize("threads", [1, 2])
def test_many_areas(areas: tuple[str, Build], threads: int, seed: int) -> None:
    name, build = areas
    case = random_case(seed, 700, 150)
    if name == "SciPy cKDTree":
        case = one_radius(case)
        case.circles.radius[:] = 0.05
    assert check(lambda circles: build(circles, threads), case) > 100


def test_points_that_rounding_puts_out_of_a_box(areas: tuple[str, Build]) -> None:
    """Circles that have a point, as their distance is rounded, which is beyond the centre less the radius."""
    name, build = areas
    rng = np.random.default_rng(1)
    x, radius = 0.5 + rng.random(200) / 10, np.full(200, 0.5)
    px = np.nextafter(x - radius, -1)
    odd = (px - x) * (px - x) <= radius * radius
    assert odd.sum() > 50
    x, px, radius = x[odd], px[odd], radius[odd]
    case = Case(Circles(x, np.full(len(x), 0.5), radius), (px, np.full(len(x), 0.5), radius), [])
    if name != SINGLE:
        check(lambda circles: build(circles, 1), case)


def test_abilities(areas: tuple[str, Build]) -> None:
    """And circles that are given stay as they are."""
    name, build = areas
    given_ones = Circles.checked([0.5, 0.25], [0.5, 0.25], [0.125, 0.125])
    system = build(given_ones, 1)
    assert {kind for kind in (Stabs, Dual, Moves) if isinstance(system, kind)} == ABILITIES[name]
    if isinstance(system, Moves):
        system.move(np.array([1], np.uint32), np.array([0.75]), np.array([0.75]))
        if isinstance(system, Stabs):
            assert system.stab(np.array([0.75, 0.25]), np.array([0.75, 0.25])).ids.tolist() == [1]
    assert given_ones.x.tolist() == [0.5, 0.25]
    system.close()


def test_areas_that_a_system_does_not_take() -> None:
    tree = ScipyTree(Circles.checked([0.5, 0.5], [0.5, 0.5], [0.1, 0.2]))
    with pytest.raises(ValueError, match="circles have different radii"):
        tree.stab(np.array([0.5]), np.array([0.5]))
    assert tree.within(np.array([0.5]), np.array([0.5]), np.array([0.1])).ids.tolist() == [0, 1]
    with pytest.raises(ValueError, match="x must be from 0 to 1"):
        SYSTEMS["H3 cells in a dict"].build(Circles.checked([1.5], [0.5], [0.1]), 1)
    for columns, message in (
        (([0.0], [0.0], [-1.0]), "a circle has a negative radius"),
        (([np.nan], [0.0], [1.0]), "null, NaN or infinite"),
        (([0.0], [np.inf], [1.0]), "null, NaN or infinite"),
        (([0.0], [0.0, 1.0], [1.0]), "different lengths: 1, 2, 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Circles.checked(*columns)


# -- servers -----------------------------------------------------------------------------------------------------------


def test_nothing_is_left_behind(postgis: PostgresServer, redis: RedisServer, seed: int) -> None:
    case = random_case(seed, 700, 150)
    system = PostGis(case.circles, server=postgis)
    assert "Index Scan using circles" in system.plan(*case.points[:2])
    for each in (system, RedisGeo(ONE, server=redis)):
        assert (each.nbytes() or 0) > 0
        each.close()
    with postgis.connect() as connection:
        assert connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'circles%'").fetchall() == []
    assert redis.connect().keys() == []


@pytest.mark.usefixtures("postgis", "redis")
@pytest.mark.parametrize("name", ON_SERVERS)
def test_a_server_of_its_own(name: str) -> None:
    system = CIRCLES[name].build(ONE, 1)
    half = np.array([0.5])
    assert system.within(half, half, half).ids.tolist() == [0]
    system.close()


@pytest.mark.usefixtures("redis")
def test_servers_end_with_their_object() -> None:
    server = RedisServer()
    folder = server.folder
    assert folder.is_dir()
    del server
    while folder.exists():  # else the test times out
        time.sleep(0.05)


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, postgis: PostgresServer) -> None:
    monkeypatch.setattr(redis_server.shutil, "which", lambda _: None)
    with pytest.raises(UnavailableError, match="needs the program redis-server"):
        RedisServer()
    monkeypatch.setattr(redis_server.shutil, "which", lambda _: "/bin/false")
    with pytest.raises(RuntimeError, match="Redis's server does not start"):
        RedisServer()
    monkeypatch.setattr("tagmatch.workloads.systems.postgis._EXTENSION", "postgis_of_another_world")
    with pytest.raises(UnavailableError, match="needs PostGIS"):
        PostGis(ONE, server=postgis)


# -- constraints and areas -------------------------------------------------------------------------------------------


@pytest.fixture(params=LOCATED, scope="module")
def system(request: pytest.FixtureRequest) -> System:
    return LOCATED[request.param]


@given(workload=located_workloads(), threads=st.sampled_from([1, 3]))
def test_constraints_and_areas(system: System, workload: tuple[pa.Table, pa.Table], threads: int) -> None:
    check_located(system, *workload, threads)


@pytest.mark.parametrize("scenario", ["clcb", "zipf", "every"])
def test_generated(system: System, scenario: str) -> None:
    few = {} if scenario == "every" else {"names": 5}
    location = Location(replace(SCENARIOS[scenario], subscribers=60, coverage=0.05, **few))
    stored, sent = location.subscriptions(0, location.filters), location.messages(0, 60)
    found = check_located(system, on_a_grid(stored, "area", AREA), on_a_grid(sent, "location", POINT), threads=2)
    assert found > 20


@pytest.mark.parametrize("size", [254, 255, 300])
def test_as_many_constraints_as_bytes_count(system: System, size: int) -> None:
    asked = [{"attr": "x", "op": ">", "value": i % 5, "upper": None} for i in range(size)]
    struct = pa.struct({"attr": pa.string(), "op": pa.string(), "value": pa.int64(), "upper": pa.int64()})
    stored = {
        "key": pa.array([1, 2], pa.uint64()),
        "constraints": pa.array([asked, asked[:-1]], pa.list_(struct)),
        "area": pa.array([{"x": 0.5, "y": 0.5, "radius": 0.5}] * 2, AREA),
    }
    sent = pa.table({"x": [5, 0, 5, 4], "location": pa.array([{"x": 0.5, "y": 0.5}] * 3 + [{"x": 0, "y": 0}], POINT)})
    assert check_located(system, pa.table(stored), sent) == 8
    matcher: Any = system(Location(SCENARIOS["clcb"]).subscriptions(0, 5), 1)
    with pytest.raises(ValueError, match="a message has no position"):
        matcher.prepare(pa.table({"location": pa.array([{"x": 0.5, "y": None}], POINT)}))


# -- our own, and on the sphere --------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["constraints", "tags", "both"])
@pytest.mark.parametrize("degrees", [0.0, 10.0])
def test_own_systems(content: Any, degrees: float, seed: int) -> None:
    """In all three ways to ask, of any number of the first messages."""
    made = Location(LocationOptions(seed=seed, subscribers=60, coverage=0.3, selectivity=0.02, degrees=degrees))
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


longitudes = st.sampled_from([-180.0, 180.0, 0.0, 179.9, -179.9]) | st.floats(-180, 180)
latitudes = st.sampled_from([-90.0, 90.0, 0.0, 89.9, -89.9]) | st.floats(-90, 90)
radii = st.sampled_from([1.0, 20_000.0, 1e7, 2.1e7]) | st.floats(0, 2.1e7)
names = st.lists(st.sampled_from(["a", "b", "c"]), max_size=2, unique=True)


def alerts(areas: list[Any], places: list[Any]) -> tuple[pa.Table, pa.Table]:
    """Tables of subscriptions and messages: where they are, their tags, and population."""
    none = {"upper": None, "text": None}
    asked = [[{"attr": "population", "op": ">", "value": least, **none}] if least else [] for *_, least in areas]
    stored = {
        "key": pa.array(range(len(areas)), pa.uint64()),
        "tags": pa.array([tags for *_, tags, _ in areas], pa.list_(pa.string())),
        "constraints": pa.array(asked, pa.list_(CONSTRAINT)),
        "area": pa.array([{"lon": lon, "lat": lat, "metres": m} for lon, lat, m, *_ in areas], SPHERE_AREA),
    }
    sent = {
        "tags": pa.array([tags for _, _, tags, _ in places], pa.list_(pa.string())),
        "location": pa.array([{"lon": lon, "lat": lat} for lon, lat, *_ in places], SPHERE_POINT),
        "population": pa.array([people for *_, people in places], pa.int64()),
    }
    return pa.table(stored), pa.table(sent)


def check_alerts(name: str, areas: list[Any], places: list[Any]) -> int:
    stored, sent = alerts(areas, places)
    system, right = ALERTS[name].build(stored, 1), right_keys(stored, sent)
    for each_once in (False, True):
        assert list(map(sorted, system.match_many(system.prepare(sent), unique=each_once))) == right
    system.close()
    return sum(map(len, right))


@pytest.mark.parametrize("name", ALERTS)
@given(
    areas=st.lists(st.tuples(longitudes, latitudes, radii, names, st.integers(0, 3)), max_size=6),
    places=st.lists(st.tuples(longitudes, latitudes, names, st.none() | st.integers(0, 3)), max_size=6),
)
def test_on_the_sphere(name: str, areas: list[Any], places: list[Any]) -> None:
    """At poles and across the anti-meridian, with circles up to all the globe."""
    check_alerts(name, areas, places)


@pytest.mark.parametrize("name", ALERTS)
def test_many_on_the_sphere(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)

    def places() -> list[list[float]]:
        return np.column_stack([random.uniform(-180, 180, 300), 90 - np.abs(random.normal(0, 30, 300))]).tolist()

    metres = np.exp(random.uniform(5, 16.8, 300)).tolist()
    stored = [(*place, most, [], 0) for place, most in zip(places(), metres, strict=True)]
    assert check_alerts(name, stored, [(*place, [], None) for place in places()]) > 1000
