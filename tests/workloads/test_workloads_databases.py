"""The databases against the oracle, and what they leave behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymongo
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support.tables import table_of, tag_rows

from tagmatch.workloads.systems import postgres_server
from tagmatch.workloads.systems.catalogue import DATABASES
from tagmatch.workloads.systems.clickhouse import ClickHouseScan
from tagmatch.workloads.systems.duckdb_lists import DuckDBScan
from tagmatch.workloads.systems.matcher import Matcher, UnavailableError, answers_to_pylist
from tagmatch.workloads.systems.mongodb import MongoDB, Operator
from tagmatch.workloads.systems.postgres_server import PostgresServer
from tagmatch.workloads.systems.postgresql import PostgresGin, PostgresScan
from tagmatch.workloads.systems.sharded import Sharded

pytestmark = pytest.mark.slow

Build = Callable[[pa.Table], Matcher[Any]]

# Characters that mean something in arrays or strings of some database
TRAPS = [
    "",
    "NULL",
    '"',
    "'",
    "\\",
    "\\'",
    "{}",
    "[",
    "a,b",
    "$tags",
    "$",
    "%s",
    "\n",
    " ",
    "é",
    "e\u0301",
    "\U0001f600",
]
TAGS = st.sampled_from(TRAPS) | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=2)
TAG_SETS = st.lists(TAGS, max_size=4)
KEYS = st.integers(0, 3) | st.sampled_from([2**32, 2**63 - 1, 2**63, 2**64 - 1])


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Few distinct sets, so that sets with several keys and repeated pairs are common."""
    sets = draw(st.lists(TAG_SETS, min_size=1, max_size=8))
    return table_of(draw(st.lists(st.tuples(st.sampled_from(sets), KEYS), max_size=20)))


def random_tags(rng: random.Random, rows: int) -> list[list[str]]:
    return [[f"t{int(50 ** rng.random())}" for _ in range(rng.randint(1, 6))] for _ in range(rows)]


def random_table(rng: random.Random, rows: int) -> pa.Table:
    return table_of([(tags, rng.randrange(2**64)) for tags in random_tags(rng, rows)])


class SqliteClient:
    """As much of `MongoClient` as `MongoDB` uses; has the operator $setIsSubset, which mongomock has not."""

    def __init__(self, *_: object, **__: object) -> None:
        import neosqlite

        self.admin = self
        self._database = neosqlite.Connection(":memory:", check_same_thread=False)

    def __enter__(self) -> SqliteClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def __getitem__(self, _: str) -> Any:
        return self._database

    def command(self, _: str) -> None: ...

    def drop_database(self, _: str) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    try:
        with PostgresServer() as started:
            yield started
    except UnavailableError as error:
        pytest.skip(str(error))


def mongomock_client(*arguments: Any, **options: Any) -> Any:
    import mongomock

    return mongomock.MongoClient(*arguments, **options)


def mongodb(sets: pa.Table, client: Callable[..., Any], operator: Operator) -> MongoDB:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pymongo, "MongoClient", client)
        return MongoDB(sets, ["mongodb://first", "mongodb://second"], operator=operator)


ON_THE_SERVER: dict[str, Build] = {"PostgresScan": PostgresScan, "PostgresGin": PostgresGin}
SYSTEMS: dict[str, Build] = {
    **{name: partial(system, threads=2) for name, system in DATABASES.items() if not system.needs},
    "sharded": partial(Sharded, DuckDBScan, shards=3),
    "MongoDB, nin": partial(mongodb, client=mongomock_client, operator="nin"),
    "MongoDB, setIsSubset": partial(mongodb, client=SqliteClient, operator="setIsSubset"),
}


@pytest.fixture(scope="module", params=[*ON_THE_SERVER, *SYSTEMS])
def build(request: pytest.FixtureRequest) -> Build:
    if request.param in SYSTEMS:
        return SYSTEMS[request.param]
    return partial(ON_THE_SERVER[request.param], server=request.getfixturevalue("server"))


