"""The databases, and systems on disk that take changes, against the oracle; and what they leave behind."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymongo
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import answers, right_answers, table_of, tag_rows

from tagmatch_bench.systems import servers
from tagmatch_bench.systems.by_rarest import RedisRarest, RoaringBitmaps, TantivyRarest
from tagmatch_bench.systems.catalogue import DATABASES, System
from tagmatch_bench.systems.clickhouse import ClickHouseRarest, ClickHouseScan
from tagmatch_bench.systems.databases import (
    MongoDB,
    Operator,
    PostgresGin,
    PostgresInts,
    PostgresRarest,
    PostgresScan,
    Sharded,
)
from tagmatch_bench.systems.matcher import Matcher, UnavailableError
from tagmatch_bench.systems.on_disk import DUCKDB, LANCEDB, SYSTEMS_ON_DISK, DuckDBScan, LanceDBRarest
from tagmatch_bench.systems.servers import PostgresServer, RedisServer

Build = Callable[[pa.Table], Matcher[Any]]

# Characters that mean something in arrays or strings of some database
TRAPS = ["", "NULL", '"', "'", "''", "\\", "\\'", "{}", "[", "a,b", "$tags", "$", "%s", "\n", " ", "--", "é", "e\u0301"]
TAGS = st.sampled_from([*TRAPS, "\U0001f600"]) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=2
)
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

        self.admin, self._database = self, neosqlite.Connection(":memory:", check_same_thread=False)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def __getitem__(self, _: str) -> Any:
        return self._database

    def command(self, _: str) -> None: ...

    drop_database = command


def mongomock_client(*arguments: Any, **options: Any) -> Any:
    import mongomock

    return mongomock.MongoClient(*arguments, **options)


def mongodb(sets: pa.Table, client: Callable[..., Any], operator: Operator) -> MongoDB:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pymongo, "MongoClient", client)
        return MongoDB(sets, ["mongodb://first", "mongodb://second"], operator=operator)


ON_SERVERS: dict[str, tuple[str, Any]] = {
    **{each.__name__: ("postgres", each) for each in (PostgresScan, PostgresGin, PostgresRarest, PostgresInts)},
    RedisRarest.__name__: ("redis", RedisRarest),
}
SYSTEMS: dict[str, Build] = {
    **{name: partial(system, threads=2) for name, system in DATABASES.items() if not system.needs},
    "sharded": partial(Sharded, DuckDBScan, shards=3),
    "MongoDB, nin": partial(mongodb, client=mongomock_client, operator="nin"),
    "MongoDB, setIsSubset": partial(mongodb, client=SqliteClient, operator="setIsSubset"),
}


@pytest.fixture(scope="module", params=[*ON_SERVERS, *SYSTEMS])
def build(request: pytest.FixtureRequest) -> Build:
    if request.param in SYSTEMS:
        return SYSTEMS[request.param]
    server, system = ON_SERVERS[request.param]
    return partial(system, server=request.getfixturevalue(server))


def check(build: Build, sets: pa.Table, queries: pa.ListArray) -> None:
    right = right_answers(sets, queries)
    matcher = build(sets)
    try:
        assert matcher.exact
        prepared = matcher.prepare(queries)
        assert answers(matcher, prepared) == right
        assert answers(matcher, prepared[1:3]) == right[1:3]
        assert answers(matcher, prepared, unique=True) == [type(keys)(keys.keys()) for keys in right]
    finally:
        matcher.close()
        matcher.close()


@given(sets=tables(), asked=st.lists(st.lists(TAGS, max_size=8), max_size=5))
def test_small_tables(build: Build, sets: pa.Table, asked: list[list[str]]) -> None:
    """Queries that are stored sets are among them."""
    check(build, sets, tag_rows([*asked, *sets["tags"].to_pylist()]))


def test_slices_and_chunks(build: Build, rng: random.Random) -> None:
    whole = random_table(rng, 600)
    queries = tag_rows(random_tags(rng, 60))
    check(build, pa.concat_tables([whole.slice(7, 200), whole.slice(300)]), queries.slice(11, 40))
    check(build, table_of([(["a"], 1), ([], 2)]), tag_rows([]))


def test_nul(postgres: PostgresServer, redis: RedisServer) -> None:
    on_servers = (partial(PostgresInts, server=postgres), partial(RedisRarest, server=redis))
    others = (DuckDBScan, ClickHouseScan, ClickHouseRarest, LanceDBRarest, TantivyRarest, RoaringBitmaps)
    for build in (*on_servers, *others):
        check(build, table_of([(["x\0y"], 1), (["x"], 2), (["\0"], 3)]), tag_rows([["x"], ["x\0y"], ["\0"]]))
    with pytest.raises(ValueError, match=r"column 'tags', row 1: a tag has the character NUL"):
        PostgresScan(table_of([(["a"], 1), (["b", "x\0y"], 2)]), server=postgres)


def test_many_candidates(build: Build, rng: random.Random) -> None:
    """More than are asked for at first; and more tags than a signature has bits."""
    names = [f"t{number}" for number in range(300)]
    sets = [(rng.sample(names, 3), key) for key in range(2000)]
    check(build, table_of(sets), tag_rows([rng.sample(names, 200) for _ in range(3)]))


def test_nothing_is_left_on_the_servers(
    postgres: PostgresServer, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = table_of([(["a", "b"], 1), ([], 2)])
    for matcher in (PostgresInts(sets, server=postgres), RedisRarest(sets, server=redis)):
        assert (matcher.nbytes() or 0) > 0
        matcher.close()
    with postgres.connect() as connection:
        assert connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'sets%'").fetchall() == []
    assert redis.connect().keys() == []
    monkeypatch.setattr("tagmatch_bench.systems.databases._EXTENSION", "of_another_world")
    with pytest.raises(UnavailableError, match=r"needs the extension of_another_world .* postgresql-contrib"):
        PostgresInts(sets, server=postgres)
    monkeypatch.setattr(servers.shutil, "which", lambda *_, **__: None)
    with pytest.raises(UnavailableError, match=r"needs the program redis-server"):
        RedisRarest(sets)


def test_mongodb() -> None:
    matcher = SYSTEMS["MongoDB, setIsSubset"](table_of([]))
    (document,) = matcher.prepare(tag_rows([["$tags"]]))  # no name of a field
    assert document == {"$expr": {"$setIsSubset": ["$tags", {"$literal": ["$tags"]}]}}
    matcher.close()
    with pytest.raises(UnavailableError, match=r"needs the URI of a running MongoDB server; start one with"):
        MongoDB(table_of([]), [])
    for uri in ("mongodb://127.0.0.1:1", "http://x", "mongodb://localhost:abc"):
        with pytest.raises(UnavailableError, match=f"no MongoDB server answers at {uri}"):
            MongoDB(table_of([]), [uri])


@pytest.mark.parametrize(
    ("package", "build"),
    [
        ("duckdb", DuckDBScan),
        ("chdb", ClickHouseScan),
        ("psycopg", PostgresScan),
        ("redis", RedisRarest),
        ("tantivy", TantivyRarest),
        ("pyroaring", RoaringBitmaps),
        ("lancedb", LanceDBRarest),
        ("pymongo", partial(MongoDB, uris=["mongodb://localhost"])),
        ("duckdb", lambda _: SYSTEMS_ON_DISK[DUCKDB](Path("system"), 1)),
        ("lancedb", lambda _: SYSTEMS_ON_DISK[LANCEDB](Path("system"), 1)),
    ],
)
def test_missing_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, build: Build) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (package, *(name for name in sys.modules if name.startswith(f"{package}."))):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnavailableError, match=rf"needs the Python package {package} \(pip install"):
        build(table_of([]))


def is_alive(pid: int) -> bool:
    """Whether a process runs; the dead that no process has waited for are in state Z."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def pid_of(folder: Path) -> int:
    return int((folder / "postmaster.pid").read_text().splitlines()[0])


