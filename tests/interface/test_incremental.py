"""`consolidate` writes the changes to their own segment, and segments are merged later."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.agreement import index_of
from support.index_files import MANIFEST, contents_of, manifest_as_first, unnamed_in
from support.waiting import wait_until

import tagmatch
from tagmatch import TagMatch, changing, engine
from tagmatch.model.arrays import give_back
from tagmatch.partitioner.consolidation import FEW_SETS
from tagmatch_bench.harness.processes import resident

pytestmark = pytest.mark.usefixtures("segments_stay")

#: What the fixture takes away, for tests of merging in the background
BEGIN = changing.Changing._begin_merging

MANY, FEW = 40, 5


def numbered(first: int, last: int) -> list[list[str]]:
    return [[f"t{number}", "all"] for number in range(first, last)]


@pytest.mark.parametrize("key_of", [int, "user {:05}".format])
def test_a_few_changes_leave_other_segments(tmp_path: Path, path: Path, layout: Any, key_of: Any) -> None:
    options: dict[str, Any] = {"layout": layout, "device": "cpu", "durability": "none"}
    options["key_type"] = "integer" if key_of is int else "string"
    with index_of(numbered(0, MANY), [key_of(number) for number in range(MANY)], path=path, **options) as tm:
        before = contents_of(path)
        tm.add_set(["t3", "all"], key_of(1000))
        tm.remove_set(["t4", "all"], key_of(4))
        tm.add_set(["new"], key_of(7))
        tm.consolidate()
        after = contents_of(path)
        assert after | before == {**after, MANIFEST: before[MANIFEST]}
        stats = tm.stats()
        assert (stats["segments"], stats["deleted"], stats["sets"]) == (2, 2, MANY)
        kept = dict(tm)
    assert kept[frozenset({"t3", "all"})] == (key_of(3), key_of(1000))
    assert frozenset({"t4", "all"}) not in kept
    with TagMatch.open(path, device="cpu") as tm:
        tm.check()
        assert (dict(tm), tm.stats()["segments"]) == (kept, 2)
        tm.consolidate(full=True)
        stats = tm.stats()
        assert (stats["segments"], stats["deleted"], dict(tm)) == (1, 0, kept)
    pairs = [(tags, key) for tags, keys in kept.items() for key in keys]
    index_of(*zip(*pairs, strict=True), path=tmp_path / "at once", **options).close()
    found = contents_of(path) | {MANIFEST: manifest_as_first(path)}
    assert found == contents_of(tmp_path / "at once")


def two_segments(tm: TagMatch[Any], few: int = 2 * FEW) -> None:
    for first, last in ((0, MANY), (MANY, MANY + few)):
        tm.add_sets(numbered(first, last), range(first, last))
        tm.consolidate()


def test_a_segment_without_sets_goes(layout: Any) -> None:
    with TagMatch(layout=layout, device="cpu") as tm:
        two_segments(tm)
        assert tm.stats()["segments"] == 2
        for key in range(MANY + 2 * FEW - 1, -1, -1):
            tm.remove_set([f"t{key}", "all"], key)
            tm.consolidate()
            assert (tm.stats()["segments"], len(tm)) == (1 + (key > MANY), key)
        assert tm.match(["all", "t1"]) == []


@pytest.mark.slow
def test_segments_are_merged_in_the_background(path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing.Changing, "_begin_merging", BEGIN)
    with TagMatch(path, layout=layout, device="cpu") as tm:
        for size in range(MANY, 0, -1):
            keys = range(100 * size, 100 * size + size)
            tm.add_sets([[f"t{key}", "all"] for key in keys], keys)
            tm.remove_set([f"t{100 * size + 101}", "all"], 100 * size + 101)  # of the round before
            tm.consolidate()
        tm._engine.changing.merging.wait()
        tm.check()
        assert tm.stats()["segments"] < 4
        left = {100 * size + i for size in range(1, MANY + 1) for i in range(size)}
        left -= {100 * size + 1 for size in range(2, MANY + 1)}
        assert sorted(tm.match(["all", *(f"t{key}" for key in range(5_000))])) == sorted(left)
        kept = dict(tm)
        names = {entry.name for entry in path.iterdir()}
    with TagMatch.open(path, device="cpu") as tm:
        assert dict(tm) == kept
    assert len([name for name in names if name.startswith("segment-")]) < 4
    assert not [name for name in names if name.startswith("unfinished-")]


@pytest.mark.parametrize("rests", [True, False])
def test_an_index_at_rest_is_laid_out_anew(tmp_path: Path, layout: Any, monkeypatch: Any, rests: bool) -> None:
    """A small segment next to a large one, and its deletions, stay until nothing has changed for a while."""
    monkeypatch.setattr(changing.Changing, "_begin_merging", BEGIN)
    monkeypatch.setattr("tagmatch.partitioner.consolidation._REST_S", 0.01 if rests else 3600)
    index, options = tmp_path / "index", {"layout": layout, "device": "cpu", "durability": "none"}
    with TagMatch(index, **options) as tm:
        two_segments(tm, FEW - 2)
        tm.remove_set(["t3", "all"], 3)
        tm.consolidate()
        if rests:
            wait_until(lambda: tm.stats()["segments"] == 1)
        tm._engine.changing.merging.wait()
        stats = tm.stats()
        assert (stats["segments"], stats["deleted"], stats["to_merge"]) == ((1, 0, 0) if rests else (2, 1, 0))
        assert sorted(key for _, (key,) in tm) == [key for key in range(MANY + FEW - 2) if key != 3]
        kept = dict(tm)
    with TagMatch.open(index, device="cpu") as tm:
        assert (dict(tm), tm.stats()["segments"]) == (kept, 1 if rests else 2)


def at_merge(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Do something when segments have been merged, before the merged one is taken over."""
    merged = changing.merged

    def and_then(*arguments: Any, **options: Any) -> Any:
        found = merged(*arguments, **options)
        do()
        return found

    monkeypatch.setattr(changing, "merged", and_then)


