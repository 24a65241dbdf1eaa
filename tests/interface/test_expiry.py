"""Keys that expire: their files, the clock, the thread that drops them, and values that are not times.

`test_state_machine.py` has time pass between calls in any order.
"""

import gc
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support.agreement import index_of
from support.expiring import BEGIN, Clock, set_clock
from support.index_files import contents_of
from support.waiting import wait_until

from tagmatch import InvalidTypeError, InvalidValueError, TagMatch
from tagmatch.model.storage.repository import location_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return set_clock(monkeypatch)


@pytest.mark.parametrize("expires", [(None, 5), (5, 5)])
def test_the_number_stays_that_of_the_snapshot(tmp_path: Path, clock: Clock, expires: Any, layout: Any) -> None:
    """Which keys have expired depends on the time only: who opens the snapshot by this number then has the same."""
    times = [None if each is None else clock.after(each) for each in expires]
    with index_of([["a"], ["a"]], [1, 2], expires=times, path=tmp_path / "i", layout=layout, device="cpu") as tm:
        with TagMatch.open(tmp_path / "i", device="cpu") as reader:
            clock.pass_by(5)
            for each in (tm, reader):
                wait_until(lambda: each.match(["a"]) == [1][: expires.count(None)])  # noqa: B023
                assert each.stats()["number"] == 1
        with TagMatch.open(tmp_path / "i", snapshot=1, device="cpu") as opened:
            assert opened.match(["a"]) == tm.match(["a"])
            assert opened.stats()["number"] == 1
        tm.consolidate()
        assert tm.stats()["number"] == TagMatch.snapshots(tmp_path / "i")[-1].number == 2


@pytest.mark.usefixtures("segments_stay")
def test_a_segment_goes_on_without_what_expires(tmp_path: Path, clock: Clock) -> None:
    """Its rows are marked, in memory, and on disk by the next `consolidate`, which writes nothing else then."""
    with TagMatch(tmp_path / "i", device="cpu") as tm:
        tm.add_sets([[f"t{i}", "all"] for i in range(50)], range(50), expires=[None, clock.after(5)] * 25)
        tm.add_set(["t1", "all"], 100)
        tm.consolidate()
        before = contents_of(tmp_path / "i")
        tables, ranks = tm.snapshot.only.name, tm.snapshot.only.tagsets.ranks
        clock.pass_by(5)
        wait_until(lambda: len(tm) == 26)
        assert [segment.name for segment in tm.snapshot.segments] == [tables, None]
        assert tm.snapshot.segments[0].tagsets.ranks is ranks
        assert contents_of(tmp_path / "i") == before
        tm.consolidate()
        after = contents_of(tmp_path / "i")
        assert set(before) - set(after) == set()
        new = {name.partition("/")[0].partition("-")[0] for name in set(after) - set(before)}
        assert new == {"deleted", "segment"}
        tm.consolidate()
        assert contents_of(tmp_path / "i") == after
    with TagMatch.open(tmp_path / "i", device="cpu") as tm:
        assert sorted(tm.match(["all", "t1", "t2", "t3"])) == [2, 100]


