"""Changes come back from logs as they were logged, also with the times at which keys expire."""

import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies
from support.journals import (
    FIRST,
    acquired,
    append,
    bulk,
    changes_in,
    changes_of,
    journal_in,
    peek,
    single,
    sliced_chunks,
    write_all,
)

from tagmatch import InvalidValueError, TagMatchError
from tagmatch.model.arrays import Strings, TagLists
from tagmatch.model.columns import KEY_CHECKS, rows_of_tags, tag_lists
from tagmatch.model.storage.log import Journal, LogWriter
from tagmatch.model.storage.log_records import Record, bulk_record, single_record
from tagmatch.model.tables import NEVER

TIMES = st.integers(-(2**62), NEVER) | st.just(NEVER)
#: A change, and when its key expires
Timed = tuple[list[str], Any, bool, int]


@st.composite
def timed_records(draw: st.DrawFn) -> list[tuple[list[Timed], Record]]:
    """Records of all kinds, of an index whose keys are of one type."""
    key_type, keys = draw(st.sampled_from([("integer", strategies.keys), ("string", strategies.names)]))
    made = []
    for removed in draw(st.lists(st.booleans(), max_size=8)):
        if draw(st.booleans()):
            tags, key, time = draw(strategies.tag_sets), draw(keys), draw(TIMES)
            made.append(([(tags, key, removed, time)], single_record(tags, key, removed=removed, expires=time)))
            continue
        chunks, rows = draw(sliced_chunks())
        of_rows = [draw(keys) for _ in rows]
        times = draw(st.none() | st.just([draw(TIMES) for _ in rows]))
        column = None if times is None else np.array(times, np.int64)
        timed = zip(rows, of_rows, [removed] * len(rows), times or [NEVER] * len(rows), strict=True)
        values = KEY_CHECKS[key_type].many(of_rows, "keys")
        made.append(([*timed], bulk_record(chunks, values, removed=removed, expires=column)))
    return made


def timed_in(journal: Journal) -> list[Timed]:
    found: list[Timed] = []
    for logged in journal.replay():
        changes = changes_in([logged])
        times = [NEVER] * len(changes) if logged.expires is None else logged.expires.tolist()
        found += [(*change, time) for change, time in zip(changes, times, strict=True)]
    return found


def versions(folder: Path) -> list[int]:
    return [struct.unpack_from("<I", file.read_bytes(), 4)[0] for file in sorted(folder.glob("staged-*.log"))]


@given(timed_records(), st.data())
def test_what_is_replayed_is_what_was_logged_and_only_logs_with_times_have_a_format_of_their_own(made, data):
    ways = [data.draw(st.tuples(st.booleans(), st.sampled_from(["fsync", "os"]))) for _ in made]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal = journal_in(folder)
        for (_, record), (is_opened_again, durability) in zip(made, ways, strict=True):
            if is_opened_again:
                journal.close()
                journal = journal_in(folder)
            append(journal, record, durability)
        expected = [change for timed, _ in made for change in timed]
        assert timed_in(journal) == expected
        journal.close()
        staged = peek(folder, FIRST)
        assert (staged.changes, staged.records, staged.torn_bytes) == (len(expected), len(made), 0)
        found = versions(folder)
        assert found == sorted(found)
        assert (2 in found) == any(record.version == 2 for _, record in made)
        assert 1 not in found[1:]
        journal = journal_in(folder)
        assert timed_in(journal) == expected
        journal.close()


def test_a_time_is_not_logged_where_no_log_for_it_can_be_begun(tmp_path, monkeypatch):
    """Nor later, though the present log takes changes without times."""
    journal = journal_in(tmp_path)
    append(journal, single_record(["a"], 1, removed=False), "os")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LogWriter, "create", full)
    for _ in range(2):
        with pytest.raises(TagMatchError, match="No space left"):
            append(journal, single_record(["a"], 2, removed=False, expires=5), "os")
    append(journal, single_record(["b"], 3, removed=False), "os")
    monkeypatch.undo()
    append(journal, single_record(["c"], 4, removed=False, expires=6), "os")
    assert timed_in(journal) == [(["a"], 1, False, NEVER), (["b"], 3, False, NEVER), (["c"], 4, False, 6)]
    journal.close()
    assert versions(tmp_path) == [1, 2]


def test_single_changes_come_back_as_one_chunk_and_large_ones_between_them_in_order(tmp_path):
    made = [single([f"t{i}", "é" * (i % 3)][: i % 3], i, removed=i % 5 == 0) for i in range(2_000)]
    write_all(tmp_path / "small", made)
    journal = journal_in(tmp_path / "small")
    (logged,) = journal.replay()
    journal.close()
    assert (len(logged.chunks), changes_in([logged])) == (1, changes_of(made))
    rows = [[f"tag {i % 977}", f"other {i}"] for i in range(30_000)]
    large = bulk([rows_of_tags(rows[:10]), rows_of_tags(rows[10:])], rows, list(range(len(rows))))
    made = [single(["a"], 1), single([], 2), large, single(["a"], 1, removed=True), large]
    write_all(tmp_path / "large", made)
    assert acquired(tmp_path / "large") == changes_of(made)


def test_chunks_share_a_dictionary_in_the_log_and_when_they_come_back(tmp_path):
    texts = [f"a tag of some length {i}" for i in range(1_000)]
    array = pa.DictionaryArray.from_arrays(pa.array(range(1_000), pa.int32()), pa.array(texts))
    lists = pa.ListArray.from_arrays(pa.array(range(0, 1_001, 10), pa.int32()), array)
    chunks = tag_lists(pa.chunked_array([lists.slice(i, 10) for i in range(0, 100, 10)]), "tags", stored=True)
    rows = [texts[i : i + 10] for i in range(0, 1_000, 10)]
    write_all(tmp_path, [bulk(chunks, rows, list(range(100)))])
    assert peek(tmp_path, FIRST).nbytes < 2 * sum(map(len, texts))
    journal = journal_in(tmp_path)
    (logged,) = journal.replay()
    journal.close()
    assert changes_in([logged]) == [(row, key, False) for key, row in enumerate(rows)]
    assert len({id(chunk.tags) for chunk in logged.chunks}) == len({id(chunk.memo) for chunk in logged.chunks}) == 1


@pytest.mark.parametrize("offsets", [[0, 2**32], [0, 1, 2**32 + 1]])
def test_what_is_too_long_for_a_record_is_refused(offsets):
    strings = Strings(np.array(offsets), np.zeros(0, np.uint8))
    tags = TagLists(np.array([0, len(strings)]), strings)
    with pytest.raises(InvalidValueError, match="4 GiB"):
        bulk_record([tags], np.zeros(1, np.uint64), removed=False)
    with pytest.raises(InvalidValueError, match="4 GiB"):
        bulk_record([rows_of_tags([[]] * len(strings))], strings, removed=False)


def test_a_tag_of_4_gib_alone_is_refused():
    class Encoded(bytes):
        def __len__(self) -> int:
            return 2**32

    class Long(str):
        def encode(self) -> bytes:
            return Encoded()

    with pytest.raises(InvalidValueError, match="4 GiB"):
        single_record([Long()], 1, removed=False)