def right_answers(sets: pa.Table, queries: pa.ListArray) -> list[Counter[int]]:
    oracle = Oracle()
    oracle.add_sets(sets["tags"].to_pylist(), sets["key"].to_pylist())
    oracle.consolidate()
    return [Counter(oracle.match(query)) for query in queries.to_pylist()]


def answers(matcher: Matcher[Any], queries: Any, **options: bool) -> list[Counter[int]]:
    return list(map(Counter, answers_to_pylist(matcher.match_many(queries, **options))))


def check(build: Build, sets: pa.Table, queries: pa.ListArray) -> None:
    right = right_answers(sets, queries)
    matcher = build(sets)
    try:
        assert matcher.exact
        prepared = matcher.prepare(queries)
        assert answers(matcher, prepared) == right
        assert answers(matcher, prepared[1:3]) == right[1:3]
        assert answers(matcher, prepared, unique=True) == [Counter(keys.keys()) for keys in right]
    finally:
        matcher.close()
        matcher.close()


@given(sets=tables(), asked=st.lists(st.lists(TAGS, max_size=8), max_size=5))
def test_small_tables(build: Build, sets: pa.Table, asked: list[list[str]]) -> None:
    check(build, sets, tag_rows(asked))


@given(sets=tables())
def test_queries_that_are_stored_sets(build: Build, sets: pa.Table) -> None:
    check(build, sets, sets["tags"].combine_chunks())


def test_slices_and_chunks(build: Build, rng: random.Random) -> None:
    whole = random_table(rng, 600)
    queries = tag_rows(random_tags(rng, 60))
    check(build, pa.concat_tables([whole.slice(7, 200), whole.slice(300)]), queries.slice(11, 40))


def test_nothing_stored_or_asked(build: Build) -> None:
    asked = tag_rows([["a"], []])
    check(build, table_of([]), asked)
    check(build, table_of([(["a"], 1), ([], 2)]), asked.slice(0, 0))


def test_two_at_once(build: Build) -> None:
    first, second = build(table_of([(["a"], 1)])), build(table_of([(["a"], 2)]))
    queries = tag_rows([["a"]])
    assert answers(first, first.prepare(queries)) == [Counter([1])]
    assert answers(second, second.prepare(queries)) == [Counter([2])]
    first.close()
    assert answers(second, second.prepare(queries)) == [Counter([2])]
    second.close()


@pytest.mark.parametrize("build", [DuckDBScan, ClickHouseScan])
def test_nul(build: Build) -> None:
    check(build, table_of([(["x\0y"], 1), (["x"], 2), (["\0"], 3)]), tag_rows([["x"], ["x\0y"], ["\0"]]))


def test_postgresql_refuses_nul(server: PostgresServer) -> None:
    with pytest.raises(ValueError, match=r"column 'tags', row 1: a tag has the character NUL"):
        PostgresScan(table_of([(["a"], 1), (["b", "x\0y"], 2)]), server=server)
    matcher = PostgresScan(table_of([(["x"], 1)]), server=server)
    with pytest.raises(ValueError, match=r"column 'queries', row 2: a tag has the character NUL"):
        matcher.prepare(tag_rows([["x"], [], ["\0"]]))
    matcher.close()


@pytest.mark.parametrize("build", [DuckDBScan, ClickHouseScan, partial(Sharded, DuckDBScan, shards=2)])
def test_nbytes_grows(build: Build, rng: random.Random) -> None:
    few, many = (build(random_table(rng, rows)) for rows in (1000, 20_000))
    assert 0 < few.nbytes() < many.nbytes()
    few.close()
    many.close()


def test_postgresql_plans(server: PostgresServer, rng: random.Random) -> None:
    sets = random_table(rng, 3000)
    scan, gin = PostgresScan(sets, server=server), PostgresGin(sets, server=server)
    assert "Seq Scan" in scan.plan(["a"])
    assert "Bitmap Index Scan" in gin.plan(["a"])
    assert "Seq Scan" not in gin.plan([])
    assert 0 < scan.nbytes() < gin.nbytes()
    scan.close()
    gin.close()


