"""All tests of benchmarks run at night. Servers that compared systems need: one of each for all tests."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import needs

from tagmatch_bench.systems.servers import PostgresServer, RedisServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    if shutil.which("pg_ctl") is None:
        needs("/usr/lib/postgresql/*/bin/pg_ctl", "postgresql", called="PostgreSQL")
    with PostgresServer() as started:
        yield started


@pytest.fixture(scope="session")
def postgis(postgres: PostgresServer) -> PostgresServer:
    needs("/usr/share/postgresql/*/extension/postgis.control", "postgresql-postgis", called="PostGIS")
    return postgres


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    needs("redis-server", "redis-server")
    with RedisServer() as started:
        yield started
