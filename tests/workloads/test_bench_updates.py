"""The command `tagmatch-bench updates`, and what it measures with: what is counted and compared, not how fast it is."""

from __future__ import annotations

import gc
import json
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import table_of, tag_rows
from typer.testing import CliRunner, Result

from tagmatch.model.options import Durability
from tagmatch.workloads.bench.harness.adding import add_steadily, longest_unseen, repeatedly
from tagmatch.workloads.bench.harness.disk import changed_files, state_of, sync_seconds, wait_until_quiet
from tagmatch.workloads.bench.harness.load import serve_calls
from tagmatch.workloads.bench.harness.results import Result as Found
from tagmatch.workloads.bench.harness.stored import Comparison, Stored
from tagmatch.workloads.bench.harness.timing import without_garbage_collection
from tagmatch.workloads.commands.bench import app
from tagmatch.workloads.systems.duckdb_lists import DuckDBFile
from tagmatch.workloads.systems.tagmatch import TagmatchOnDisk

pytestmark = pytest.mark.slow

OURS, RIVALS = "tagmatch", ("DuckDB", "LanceDB")
DURABLY = [f"{OURS}, durability {each}" for each in get_args(Durability)]


@pytest.fixture(autouse=True)
def short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagmatch.partitioner.consolidation._REST_S", 0.1)


def run(folder: Path, *more: str) -> Result:
    options = ["--allow-changes", "--sets", "400", "--consolidates", "5", "--queries", "60", "--rounds", "2"]
    options += ["--seconds", "0.005", "--threads", "2", "--output", str(folder), *more]
    return CliRunner().invoke(app, ["updates", *options])


def found_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "updates.json").read_text())
    return found