WAITING = """
import time
from tagmatch_bench.systems.servers import PostgresServer
server = PostgresServer()
print(server.folder, flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("postgres")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, None])
def test_server_ends_with_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int | None) -> None:
    """Or when the system is closed that has started it."""
    if number is None:
        server = PostgresServer()
        folder, pid = server.folder, pid_of(server.folder)
        monkeypatch.setattr("tagmatch_bench.systems.databases.PostgresServer", lambda: server)
        matcher = PostgresScan(table_of([]))
        assert is_alive(pid)
        matcher.close()
        monkeypatch.undo()
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(servers, "_DEBIAN_FOLDERS", "/nowhere")
        with pytest.raises(UnavailableError, match=r"initdb and pg_ctl \(Debian package postgresql\)"):
            PostgresScan(table_of([]))
    else:
        command = [sys.executable, "-c", WAITING]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            folder = Path(process.stdout.readline().strip())
            pid = pid_of(folder)
            assert is_alive(pid)
            os.kill(process.pid, number)
    while is_alive(pid) or folder.exists():  # else the test times out
        time.sleep(0.05)


#: Of each change: sets that are added, and which of the stored ones are removed
CHANGES = st.lists(
    st.tuples(
        st.lists(st.lists(TAGS | st.just("x\0y"), max_size=4), max_size=6),
        st.lists(st.integers(0, 20), max_size=3) | st.none(),
    ),
    max_size=4,
)


@pytest.fixture(params=SYSTEMS_ON_DISK, scope="module")
def on_disk(request: pytest.FixtureRequest) -> System:
    return SYSTEMS_ON_DISK[request.param]


@given(changes=CHANGES, asked=st.lists(st.lists(TAGS, max_size=8), max_size=4))
def test_changes(on_disk: System, changes: list[Any], asked: list[list[str]]) -> None:
    """Keys are those of rows, as they must be; every change is seen at once, and when the system is opened again."""
    queries, stored, made = tag_rows(asked), list[tuple[list[str], int]](), count(1 << 63)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "system")
        system = on_disk(path, 1)
        for added, places in [*changes, ([], [])]:
            new = [(tags, next(made)) for tags in added]
            old = None if places is None else [row for number, row in enumerate(stored) if number in places]
            system.change(table_of(new), None if old is None else table_of(old))
            stored = [row for row in stored if row not in (old or [])] + new
            assert answers(system, system.prepare(queries)) == right_answers(table_of(stored), queries)
        system.close()
        system = on_disk(path, 2)
        assert answers(system, system.prepare(queries)) == right_answers(table_of(stored), queries)
        system.close()


def test_threads_add_while_the_system_is_tended(on_disk: System, tmp_path: Path) -> None:
    """And many rows go at once."""
    rows, queries = [([f"t{number % 3}"], number) for number in range(500)], tag_rows([["t0"], ["t1", "t2"]])
    system = on_disk(tmp_path / "system", 1)

    def add(first: int) -> None:
        adder = system.adder()
        for tags, key in rows[first:60:4]:
            adder(tags, key)

    with ThreadPoolExecutor(5) as pool:
        adding = [pool.submit(add, first) for first in range(4)]
        pool.submit(system.tend).result()
        for each in adding:
            each.result()
    system.tend()
    assert answers(system, system.prepare(queries)) == right_answers(table_of(rows[:60]), queries)
    system.change(table_of(rows[60:]), table_of(rows[:50]))
    system.change(table_of([]), table_of(rows[100:400]))
    assert answers(system, system.prepare(queries)) == right_answers(table_of(rows[50:100] + rows[400:]), queries)
    system.close()
