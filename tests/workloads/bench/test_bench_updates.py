"""The command `tagmatch-bench updates`: what is counted and compared, not how fast it is."""

import time
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from support.bench import at, measured, run

from tagmatch.model.options import Durability
from tagmatch.workloads.systems.duckdb_lists import DuckDBFile
from tagmatch.workloads.systems.tagmatch import TagmatchOnDisk

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


@pytest.mark.parametrize("wrong", ["late", "lost", "for nothing"])
def test_what_a_system_does_wrong_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Rows come with the change after theirs, or never; or a consolidation of nothing writes a file."""
    change, tend, held = DuckDBFile.change, TagmatchOnDisk.tend, dict[DuckDBFile, pa.Table]()

    def change_otherwise(system: DuckDBFile, added: pa.Table, removed: pa.Table | None = None) -> None:
        change(system, held.get(system, added[:0]) if wrong == "late" else added[: len(added) - 2], removed)
        held[system] = added

    def write(system: TagmatchOnDisk) -> None:
        tend(system)
        Path(system.index.stats()["path"], "more").write_text(str(time.perf_counter_ns()))

    if wrong == "for nothing":
        monkeypatch.setattr(TagmatchOnDisk, "tend", write)
    else:
        monkeypatch.setattr(DuckDBFile, "change", change_otherwise)
    done = run("updates", tmp_path, *SMALL)
    assert done.exit_code == 1
    told = {"late": "DuckDB: sets that were not found then, of 10 10 sets", "lost": "DuckDB gave"}
    expected = told.get(wrong, "files that a consolidation changes 1 files")
    assert expected in str(done.exception or "") + done.output
