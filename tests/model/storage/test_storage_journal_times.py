"""Times of keys in logs: they come back, in logs that older versions refuse."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies
from support.journals import FIRST, changes_in, sliced_chunks

from tagmatch import TagMatchError
from tagmatch.model.columns import KEY_CHECKS
from tagmatch.model.storage.journal.folder import peek
from tagmatch.model.storage.journal.journal import Journal
from tagmatch.model.storage.journal.log import LogWriter
from tagmatch.model.storage.journal.records import Logged, Record, bulk_record, single_record
from tagmatch.model.tables import NEVER

TIMES = st.integers(-(2**62), NEVER) | st.just(NEVER)
#: A change, and when its key expires
Timed = tuple[list[str], Any, bool, int]


@st.composite
def timed_records(draw: st.DrawFn) -> list[tuple[list[Timed], Record]]:
    """Records of all kinds, of an index whose keys are of one type."""
    key_type, keys = draw(st.sampled_from([("integer", strategies.keys), ("string", strategies.names)]))
    made = []
    for _ in range(draw(st.integers(0, 8))):
        removed = draw(st.booleans())
        if draw(st.booleans()):
            tags, key, time = draw(strategies.tag_sets), draw(keys), draw(TIMES)
            made.append(([(tags, key, removed, time)], single_record(tags, key, removed=removed, expires=time)))
            continue
        chunks, rows = draw(sliced_chunks())
        of_rows = [draw(keys) for _ in rows]
        times = draw(st.none() | st.just([draw(TIMES) for _ in rows]))
        column = None if times is None else np.array(times, np.int64)
        values = KEY_CHECKS[key_type].many(of_rows, "keys")
        timed = [
            (row, key, removed, time)
            for row, key, time in zip(rows, of_rows, times or [NEVER] * len(rows), strict=True)
        ]
        made.append((timed, bulk_record(chunks, values, removed=removed, expires=column)))
    return made


def timed_in(logged: Logged) -> list[Timed]:
    changes = changes_in([logged])
    times = [NEVER] * len(changes) if logged.expires is None else logged.expires.tolist()
    return [(*change, time) for change, time in zip(changes, times, strict=True)]


def versions(folder: Path) -> list[int]:
    return [struct.unpack_from("<I", file.read_bytes(), 4)[0] for file in sorted(folder.glob("staged-*.log"))]


@given(made=timed_records(), data=st.data())
def test_times_come_back_and_only_logs_with_times_have_a_format_of_their_own(made: Any, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal = Journal.acquire(folder, FIRST)
        try:
            for _, record in made:
                if data.draw(st.booleans()):
                    journal.close()
                    journal = Journal.acquire(folder, FIRST)
                journal.append(record, data.draw(st.sampled_from(["fsync", "os"])))
            expected = [change for timed, _ in made for change in timed]
            assert [change for logged in journal.replay() for change in timed_in(logged)] == expected
        finally:
            journal.close()
        assert peek(folder, FIRST).changes == len(expected)
        found = versions(folder)
        assert found == sorted(found)
        assert (2 in found) == any(record.version == 2 for _, record in made)
        assert 1 not in found[1:]
        journal = Journal.acquire(folder, FIRST)
        assert [change for logged in journal.replay() for change in timed_in(logged)] == expected
        journal.close()


def test_a_time_is_not_logged_where_no_log_for_it_can_be_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor later, though the log that there is takes changes without times."""
    journal = Journal.acquire(tmp_path, FIRST)
    journal.append(single_record(["a"], 1, removed=False), "os")

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LogWriter, "create", full)
    for _ in range(2):
        with pytest.raises(TagMatchError, match="No space left"):
            journal.append(single_record(["a"], 2, removed=False, expires=5), "os")
    journal.append(single_record(["b"], 3, removed=False), "os")
    monkeypatch.undo()
    journal.append(single_record(["c"], 4, removed=False, expires=6), "os")
    found = [change for logged in journal.replay() for change in timed_in(logged)]
    assert found == [(["a"], 1, False, NEVER), (["b"], 3, False, NEVER), (["c"], 4, False, 6)]
    journal.close()
    assert versions(tmp_path) == [1, 2]
