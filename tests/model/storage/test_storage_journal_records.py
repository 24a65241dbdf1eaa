import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.journals import FIRST, acquired, bulk, calls, changes_in, changes_of, single, write_all

from tagmatch import InvalidValueError
from tagmatch.model.arrays import Strings, TagLists
from tagmatch.model.columns import rows_of_tags, tag_lists
from tagmatch.model.storage.journal.folder import peek
from tagmatch.model.storage.journal.journal import Journal
from tagmatch.model.storage.journal.records import bulk_record, single_record


@given(calls(), st.data())
def test_what_is_replayed_is_what_was_logged_in_that_order(made, data):
    durabilities = [data.draw(st.sampled_from(["fsync", "os"])) for _ in made]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal = Journal.acquire(folder, FIRST)
        for call, durability in zip(made, durabilities, strict=True):
            journal.append(call.record, durability)
        assert changes_in(journal.replay()) == changes_of(made)
        journal.close()
        staged = peek(folder, FIRST)
        assert (staged.changes, staged.records, staged.torn_bytes) == (len(changes_of(made)), len(made), 0)
        assert acquired(folder) == changes_of(made)


@given(calls())
def test_a_log_goes_on_where_the_program_before_has_ended(made):
    with tempfile.TemporaryDirectory() as name:
        for call in made:
            write_all(Path(name), [call])
        assert acquired(Path(name)) == changes_of(made)
        assert len(list(Path(name).glob("staged-*"))) == bool(made)


def test_single_changes_come_back_as_one_chunk(tmp_path):
    made = [single([f"t{i}", "é" * (i % 3)][: i % 3], i, removed=i % 5 == 0) for i in range(2_000)]
    write_all(tmp_path, made)
    journal = Journal.acquire(tmp_path, FIRST)
    (logged,) = journal.replay()
    journal.close()
    assert len(logged.chunks) == 1
    assert changes_in([logged]) == changes_of(made)


def test_large_changes_between_small_ones_come_in_order(tmp_path):
    rows = [[f"tag {i % 977}", f"other {i}"] for i in range(30_000)]
    large = bulk([rows_of_tags(rows[:10]), rows_of_tags(rows[10:])], rows, list(range(len(rows))))
    made = [single(["a"], 1), single([], 2), large, single(["a"], 1, removed=True), large]
    write_all(tmp_path, made)
    assert acquired(tmp_path) == changes_of(made)


def test_chunks_share_a_dictionary_in_the_log_and_when_they_come_back(tmp_path):
    texts = [f"a tag of some length {i}" for i in range(1_000)]
    array = pa.DictionaryArray.from_arrays(pa.array(range(1_000), pa.int32()), pa.array(texts))
    lists = pa.ListArray.from_arrays(pa.array(range(0, 1_001, 10), pa.int32()), array)
    chunks = tag_lists(pa.chunked_array([lists.slice(i, 10) for i in range(0, 100, 10)]), "tags", stored=True)
    rows = [texts[i : i + 10] for i in range(0, 1_000, 10)]
    write_all(tmp_path, [bulk(chunks, rows, list(range(100)))])
    assert peek(tmp_path, FIRST).nbytes < 2 * sum(map(len, texts))
    journal = Journal.acquire(tmp_path, FIRST)
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
    class Long(str):
        def encode(self) -> bytes:
            return Encoded()

    class Encoded(bytes):
        def __len__(self) -> int:
            return 2**32

    with pytest.raises(InvalidValueError, match="4 GiB"):
        single_record([Long()], 1, removed=False)
