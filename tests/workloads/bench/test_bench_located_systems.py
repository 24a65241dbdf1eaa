"""The systems that match areas, alone and with contents, against brute force; those on a GPU: tests/pipeline/cuda."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.systems import (
    AREA,
    PLACES,
    POINT,
    RADII,
    Case,
    cases,
    check_circles,
    check_located,
    located_workloads,
    one_radius,
    random_case,
    right_keys,
)

from tagmatch.workloads.location import Location, LocationOptions
from tagmatch.workloads.location.as_constraints import tags_as_attributes, tags_as_constraints
from tagmatch.workloads.systems import redis_server
from tagmatch.workloads.systems.catalogue import CIRCLES, LOCATED, OWN_CIRCLES, System
from tagmatch.workloads.systems.circles import Circles
from tagmatch.workloads.systems.matcher import UnavailableError, answers_to_pylist
from tagmatch.workloads.systems.postgis import PostGis
from tagmatch.workloads.systems.postgres_server import PostgresServer
from tagmatch.workloads.systems.redis_geo import RedisGeo
from tagmatch.workloads.systems.redis_server import RedisServer
from tagmatch.workloads.systems.scipy_tree import ScipyTree
from tagmatch.workloads.systems.tagmatch_located import LocatedMatching, LocatedOneByOne, TagmatchLocated

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
    return name, SYSTEMS[name].build


@given(data=st.data())
def test_areas(areas: tuple[str, Build], data: st.DataObject) -> None:
    name, build = areas
    case = data.draw(cases(PLACES, RADII) if name == SINGLE else cases())
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
        SYSTEMS["H3 cells in a dict"].build(Circles.checked([1.5], [0.5], [0.1]), 1)
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
    for name in ON_SERVERS:  # with a server of its own
        with closing(CIRCLES[name].build(Circles.checked([0.5], [0.5], [0.1]), 1)) as system:
            assert system.within(*np.full((3, 1), 0.5)).ids.tolist() == [0]
    monkeypatch.setattr(redis_server.shutil, "which", lambda _: None)
    with pytest.raises(UnavailableError, match="needs the program redis-server"):
        RedisServer()
    monkeypatch.setattr(redis_server.shutil, "which", lambda _: "/bin/false")
    with pytest.raises(RuntimeError, match="Redis's server does not start"):
        RedisServer()
    monkeypatch.setattr("tagmatch.workloads.systems.postgis._EXTENSION", "postgis_of_another_world")
    with pytest.raises(UnavailableError, match="needs PostGIS"):
        PostGis(case.circles, server=postgis)


@pytest.fixture(params=LOCATED, scope="module")
def system(request: pytest.FixtureRequest) -> System:
    return LOCATED[request.param]


@given(workload=located_workloads(), threads=st.sampled_from([1, 3]))
def test_constraints_and_areas(system: System, workload: tuple[pa.Table, pa.Table], threads: int) -> None:
    check_located(system, *workload, threads)


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
    with closing(system(pa.table(stored), 1)) as matcher, pytest.raises(ValueError, match="a message has no position"):
        matcher.prepare(pa.table({"location": pa.array([{"x": 0.5, "y": None}], POINT)}))


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