def is_alive(pid: int) -> bool:
    """Whether a process runs; the dead that nobody has asked after are in state Z."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def pid_of(folder: Path) -> int:
    return int((folder / "postmaster.pid").read_text().splitlines()[0])


@pytest.mark.usefixtures("server")
def test_servers_of_their_own_leave_nothing() -> None:
    servers: list[PostgresServer] = []

    class Recorded(PostgresServer):
        def __init__(self) -> None:
            super().__init__()
            servers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tagmatch.workloads.systems.postgresql.PostgresServer", Recorded)
        matcher = Sharded(PostgresScan, table_of([(["a"], 1), (["b"], 2)]), 2)
        pids = [pid_of(server.folder) for server in servers]
        assert all(map(is_alive, pids))
        assert answers(matcher, matcher.prepare(tag_rows([["a", "b"]]))) == [Counter([1, 2])]
        matcher.close()
    assert len(set(pids)) == 2
    assert not any(map(is_alive, pids))
    assert not any(server.folder.exists() for server in servers)


WAITING = """
import time
from tagmatch.workloads.systems.postgres_server import PostgresServer
server = PostgresServer()
print(server.folder, flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_server_ends_with_its_process(number: int) -> None:
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        folder = Path(process.stdout.readline().strip())
        pid = pid_of(folder)
        assert is_alive(pid)
        os.kill(process.pid, number)
    deadline = time.monotonic() + 60
    while (is_alive(pid) or folder.exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)
    assert not folder.exists()


@pytest.mark.usefixtures("server")
def test_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    with pytest.raises(RuntimeError, match=r"server does not start: mktemp: .*absent"):
        PostgresServer()


def test_no_server_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres_server, "_DEBIAN_FOLDERS", "/nowhere")
    with pytest.raises(UnavailableError, match=r"initdb and pg_ctl \(Debian package postgresql\)"):
        PostgresScan(table_of([]))


@pytest.mark.parametrize(
    ("package", "build"),
    [
        ("duckdb", DuckDBScan),
        ("chdb", ClickHouseScan),
        ("psycopg", PostgresScan),
        ("pymongo", partial(MongoDB, uris=["mongodb://localhost"])),
    ],
)
def test_missing_package(monkeypatch: pytest.MonkeyPatch, package: str, build: Build) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnavailableError, match=rf"needs the Python package {package} \(pip install"):
        build(table_of([]))


def test_mongodb_takes_no_tag_for_a_field_name() -> None:
    matcher = SYSTEMS["MongoDB, setIsSubset"](table_of([]))
    (document,) = matcher.prepare(tag_rows([["$tags"]]))
    assert document == {"$expr": {"$setIsSubset": ["$tags", {"$literal": ["$tags"]}]}}
    matcher.close()


@pytest.mark.timeout(20)
def test_no_mongodb_server() -> None:
    with pytest.raises(UnavailableError, match=r"no MongoDB server answers at mongodb://127\.0\.0\.1:1; start"):
        MongoDB(table_of([]), ["mongodb://127.0.0.1:1"])
    with pytest.raises(UnavailableError, match=r"needs the URI of a running MongoDB server; start one with"):
        MongoDB(table_of([]), [])


def test_no_shards() -> None:
    with pytest.raises(ValueError, match="shards is 0; give at least 1"):
        Sharded(DuckDBScan, table_of([]), 0)


def test_a_shard_that_cannot_be_built_closes_the_others() -> None:
    closed = []

    class Shard(DuckDBScan):
        def close(self) -> None:
            closed.append(self)
            super().close()

    builds: Iterator[Build] = iter([Shard, partial(MongoDB, uris=[])])
    with pytest.raises(UnavailableError):
        Sharded(lambda share: next(builds)(share), table_of([]), 2)
    assert len(closed) == 1


@pytest.mark.parametrize("uri", ["http://x", "mongodb://localhost:abc"])
def test_mongodb_needs_a_uri_of_its_kind(uri: str) -> None:
    with pytest.raises(UnavailableError, match="no MongoDB server answers at"):
        MongoDB(pa.table({"tags": pa.array([], pa.list_(pa.string())), "key": pa.array([], pa.uint64())}), [uri])
