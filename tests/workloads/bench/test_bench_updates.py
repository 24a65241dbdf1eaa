"""The command `tagmatch-bench updates`, and what it measures with: what is counted and compared, not how fast it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bench import at, measured, run
from support.tables import table_of, tag_rows

from tagmatch.model.options import Durability
from tagmatch.workloads.bench.harness.adding import add_steadily, longest_unseen
from tagmatch.workloads.bench.harness.disk import changed_files, state_of, wait_until_quiet
from tagmatch.workloads.bench.harness.results import Result
from tagmatch.workloads.bench.harness.stored import Comparison, Stored
from tagmatch.workloads.systems.duckdb_lists import DuckDBFile
from tagmatch.workloads.systems.tagmatch import TagmatchOnDisk

pytestmark = pytest.mark.nightly

OURS, RIVALS = "tagmatch", ("DuckDB", "LanceDB")
DURABLY = [f"{OURS}, durability {each}" for each in get_args(Durability)]
SMALL = ("--sets", 400, "--consolidates", 5, "--queries", 60, "--rounds", 2, "--seconds", 0.005, "--threads", 2)


@pytest.fixture(autouse=True)
def short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagmatch.partitioner.consolidation._REST_S", 0.1)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []
    make = TagmatchOnDisk.__init__

    def record(index: TagmatchOnDisk, path: Path, *, durability: str | None = None, **options: Any) -> None:
        asked.append(durability)
        make(index, path, durability=durability, **options)

    monkeypatch.setattr(TagmatchOnDisk, "__init__", record)
    found = measured("updates", tmp_path, *SMALL, "--keys", 3)
    assert list(filter(None, asked)) == ["fsync", "os", "none"]
    assert asked[-1] is None
    required = {f"{name}: sets that were not found then, of 10" for name in (OURS, *RIVALS)}
    required.add("nothing staged: files that a consolidation changes")
    assert {what for what, line in found.lines.items() if line["target"] and line["target"]["required"]} >= required
    assert all(found.value(what) == 0 for what in required)
    assert len(found.limits) == len(required) + 6 + 2 * 2 * len(DURABLY)
    assert found.value("small changes, 10 sets each, of 5") == 5
    on_disk = ("all sets at once", "10 sets, until they are visible", "one percent changed")
    opening = "opening, until one query is answered"
    assert {title: found.places(title).keys() for title in found.panels} == {
        **at((*on_disk, opening), {OURS, *RIVALS}),
        "sets added one by one": {*DURABLY, *RIVALS},
        "match_many": {"after small changes", "consolidated at once"},
        "latency of match at half of capacity": {"quiet", "while sets change"},
    }
    assert len({place for places in found.places(opening).values() for place in places}) == 1  # all hold as many rows
    assert all(value > 0 for title in found.panels for value in found.values(title).values())
    wheres = {"10 sets", "one percent changed", "sets added one by one", "after serving", "opened"}
    wheres |= {"small changes, at once", "small changes, when merges have ended"}
    assert {row["where"] for row in found.answers} == wheres
    assert all(row["exact"] and (row["keys"] > 0 or row["where"] == "opened") for row in found.answers)


def test_a_change_that_comes_late_fails_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come with the change after theirs."""
    change = DuckDBFile.change
    held: dict[DuckDBFile, pa.Table] = {}

    def hold_back(system: DuckDBFile, added: pa.Table, removed: pa.Table | None = None) -> None:
        change(system, held.get(system, added[:0]), removed)
        held[system] = added

    monkeypatch.setattr(DuckDBFile, "change", hold_back)
    done = run("updates", tmp_path, *SMALL)
    assert done.exit_code == 1
    assert "DuckDB: sets that were not found then, of 10 10 sets" in str(done.exception or "") + done.output


def test_a_consolidation_that_writes_for_nothing_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tend = TagmatchOnDisk.tend

    def write(system: TagmatchOnDisk) -> None:
        tend(system)
        Path(system.index.stats()["path"], "more").write_text(str(time.perf_counter_ns()))

    monkeypatch.setattr(TagmatchOnDisk, "tend", write)
    done = run("updates", tmp_path, *SMALL)
    assert done.exit_code == 1
    assert "files that a consolidation changes 1 files" in str(done.exception or "") + done.output


# -- what a system should hold --------------------------------------------------------------------------------------


class InMemory:
    """Rows in a list; with `forgets`, the last that are added are lost."""

    exact = True

    def __init__(self, forgets: int = 0) -> None:
        self.rows: list[tuple[list[str], int]] = []
        self._forgets = forgets

    def change(self, added: pa.Table, removed: pa.Table | None = None) -> None:
        gone = set(removed["key"].to_pylist()) if removed else set()
        new = list(zip(added["tags"].to_pylist(), added["key"].to_pylist(), strict=True))
        self.rows = [row for row in self.rows if row[1] not in gone] + new[: len(new) - self._forgets]

    def prepare(self, queries: pa.ListArray) -> pa.ListArray:
        return queries

    def match_many(self, queries: pa.ListArray) -> list[list[int]]:
        return [[key for tags, key in self.rows if set(tags) <= set(query)] for query in queries.to_pylist()]

    def close(self) -> None: ...


