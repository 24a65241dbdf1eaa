"""Systems on disk that take changes, against the oracle; and what they leave on disk."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support.tables import table_of, tag_rows

from tagmatch.workloads.systems.matcher import UnavailableError, answers_to_pylist
from tagmatch.workloads.systems.on_disk import DUCKDB, LANCEDB, SYSTEMS_ON_DISK, OnDisk, SystemOnDisk

pytestmark = pytest.mark.slow

TAGS = st.sampled_from(["", "'", "''", "\\", "\\'", '"', "a,b", "$", "é", "\n", "--", "x\0y"]) | st.text(
    "abc", max_size=2
)
TAG_SETS = st.lists(TAGS, max_size=4)
#: Of each change: sets that are added, and which of the stored ones are removed
CHANGES = st.lists(
    st.tuples(st.lists(TAG_SETS, max_size=6), st.lists(st.integers(0, 20), max_size=3) | st.none()), max_size=4
)


@pytest.fixture(params=SYSTEMS_ON_DISK, scope="module")
def build(request: pytest.FixtureRequest) -> SystemOnDisk:
    return SYSTEMS_ON_DISK[request.param]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def right(oracle: Oracle, queries: pa.ListArray) -> list[Counter[int]]:
    return [Counter(oracle.match(query)) for query in queries.to_pylist()]


def answers(system: OnDisk, queries: pa.ListArray, **options: Any) -> list[Counter[int]]:
    return list(map(Counter, answers_to_pylist(system.match_many(system.prepare(queries), **options))))


@given(changes=CHANGES, asked=st.lists(st.lists(TAGS, max_size=8), max_size=4))
def test_changes(build: SystemOnDisk, changes: list[Any], asked: list[list[str]]) -> None:
    """Keys are those of rows, as they must be; every change is seen at once, and when the system is opened again."""
    queries, oracle = tag_rows(asked), Oracle()
    stored: list[tuple[list[str], int]] = []
    made = 0
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "system")
        system = build(path, 1)
        for added, places in changes:
            new = [(tags, (made + number) | 1 << 63) for number, tags in enumerate(added)]
            made += len(new)
            old = None if places is None else [row for number, row in enumerate(stored) if number in places]
            system.change(table_of(new), None if old is None else table_of(old))
            oracle.remove_sets(*columns(old or []))
            oracle.add_sets(*columns(new))
            oracle.consolidate()
            stored = [row for row in stored if row not in (old or [])] + new
            assert answers(system, queries) == right(oracle, queries)
        system.close()
        system = build(path, 2)
        assert answers(system, queries) == right(oracle, queries)
        system.close()


def columns(rows: list[tuple[list[str], int]]) -> tuple[list[list[str]], list[int]]:
    return [tags for tags, _ in rows], [key for _, key in rows]


def test_many_rows_at_once(build: SystemOnDisk, folder: Path) -> None:
    rows = [([f"t{number % 7}", f"u{number % 11}"], number) for number in range(500)]
    queries = tag_rows([["t1", "u2", "u3"], ["t0"], []])
    system, oracle = build(folder / "system", 2), Oracle()
    system.change(table_of(rows))
    system.change(table_of([]), table_of(rows[100:400]))
    oracle.add_sets(*columns(rows[:100] + rows[400:]))
    oracle.consolidate()
    assert answers(system, queries) == right(oracle, queries)
    system.close()


def test_threads_add_while_the_system_is_tended(build: SystemOnDisk, folder: Path) -> None:
    rows = [([f"t{number % 3}"], number) for number in range(60)]
    queries = tag_rows([["t0"], ["t1", "t2"]])
    system, oracle = build(folder / "system", 1), Oracle()

    def add(first: int) -> None:
        adder = system.adder()
        for tags, key in rows[first::4]:
            adder(tags, key)

    with ThreadPoolExecutor(5) as pool:
        adding = [pool.submit(add, first) for first in range(4)]
        pool.submit(system.tend).result()
        for each in adding:
            each.result()
    system.tend()
    oracle.add_sets(*columns(rows))
    oracle.consolidate()
    assert answers(system, queries) == right(oracle, queries)
    system.close()


@pytest.mark.parametrize(("package", "name"), [("duckdb", DUCKDB), ("lancedb", LANCEDB)])
def test_missing_package(monkeypatch: pytest.MonkeyPatch, folder: Path, package: str, name: str) -> None:
    for module in [each for each in sys.modules if each.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnavailableError, match=rf"needs the Python package {package} \(pip install"):
        SYSTEMS_ON_DISK[name](folder / "system", 1)