def test_changes_during_a_merge_are_not_lost(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is deleted, changed and added while segments are merged stays so afterwards."""
    with TagMatch(layout=layout, device="cpu") as tm:
        two_segments(tm)
        before: dict[Any, Any] = {}

        def change() -> None:
            tm.remove_set(["t1", "all"], 1)
            tm.add_set([f"t{MANY}", "all"], 5)
            tm.add_set(["new"], 6)
            tm.consolidate()
            before.update(dict(tm))

        at_merge(monkeypatch, change)
        tm._engine.changing.merge()
        tm.check()
        assert dict(tm) == before
        assert sorted(tm.match(["t1", f"t{MANY}", "all", "new"])) == [5, 6, MANY]
        assert tm.stats()["segments"] == 2


def test_small_segments_are_taken_into_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", FEW_SETS)
    with TagMatch(device="cpu") as tm:
        for first in range(0, 5 * MANY, MANY):
            tm.add_sets(numbered(first, first + MANY), range(first, first + MANY))
            tm.consolidate()
            assert tm.stats()["segments"] == 1
        tm.add_sets(numbered(0, FEW_SETS + 1), [1] * (FEW_SETS + 1))
        tm.consolidate()
        tm.add_set(["x"], 1)
        tm.consolidate()
        assert tm.stats()["segments"] == 2


def test_many_changes_give_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it took to consolidate many goes back to the system; for few, that would take too long."""
    given: list[None] = []
    monkeypatch.setattr(engine, "_MANY_CHANGES", 3)
    monkeypatch.setattr(engine, "give_back", lambda: given.append(give_back()))
    with TagMatch(device="cpu", threads=1) as tm:
        for sets, due in (([["a"], ["b"]], 0), ([["c"], ["d"], ["e"]], 1), ([], 1)):
            tm.add_sets(sets, range(len(sets)))
            tm.consolidate()
            assert len(given) == due
        assert sorted(tm.match(["a", "e"])) == [0, 2]


def test_memory_that_arrow_keeps_is_given_back() -> None:
    """Of released buffers, Arrow keeps most."""
    buffers = [pa.allocate_buffer(1 << 20) for _ in range(200)]
    for number in range(len(buffers)):
        np.frombuffer(buffers[number], np.uint8)[:] = 1
    used = resident("VmRSS")
    buffers.clear()
    give_back()
    assert resident("VmRSS") < used - 150_000_000


def test_reload_takes_the_tables_that_are_there(path: Path, layout: Any) -> None:
    options = {"layout": layout, "device": "cpu"}
    with index_of(numbered(0, MANY), range(MANY), path=path, **options) as tm, TagMatch.open(path) as reader:
        before = reader.snapshot.segments[0].tagsets
        tm.remove_set(["t1", "all"], 1)
        tm.add_set(["t2", "all"], 100)
        tm.consolidate()
        assert reader.reload()
        assert reader.snapshot.segments[0].tagsets is before
        assert (dict(reader), sorted(reader.match(["t1", "t2", "all"]))) == (dict(tm), [2, 100])


def test_reload_finds_a_segment_without_the_deletions_that_it_had(path: Path, layout: Any) -> None:
    """The same sets, laid out anew, are a segment of the same name."""
    with index_of(numbered(0, MANY), range(MANY), path=path, layout=layout, device="cpu") as tm:
        tm.remove_set(["t1", "all"], 1)
        tm.consolidate()
        with TagMatch.open(path, device="cpu") as reader:
            assert (reader.stats()["deleted"], reader.match(["t1", "all"])) == (1, [])
            tm.add_set(["t1", "all"], 1)
            tm.consolidate(full=True)
            assert reader.reload()
            assert reader.match(["t1", "all"]) == reader.match_many([["t1", "all"]]).to_pylist()[0] == [1]
            assert dict(reader) == dict(tm)


def test_a_segment_that_comes_back_during_a_merge(path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the deletions with which it is merged."""
    with TagMatch(path, layout=layout, device="cpu") as tm, TagMatch(path, layout=layout, device="cpu") as other:
        tm.add_sets(numbered(0, MANY), range(MANY))
        tm.consolidate()
        kept = dict(tm)
        tm.add_sets(numbered(MANY, MANY + 2 * FEW), range(2 * FEW))
        tm.remove_set(["t1", "all"], 1)
        tm.consolidate()

        def lay_out_anew() -> None:
            other.reload()
            other.remove_sets(numbered(MANY, MANY + 2 * FEW), range(2 * FEW))
            other.add_set(["t1", "all"], 1)
            other.consolidate(full=True)
            assert tm.reload()

        at_merge(monkeypatch, lay_out_anew)
        tm._engine.changing.merge()
        assert dict(tm) == dict(other) == kept
    with TagMatch.open(path, device="cpu") as tm:
        assert dict(tm) == kept


def test_what_is_worth_merging(layout: Any) -> None:
    with index_of(numbered(0, MANY), range(MANY), layout=layout, device="cpu") as tm:
        assert tm.stats()["to_merge"] == 0
        tm.add_set(["x"], 1)
        tm.consolidate()
        assert (tm.stats()["segments"], tm.stats()["to_merge"]) == (2, 0)
        tm.add_sets([["y"], *numbered(MANY, MANY + FEW)], range(FEW + 1))
        tm.consolidate()
        assert (tm.stats()["segments"], tm.stats()["to_merge"]) == (2, 2)
        tm.consolidate(full=True)
        for key in range(FEW):  # a segment that lacks many sets is laid out anew, too
            tm.remove_set([f"t{key}", "all"], key)
            tm.consolidate()
            assert tm.stats()["to_merge"] == 0
        tm.remove_set([f"t{FEW}", "all"], FEW)
        tm.consolidate()
        assert (tm.stats()["segments"], tm.stats()["to_merge"]) == (1, 1)


@pytest.mark.parametrize("changes", ["its sets", "the index, from another program"])
def test_a_merged_segment_that_is_of_no_use_goes(path: Path, monkeypatch: pytest.MonkeyPatch, changes: str) -> None:
    """What it was merged from is gone, or another program has saved something else, by the time that it is there."""
    with TagMatch(path, device="cpu") as tm, TagMatch(path, device="cpu") as other:
        two_segments(tm)
        other.reload()
        parts_for = changing.parts_for

        def changed(segment: Any, *arguments: Any) -> Any:
            found = parts_for(segment, *arguments)
            monkeypatch.setattr("tagmatch.changing.parts_for", parts_for)
            who = tm if changes == "its sets" else other
            who.add_sets(numbered(0, MANY + 2 * FEW), range(100, 100 + MANY + 2 * FEW))
            who.consolidate()
            return found

        monkeypatch.setattr("tagmatch.changing.parts_for", changed)
        if changes == "its sets":
            tm._engine.changing.merge()
        else:
            with pytest.raises(tagmatch.IndexChangedError):
                tm._engine.changing.merge()
    assert unnamed_in(path) == []
    with TagMatch.open(path, device="cpu") as tm:
        tm.check()
        assert (len(tm), len(tm.match(["all", "t3"]))) == (MANY + 2 * FEW, 2)