ROWS = table_of([([f"t{number % 5}", f"u{number}"], number) for number in range(30)])


def stored_in(*systems: Any) -> Stored:
    made = iter(systems)
    return Stored("a list", Path("nowhere"), lambda _: next(made), ROWS)


@given(steps=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=5))
def test_rows_move_on(steps: list[tuple[int, int]]) -> None:
    system = InMemory()
    stored = stored_in(system)
    first = last = 0
    for added, removed in steps:
        if last + added > len(ROWS):
            with pytest.raises(ValueError, match="a list: "):
                stored.change(added, removed)
            continue
        last, first = last + added, min(first + removed, last)
        stored.change(added, first - stored.place[0])
        assert stored.place == (first, last)
        assert [key for _, key in system.rows] == stored.contents["key"].to_pylist() == list(range(first, last))
        assert stored.newest(3).to_pylist() == ROWS["tags"][max(first, last - 3) : last].to_pylist()


def test_what_is_lost_is_seen() -> None:
    result = Result("updates", {})
    stored, forgetful = stored_in(InMemory()), stored_in(InMemory(forgets=2))
    for each in (stored, forgetful):
        each.change(20)
    assert stored.sees_newest()
    assert not forgetful.sees_newest()
    Comparison(result, tag_rows([["t1", "u1", "u6"]]), 1)("here", [stored, forgetful], 1, 4)
    assert [(row.queries, row.keys, row.wrong, row.missing) for row in result.answers] == [(5, 6, 0, 0), (5, 4, 0, 2)]
    assert len(result.faults()) == 1
    stored.count(1)  # of a row that nobody added
    Comparison(result, tag_rows([]), 1)("there", [stored], 0, 1)
    assert (result.answers[-1].wrong, result.answers[-1].missing) == (0, 1)


# -- threads that add -----------------------------------------------------------------------------------------------


def test_an_error_ends_additions() -> None:
    def fail(*_: object) -> None:
        raise ValueError("wrong")

    rows = [(["a"], number) for number in range(10)]
    for adder, tend in ((fail, lambda: None), (lambda *_: None, fail)):
        with pytest.raises(ValueError, match="wrong"):
            add_steadily([adder], rows, seconds=5, rate=100, tend=tend, every=0.01)
    with pytest.raises(ValueError, match="nothing was added"):
        add_steadily([lambda *_: None], [], seconds=5, rate=100, tend=lambda: None, every=0.01)


@given(
    returned=st.lists(st.floats(0, 10), min_size=1, max_size=8),
    begins=st.lists(st.floats(0, 10), max_size=5),
    lasting=st.floats(0, 3),
)
def test_longest_unseen(returned: list[float], begins: list[float], lasting: float) -> None:
    calls = [(begin, begin + lasting) for begin in sorted([*begins, 10.0])]
    right = max(min(end for begin, end in calls if begin >= each) - each for each in returned)
    assert longest_unseen(np.array(returned), calls) == right


# -- the disk -------------------------------------------------------------------------------------------------------


FILES: dict[str, Callable[[Path], object]] = {
    "new": lambda folder: (folder / "c").write_text("c"),
    "longer": lambda folder: (folder / "a").write_text("aaa"),
    "as long": lambda folder: (folder / "a").write_text("b"),
    "deep": lambda folder: (folder / "below" / "d").write_text("b"),
    "removed": lambda folder: (folder / "a").unlink(),
    "replaced": lambda folder: (folder / "below" / "d").replace(folder / "a"),
}


@pytest.mark.parametrize("change", FILES)
def test_changed_files(tmp_path: Path, change: str) -> None:
    (tmp_path / "below").mkdir()
    for name in ("a", "b", "below/d"):
        (tmp_path / name).write_text("a")
    before = state_of(tmp_path)
    assert len(before) == 3
    assert changed_files(before, state_of(tmp_path)) == 0
    time.sleep(0.01)  # file systems tell times apart that are some milliseconds apart
    FILES[change](tmp_path)
    assert changed_files(before, state_of(tmp_path)) == (2 if change == "replaced" else 1)


def test_wait_until_quiet(tmp_path: Path) -> None:
    """While another thread writes it is not quiet."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.01):
            (tmp_path / "file").write_text(str(time.perf_counter_ns()))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with pytest.raises(TimeoutError, match="still works in the background"):
            wait_until_quiet(tmp_path, quiet=0.3, at_most=1)
    finally:
        ended.set()
        worker.join()
    assert wait_until_quiet(tmp_path, quiet=0.3) >= 0
