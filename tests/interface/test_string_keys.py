"""Keys that are strings: everything that integers do, saved with the snapshot."""

import re
from dataclasses import replace

import numpy as np
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import strategies
from support.agreement import assert_agree, change_all, index_of, loaded
from support.index_files import contents_of

import tagmatch
from tagmatch import InvalidTypeError, InvalidValueError, TagMatch, TagMatchError
from tagmatch.model.columns import strings_of
from tagmatch.model.storage.folder import Folder
from tagmatch.model.tables import Snapshot

PAIRS = [(["a"], "alice"), (["a", "b"], "bob"), (["a", "b"], "alice"), ([], "everyone")]


@pytest.mark.parametrize(("key_type", "pairs"), [("string", strategies.named_pairs), ("integer", strategies.pairs)])
@given(data=st.data(), layout=strategies.layouts)
def test_files_depend_on_what_is_stored_alone(key_type, pairs, data, layout, tmp_path_factory):
    """Whatever else was added and removed before, and in whatever steps."""
    folder, oracle = tmp_path_factory.mktemp("indexes"), Oracle()
    with TagMatch(folder / "grown", key_type=key_type, layout=layout) as grown:
        for changes in data.draw(st.lists(strategies.changes(pairs), min_size=2, max_size=3)):
            change_all(changes, grown, oracle)
        grown.save(folder / "as grown")
    stored = [(tags, key) for tags, keys in oracle for key in keys]
    with TagMatch(folder / "new", key_type=key_type, layout=layout) as new:
        change_all([(True, *pair) for pair in stored], new)
        new.save(folder / "as new")
    assert contents_of(folder / "as grown") == contents_of(folder / "as new")


NAMES = ["é", "alice", "alice", ""]

COLUMNS = [
    NAMES, tuple(NAMES), iter(NAMES), np.array(NAMES), np.array(NAMES, object), pa.array(NAMES),
    pa.array(NAMES, pa.large_string()), pa.array(NAMES, pa.string_view()), pa.array(NAMES).dictionary_encode(),
    pa.array(["no", *NAMES, "no"])[1:-1], pa.chunked_array([NAMES[:1], [], NAMES[1:]]),
    pa.chunked_array([], pa.string()), polars.Series(NAMES), polars.Series(NAMES, dtype=polars.Categorical),
]  # fmt: skip


def test_columns_of_keys():
    for keys in COLUMNS:
        rows = [["a"], ["b"], ["a"], ["c"]][: 0 if isinstance(keys, pa.ChunkedArray) and not len(keys) else None]
        tm = index_of(rows, keys, key_type="string")
        assert sorted(tm.match(["a", "b", "c"])) == (["", "alice", "alice", "é"] if rows else [])


@pytest.mark.parametrize(
    ("key", "kind", "told"),
    [
        (7, TypeError, "key must be a string, as the keys of this index are, not 7 (int)"),
        (None, TypeError, "not None"),
        (b"alice", TypeError, "not b'alice'"),
        ("\ud800", ValueError, "key holds the key '\\ud800', which has a lone surrogate"),
    ],
)  # fmt: skip
def test_keys_that_are_none(key, kind, told):
    with TagMatch(key_type="string") as tm:
        with pytest.raises(kind, match=re.escape(told)):
            tm.add_set(["a"], key)
        with pytest.raises(kind, match=r"keys: row 1\b"):
            tm.add_sets([["a"], ["b"]], ["alice", key])
        assert tm.stats()["staged"] == 0


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (pa.array([1, 2]), "keys must be strings, as the keys of this index are, not int64"),
        (pa.array(["alice", None]), "keys: row 1 is null where a key must be"),
        (pa.array(["alice", None]).dictionary_encode(), "keys: row 1 is null where a key must be"),
        (pa.chunked_array([["alice"], [None]]), "keys: row 1 is null where a key must be"),
        (pa.array([b"alice", b"\xff"]).view(pa.string()), "keys: rows 0 to 1: Invalid UTF8"),
        ("alice", "keys must be a sequence of strings, not 'alice'"),
        (None, "keys must be a sequence of strings, not None"),
    ],
)
def test_columns_that_are_none(keys, told):
    with TagMatch(key_type="string") as tm:
        with pytest.raises(TagMatchError, match=told):
            tm.add_sets([["a"], ["b"]], keys)
        assert tm.stats()["staged"] == 0


@pytest.mark.parametrize("keys", [["alice"], pa.array(["alice"]), pa.array(["alice"]).dictionary_encode()])
def test_an_index_of_integers_says_how_to_have_strings(keys):
    with pytest.raises(InvalidTypeError, match='make the index with key_type="string"'):
        TagMatch().add_sets([["a"]], keys)


def test_an_index_on_disk_keeps_its_type(tmp_path):
    path = tmp_path / "names.index"
    tm, oracle = loaded(PAIRS, path=path, key_type="string")
    tm.close()
    for open_one in (TagMatch, TagMatch.open):
        for options in ({}, {"key_type": "string"}):
            with open_one(path, **options) as tm:
                assert_agree(tm, oracle, [["a"], ["a", "b"], []])
        with pytest.raises(InvalidValueError, match='have key_type "string", not "integer"'):
            open_one(path, key_type="integer")
    with TagMatch.open(path) as tm:
        index_of([["a"]], [1]).save(path)
        with pytest.raises(InvalidValueError, match='have key_type "integer", not "string"'):
            tm.reload()
        assert sorted(tm.match(["a"])) == ["alice", "everyone"]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["bob", "alice", "everyone"], "key names, row 1: is not after the name before it"),
        (["alice", "alice", "everyone"], "key names, row 1: is not after the name before it"),
        (["alice", "bob"], "key table: has the number 2, of 2"),  # `open` sees it
        (["alice", "bob", "everyone", "nobody"], "key names, row 3: no set has the key"),
    ],
)
def test_check(tmp_path, names, told):
    tm, _ = loaded(PAIRS, key_type="string")
    tm.check()
    segment = tm.snapshot.only
    damaged = replace(segment, keys=replace(segment.keys, names=strings_of(names)))
    Folder(tmp_path / "index").save(Snapshot((damaged,)))
    with pytest.raises((tagmatch.InvariantError, tagmatch.IndexCorruptError)) as error:
        TagMatch.open(tmp_path / "index").check()
    assert told in str(error.value)


def test_more_keys_than_fit_a_block():
    """Names of several blocks of staged changes, singly and in bulk."""
    tm = index_of([[f"t{i}"] for i in range(70_000)], [f"bulk {i}" for i in range(70_000)], key_type="string")
    for i in range(5_000):
        tm.add_set([f"t{i}"], f"single {i}")
    tm.consolidate()
    for i in (0, 4_095, 4_096, 4_999):
        assert sorted(tm.match([f"t{i}"])) == [f"bulk {i}", f"single {i}"]
    assert tm.match(["t69999"]) == ["bulk 69999"]


@pytest.mark.usefixtures("segments_stay")
def test_keys_of_two_segments():
    """Each segment numbers its own; one that both have comes once, where that is asked."""
    with TagMatch(key_type="string", device="cpu") as tm:
        for sets, keys in (([["a"], ["c"], ["d"]], ["ana", "cy", "dee"]), ([["a", "b"], ["b"]], ["ana", "bo"])):
            tm.add_sets(sets, keys)
            tm.consolidate()
        assert tm.stats()["segments"] == 2
        assert tm.match_many([["a", "b", "c"]], unique=True).to_pylist() == [["ana", "bo", "cy"]]
        assert sorted(tm.match_many([["a", "b", "c"]])[0].as_py()) == ["ana", "ana", "bo", "cy"]