def test_command(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.exit_code == 0, done.output
    found = found_in(tmp_path)
    limits = {line["what"]: line["target"]["limit"] for line in found["lines"] if line["target"]}
    assert limits == {
        "tagmatch: 10 sets until visible": 50,
        **{f"{name}: sets that were not found then, of 10": 0 for name in (OURS, *RIVALS)},
        "tagmatch: one percent changed, of a full build": 15,
        **{
            f"{each}: added one by one by {threads}": 10_000
            for each in DURABLY
            for threads in ("1 thread", "8 threads")
        },
        **{f"{each}: longest until visible, {threads}": 1 for each in DURABLY for threads in ("1 thread", "8 threads")},
        "match_many after small changes, at once, of that consolidated at once": 70,
        "match_many after small changes, when merges have ended, of that consolidated at once": 95,
        "nothing staged: files that a consolidation changes": 0,
        "p99 while sets change, of that when quiet": 2,
        "tagmatch: opened, and one query answered": 1000,
    }
    values = {line["what"]: line["value"] for line in found["lines"]}
    assert values["small changes, 10 sets each, of 5"] == 5
    assert values["nothing staged: files that a consolidation changes"] == 0
    systems = {panel["title"]: {value["system"] for value in panel["values"]} for panel in found["panels"]}
    assert systems == {
        "all sets at once": {OURS, *RIVALS},
        "10 sets, until they are visible": {OURS, *RIVALS},
        "one percent changed": {OURS, *RIVALS},
        "sets added one by one": {*DURABLY, *RIVALS},
        "opening, until one query is answered": {OURS, *RIVALS},
        "match_many": {"after small changes", "consolidated at once"},
        "latency of match at half of capacity": {"quiet", "while sets change"},
    }
    assert len({value["x"] for value in found["panels"][-1]["values"]}) == 1  # all hold as many rows at last
    assert all(value["value"] > 0 for panel in found["panels"] for value in panel["values"])
    assert {row["where"] for row in found["answers"]} == {
        "10 sets",
        "one percent changed",
        "sets added one by one",
        "small changes, at once",
        "small changes, when merges have ended",
        "after serving",
        "opened",
    }
    assert all(row["exact"] and row["missing"] == row["wrong"] == 0 for row in found["answers"])
    assert all(row["keys"] > 0 for row in found["answers"] if row["where"] != "opened")
    assert (tmp_path / "updates.png").read_bytes().startswith(b"\x89PNG")
    assert "≤ 50" in done.stdout


def test_sets_with_several_keys(tmp_path: Path) -> None:
    assert run(tmp_path, "--keys", "3").exit_code == 0
    assert all(row["missing"] == row["wrong"] == 0 for row in found_in(tmp_path)["answers"])


def test_each_durability_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []
    make = TagmatchOnDisk.__init__

    def record(index: TagmatchOnDisk, path: Path, *, durability: str | None = None, **options: Any) -> None:
        asked.append(durability)
        make(index, path, durability=durability, **options)

    monkeypatch.setattr(TagmatchOnDisk, "__init__", record)
    assert run(tmp_path).exit_code == 0
    assert list(filter(None, asked)) == ["fsync", "os", "none"]
    assert asked[-1] is None


def test_a_change_that_comes_late_fails_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come with the change after theirs."""
    change = DuckDBFile.change
    held: dict[DuckDBFile, pa.Table] = {}

    def hold_back(system: DuckDBFile, added: pa.Table, removed: pa.Table | None = None) -> None:
        change(system, held.get(system, added[:0]), removed)
        held[system] = added

    monkeypatch.setattr(DuckDBFile, "change", hold_back)
    done = run(tmp_path)
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
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "files that a consolidation changes 1 files" in str(done.exception or "") + done.output


@pytest.mark.parametrize("wrong", [["--sets", "0"], ["--consolidates", "0"], ["--seconds", "0"], ["--keys", "0"]])
def test_bad_parameters(wrong: list[str]) -> None:
    result = CliRunner().invoke(app, ["updates", *wrong])
    assert result.exit_code == 2
    assert wrong[0] in result.stderr


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


def stored_in(system: Any, rows: pa.Table = ROWS) -> Stored:
    return Stored("a list", Path("nowhere"), lambda _: system, rows)


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


def test_another_of_the_same() -> None:
    systems = [InMemory(), InMemory()]
    made = iter(systems)
    stored = Stored("a list", Path("nowhere"), lambda _: next(made), ROWS)
    stored.change(10, 0)
    stored.change(2, 4)
    other = stored.elsewhere(Path("elsewhere"), more=3)
    assert [key for _, key in systems[1].rows] == list(range(4, 15))
    stored.move_to(4, 15)
    assert systems[0].rows == systems[1].rows
    assert other.sees_newest()


def test_what_is_lost_is_seen() -> None:
    result = Found("updates", {})
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


def test_every_row_is_added_once_and_in_order() -> None:
    rows = [([str(number)], number) for number in range(500)]
    added: list[int] = []
    tended: list[int] = []
    threads: set[int] = set()

    def adder(_: list[str], key: int) -> None:
        threads.add(threading.get_ident())
        added.append(key)

    found = add_steadily([adder] * 3, rows, seconds=60, rate=1e6, tend=lambda: tended.append(len(added)), every=0.01)
    assert found.rows == len(added) == 500
    assert sorted(added) == list(range(500))
    assert tended[-1] == 500
    assert found.rate == 500 / found.seconds


def test_no_more_rows_than_are_asked_for() -> None:
    rows = [(["a"], number) for number in range(10_000)]
    found = add_steadily([lambda *_: None] * 2, rows, seconds=0.2, rate=1000, tend=lambda: None, every=0.05)
    assert 0 < found.rows <= 1000 * (found.seconds + 0.002) + 2


def test_time_ends_additions() -> None:
    found = add_steadily(
        [lambda *_: time.sleep(0.01)], cycle([(["a"], 1)]), seconds=0.05, rate=1e6, tend=lambda: None, every=9
    )
    assert 1 <= found.rows <= 5


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


def test_calls_in_another_thread() -> None:
    threads: list[int] = []
    enough = threading.Event()

    def work() -> None:
        threads.append(threading.get_ident())
        if len(threads) == 3:
            enough.set()

    with repeatedly(work, 0.001) as calls:
        assert enough.wait(60)
    assert len(calls) == len(threads) >= 3
    assert set(threads).isdisjoint({threading.get_ident()})
    assert all(begin <= end for begin, end in calls)
    assert all(second[0] >= first[1] for first, second in pairwise(calls))


def test_an_error_in_the_block_ends_calls() -> None:
    alive = threading.active_count()
    with pytest.raises(KeyError), repeatedly(lambda: time.sleep(0.01), 0):
        raise KeyError
    assert threading.active_count() == alive


def test_latency_of_calls_counts_from_when_they_were_due() -> None:
    asked: list[str] = []

    def match(query: list[str]) -> None:
        asked.append(query[0])
        time.sleep(0.05 if query[0] == "slow" else 0)

    served = serve_calls(match, [["first"], ["slow"], ["late"], ["last"]], np.array([0.0, 0.01, 0.02, 0.2]))
    assert asked == ["first", "slow", "late", "last"]
    assert served.latency[1] >= 0.05
    assert served.latency[2] >= 0.04
    assert served.seconds >= 0.2
    assert served.rejected == 0


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


@pytest.mark.parametrize("busy", ["files", "processor"])
def test_wait_until_quiet(tmp_path: Path, busy: str) -> None:
    """While another thread writes or computes it is not quiet."""
    ended = threading.Event()

    def work() -> None:
        count = 0
        while not ended.wait(0.01 if busy == "files" else 0):
            count += 1
            if busy == "files":
                (tmp_path / "file").write_text(str(count))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with pytest.raises(TimeoutError, match="still works in the background"):
            wait_until_quiet(tmp_path, quiet=0.3, at_most=1)
    finally:
        ended.set()
        worker.join()
    assert wait_until_quiet(tmp_path, quiet=0.3) >= 0


def test_sync_leaves_nothing() -> None:
    with tempfile.TemporaryDirectory() as name:
        assert min(sync_seconds(Path(name)).values) > 0
        assert list(Path(name).iterdir()) == []


def test_blocks_without_garbage_collection_within_each_other() -> None:
    assert gc.isenabled()
    with without_garbage_collection():
        with without_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
