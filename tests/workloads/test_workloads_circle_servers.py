"""PostGIS and Redis against brute force, and what they leave behind."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from support.circle_systems import Case, cases, check, random_case

from tagmatch.workloads.systems import redis_server
from tagmatch.workloads.systems.catalogue import CIRCLES
from tagmatch.workloads.systems.circles import Circles, Dual, Moves, Stabs
from tagmatch.workloads.systems.matcher import UnavailableError
from tagmatch.workloads.systems.postgis import PostGis
from tagmatch.workloads.systems.postgres_server import PostgresServer
from tagmatch.workloads.systems.redis_geo import RedisGeo
from tagmatch.workloads.systems.redis_server import RedisServer

pytestmark = pytest.mark.slow

ONE = Circles.checked([0.5], [0.5], [0.1])


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    try:
        with PostgresServer() as started:
            PostGis(ONE, server=started).close()
            yield started
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    try:
        with RedisServer() as started:
            yield started
    except UnavailableError as error:
        pytest.skip(str(error))


@given(case=cases())
def test_postgis(postgres: PostgresServer, case: Case) -> None:
    check(lambda circles: PostGis(circles, server=postgres), case)


@given(case=cases())
def test_redis(redis: RedisServer, case: Case) -> None:
    check(lambda circles: RedisGeo(circles, server=redis), case)


def test_many(postgres: PostgresServer, redis: RedisServer, seed: int) -> None:
    case = random_case(seed, 700, 150)
    assert check(lambda circles: PostGis(circles, threads=2, server=postgres), case) > 300
    assert check(lambda circles: RedisGeo(circles, server=redis), case) > 300


def test_abilities(postgres: PostgresServer, redis: RedisServer) -> None:
    for system, due in (
        (PostGis(ONE, server=postgres), {Stabs, Dual, Moves}),
        (RedisGeo(ONE, server=redis), {Dual, Moves}),
    ):
        assert {kind for kind in (Stabs, Dual, Moves) if isinstance(system, kind)} == due
        assert (system.nbytes() or 0) > 0
        system.close()


def test_nothing_is_left_behind(postgres: PostgresServer, redis: RedisServer) -> None:
    PostGis(ONE, server=postgres).close()
    RedisGeo(ONE, server=redis).close()
    with postgres.connect() as connection:
        assert connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'circles%'").fetchall() == []
    assert redis.connect().keys() == []


def test_the_index_is_used(postgres: PostgresServer, seed: int) -> None:
    case = random_case(seed, 700, 150)
    system = PostGis(case.circles, server=postgres)
    assert "Index Scan using circles" in system.plan(*case.points[:2])
    system.close()


@pytest.mark.parametrize("name", ["PostGIS", "Redis GEO"])
def test_a_server_of_its_own(name: str) -> None:
    system = CIRCLES[name].build(ONE, 1)
    half = np.array([0.5])
    assert system.within(half, half, half).ids.tolist() == [0]
    system.close()


def test_servers_end_with_their_object() -> None:
    server = RedisServer()
    folder = server.folder
    assert folder.is_dir()
    del server
    for _ in range(100):
        if not folder.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} is left")


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, postgres: PostgresServer) -> None:
    monkeypatch.setattr(redis_server.shutil, "which", lambda _: None)
    with pytest.raises(UnavailableError, match="needs the program redis-server"):
        RedisServer()
    monkeypatch.setattr("tagmatch.workloads.systems.postgis._EXTENSION", "postgis_of_another_world")
    with pytest.raises(UnavailableError, match="needs PostGIS"):
        PostGis(ONE, server=postgres)


def test_a_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_server.shutil, "which", lambda _: "/bin/false")
    with pytest.raises(RuntimeError, match="Redis's server does not start"):
        RedisServer()