@pytest.mark.usefixtures("segments_stay")
def test_a_merge_leaves_out_what_has_expired(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its rows would be marked as deleted at once."""
    monkeypatch.setattr("tagmatch.changing.Changing._expect", lambda *_: None)
    with TagMatch(device="cpu") as tm:
        for keys in (range(10), range(10, 14)):
            tm.add_sets([[f"t{i}", "all"] for i in keys], keys, expires=[None, clock.after(5)] * (len(keys) // 2))
            tm.consolidate()
        clock.pass_by(5)
        assert (tm.stats()["segments"], len(tm)) == (2, 14)
        assert tm._engine.changing.merge()
        stats = tm.stats()
        assert (stats["segments"], stats["deleted"], stats["sets"]) == (1, 0, 7)


@pytest.mark.usefixtures("compiled")
def test_by_the_clock_of_the_system() -> None:
    times = [timedelta(seconds=0.2), timedelta(hours=2)]
    with index_of([["a"]] * 2, [1, 2], expires=times, device="cpu") as tm:
        wait_until(lambda: tm.match(["a"]) == [2])


def test_a_clock_that_is_set_back(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was dropped stays away until the index is read again; then it is answered whole."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    with TagMatch(tmp_path / "i", device="cpu") as writer, TagMatch(tmp_path / "i", device="cpu") as reader:
        writer.add_sets([["a"], ["b"], ["c"]], [1, 2, 3], expires=[clock.after(5), None, None])
        writer.consolidate()
        reader.reload()
        clock.pass_by(5)
        for tm in (writer, reader):
            wait_until(lambda tm=tm: sorted(tm.match(["a", "b", "c"])) == [2, 3])
        clock.pass_by(-3)
        assert sorted(reader.match(["a", "b", "c"])) == [2, 3]
        # As a program would whose clock is right
        with TagMatch.open(tmp_path / "i", device="cpu") as other:
            other.add_set(["d"], 4)
            other.consolidate()
        assert reader.reload()
        assert sorted(reader.match(["a", "b", "c", "d"])) == [1, 2, 3, 4]
        reader.check()


def test_keys_that_expire_close_together_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread rests in between, as long as it is told to; `consolidate` does not."""
    clock = set_clock(monkeypatch, rest_s=1e6)
    times = [clock.after(1), clock.after(2), None]
    with index_of([["a"]] * 3, [1, 2, 3], expires=times) as tm, index_of([["a"]], [2], expires=times[1:2]) as other:
        clock.pass_by(1)
        wait_until(lambda: sorted(tm.match(["a"])) == [2, 3])
        clock.pass_by(1)
        wait_until(lambda: other.match(["a"]) == [])
        assert sorted(tm.match(["a"])) == [2, 3]
        tm.consolidate()
        assert tm.match(["a"]) == [3]


def expiry_threads() -> int:
    return sum(thread.name == "tagmatch-expiry" for thread in threading.enumerate())


def test_the_thread_is_there_while_something_expires(clock: Clock) -> None:
    with index_of([["a"]], [1], device="cpu") as tm:
        assert expiry_threads() == 0
        for key in (2, 3):
            tm.add_set(["a"], key, expires=timedelta(seconds=1))
            tm.consolidate()
            assert expiry_threads() == 1
            clock.pass_by(1)
            wait_until(lambda: expiry_threads() == 0)
            assert tm.match(["a"]) == [1]
        tm.add_set(["a"], 4, expires=timedelta(hours=1))
        tm.consolidate()
        assert expiry_threads() == 1
    assert expiry_threads() == 0
    forgotten = index_of([["a"]], [2], expires=timedelta(seconds=1), device="cpu")
    assert expiry_threads() == 1
    del forgotten
    gc.collect()
    wait_until(lambda: expiry_threads() == 0)


def test_an_error_does_not_end_it(clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    failed = threading.Event()

    def fail(*_: Any, **__: Any) -> Any:
        failed.set()
        raise MemoryError("no memory")

    with index_of([["a"]], [1], expires=timedelta(seconds=1), device="cpu") as tm:
        with monkeypatch.context() as patched:
            patched.setattr("tagmatch.changing.without_expired", fail)
            clock.pass_by(1)
            assert failed.wait(60)
            assert tm.match(["a"]) == [1]
        wait_until(lambda: tm.match(["a"]) == [])
    assert "keys that have expired are not dropped yet: MemoryError: no memory" in caplog.text


def _timestamps(values: list[Any], unit: str) -> pa.Array:
    return pa.array(values, pa.timestamp(unit, "UTC"))


NAIVE, VALUE, TYPE = datetime(2030, 1, 1), InvalidValueError, InvalidTypeError
BAD_TIMES = [
    (NAIVE, VALUE, "expires has no time zone; give one"), (timedelta(0), VALUE, "must be after now"),
    (timedelta(seconds=-1), VALUE, "must be after now, not -1 day, 23:59:59 from now"),
    (timedelta.max, VALUE, "too far away, after the year 9999"),
    (datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), VALUE, "too far away, after the year 9999"),
    (BEGIN.date(), TYPE, "must be a datetime"),
    (5, TYPE, r"must be a datetime with a time zone, or a timedelta from now.*, not 5 \(int\)"),
    ("2030-01-01T00:00:00Z", TYPE, "not '2030-01-01T00:00:00Z'"),
]  # fmt: skip
BAD_COLUMNS = [
    ([BEGIN, NAIVE], VALUE, "expires: row 1 has no time zone"), ([BEGIN, 7], TYPE, "expires: row 1 must be a datetime"),
    ([BEGIN, timedelta(0)], VALUE, "expires: row 1 must be after now"), ({BEGIN}, TYPE, "column of times"),
    ([BEGIN], VALUE, "must have a time for each key; there are 1, and 2 keys"),
    (pa.array([1, 2], pa.timestamp("us")), VALUE, "assume_timezone"),
    (pa.chunked_array([_timestamps([1], "s"), _timestamps([2**60], "s")]), VALUE, "row 1 is too far"),
    (_timestamps([2**62, 0], "us"), VALUE, "expires: row 0 is too far away, after the year 9999"),
    (pa.array([1, 2]), TYPE, "must be timestamps with a time zone, not int64"),
    (pa.array([1, 2], pa.duration("s")), TYPE, "must be timestamps"), (pa.table({"a": [1, 2]}), TYPE, "one column"),
    (np.array([1, 2]), TYPE, "datetime64, not of int64"),
    (np.array([["2030-01-01"]], "M8[s]"), TYPE, "one-dimensional"),
]  # fmt: skip


@pytest.mark.parametrize(("expires", "error", "told"), [*BAD_TIMES, *BAD_COLUMNS])
def test_times_that_cannot_be_used(expires: Any, error: Any, told: str) -> None:
    with TagMatch(device="cpu") as tm:
        with pytest.raises(error, match=told):
            tm.add_sets([["a"], ["b"]], [1, 2], expires=expires)
        if not hasattr(expires, "__len__") or isinstance(expires, str):
            with pytest.raises(error, match=told):
                tm.add_set(["a"], 1, expires=expires)
        assert tm.stats()["staged"] == 0


ROME = timezone(timedelta(hours=1))


@pytest.mark.usefixtures("clock")
def test_columns_of_times() -> None:
    late, tokyo = BEGIN + timedelta(days=9), pa.timestamp("ms", "Asia/Tokyo")
    for expires in (
        [None, late], (each for each in (None, late.astimezone(ROME))), [None, timedelta(days=9)],
        np.array(["NaT", "2026-12-02"], "M8[D]"), np.array(["NaT", "2026-12-02"], "M8[ns]"),
        np.array([None, late], object), pl.Series([None, late]),
        pa.chunked_array([pa.nulls(1, tokyo), pa.array([1796169600000], tokyo)]),
    ):  # fmt: skip
        with index_of([["a"], ["b"]], [1, 2], expires=expires, device="cpu") as tm:
            rows = {row["key"]: row["expires"] for row in tm.to_arrow().to_pylist()}
            assert rows == {1: None, 2: late}, type(expires)
    with index_of([["a"], ["b"]], [1, 2], expires=pa.nulls(2), device="cpu") as tm:
        assert tm.to_arrow().schema.names == ["tags", "key"]
        assert (tm.snapshot.only.keys.expires, expiry_threads()) == (None, 0)


pytest_plugins = ["support.s3_bucket"]


@pytest.mark.slow
@pytest.mark.usefixtures("bucket")
def test_on_a_store(uri: str, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """`consolidate` has nothing to do then, unless it lays out all sets anew; `reload` takes over new files."""
    clock = set_clock(monkeypatch)
    times = [clock.after(5), None, clock.after(9), None]
    with index_of([["a"], ["a"], ["b"], ["c"]], [1, 2, 3, 4], expires=times, device="cpu") as local:
        local.save(uri)
        saved = location_of(uri, "uri").manifest()
        with TagMatch.open(uri, device="cpu") as tm:
            assert sorted(tm.match(["a", "b", "c"])) == [1, 2, 3, 4]
            clock.pass_by(5)
            wait_until(lambda: sorted(tm.match(["a", "b", "c"])) == [2, 3, 4])
            clock.pass_by(4)
            tm.consolidate()
            assert sorted(tm.match(["a", "b", "c"])) == [2, 4]
            with pytest.raises(InvalidValueError, match="read-only"):
                tm.consolidate(full=True)
            assert not tm.reload()
            assert location_of(uri, "uri").manifest() == saved
            index_of([], [], device="cpu").save(uri)
            assert tm.reload()
            assert len(tm) == 0
    assert [each for each in caplog.records if each.name.startswith("tagmatch")] == []
