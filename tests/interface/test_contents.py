"""What is stored, given back: iteration, `in`, `to_arrow`, notebooks; what changes say; and keys that are strings."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

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
from tagmatch import (
    InvalidTypeError,
    InvalidValueError,
    NotStoredError,
    ResultTooLargeError,
    TagMatch,
    TagMatchError,
    contents,
)
from tagmatch.model.columns import strings_of
from tagmatch.model.storage.repository import Repository
from tagmatch.model.tables import Snapshot
from tagmatch.notebook import MOST_KEYS, MOST_ROWS

SCHEMA = pa.schema([("tags", pa.list_(pa.string())), ("key", pa.uint64())])
PAIRS = [(["a", "b"], 2), (["b", "a"], 1), ([], 2**64 - 1), (["c"], 3), (["", "\0"], 0)]


@pytest.fixture(params=[None, 1, 3], ids=["batches", "single rows", "small batches"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        for name in ("_BATCH_ROWS", "_SETS_AT_ONCE", "_BATCH_TAGS", "_BATCH_KEYS"):
            monkeypatch.setattr(contents, name, request.param)
        monkeypatch.setattr(contents, "_BATCH_BYTES", 40)


@pytest.mark.usefixtures("limit")
@strategies.fewer(2)
@given(pairs=st.lists(st.tuples(strategies.tag_sets, strategies.keys)), layout=strategies.layouts)
def test_what_is_stored_comes_back(layout, pairs):
    """Each pair once, in one order, which is that of the tagset table."""
    options, oracle = {"layout": layout, "max_partition_size": 7, "threads": 1}, Oracle()
    tags, keys = [tags for tags, _ in pairs], [key for _, key in pairs]
    oracle.add_sets(tags, keys)
    oracle.consolidate()
    with index_of(tags, keys, **options) as tm:
        stored, table = list(tm), tm.to_arrow()
        assert dict(stored) == dict(oracle)
        assert len(stored) == len(oracle)
        table.validate(full=True)
        assert table.schema == SCHEMA
        found = [(row["tags"], row["key"]) for row in table.to_pylist()]
        assert [(frozenset(some), key) for some, key in found] == [(some, key) for some, keys in stored for key in keys]
        assert all(len(set(some)) == len(some) for some, _ in found)
        assert tm.explain(tag for some in tags for tag in some) == stored
    assert index_of(table["tags"], table["key"], **options).to_arrow() == table


@pytest.mark.slow
def test_iteration_is_over_what_was_stored_as_it_began(layout):
    tm, oracle = loaded([*PAIRS, *(([f"tag{i}"], i) for i in range(20_000))], layout=layout)
    begun, not_yet_begun = iter(tm), iter(tm)
    found = [next(begun)]
    tm.remove_sets([tags for tags, _ in PAIRS], [key for _, key in PAIRS])
    tm.consolidate()
    assert dict([*found, *begun]) == dict(not_yet_begun) == dict(oracle)
    begun = iter(tm)
    tm.close()
    assert len(list(begun)) == 20_000


def test_membership_compares_tags_where_matching_does_not():
    """With `exact=False`, a set that has other tags matches, as its signature has the same bits."""
    tags = [f"tag{i}" for i in range(2_000)]
    stored, other = tags[:1_000], tags[1_000:]
    tm, _ = loaded([(stored, 1), ([*other, "more"], 2)], layout="balanced", exact=False)
    assert (frozenset(stored), (1,)) in tm.explain(other)
    assert other not in tm
    assert stored in tm


@pytest.mark.slow
@pytest.mark.parametrize("keys", [1, 5_000])
def test_batches_are_small(keys):
    """Also if rows are many times as large as the stored set: one with many keys and long tags."""
    tm, _ = loaded([(["x" * 20_000, "y" * 20_000], key) for key in range(keys)] + [(["z"], 2)])
    sizes = [chunk.nbytes for chunk in tm.to_arrow()["tags"].chunks]
    assert sum(sizes) > keys * 40_000
    assert max(sizes) < 1 << 25
    assert len(sizes) < 2 + sum(sizes) / (1 << 22)


def test_tags_that_one_array_cannot_hold(monkeypatch):
    """Those of one set alone; an array of 2 GiB stands aside."""
    tm, _ = loaded([(["a"], 1)])
    too_large = Mock(cast=Mock(side_effect=pa.ArrowInvalid("input array too large")))
    monkeypatch.setattr(contents, "_tags", lambda *_: too_large)
    with pytest.raises(ResultTooLargeError, match=r"stored set 0 has tags of 2\*\*31 bytes or more"):
        tm.to_arrow()


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_missing_may_be_an_error(tmp_path, durability):
    """Staged changes count, in order, from any program; and nothing is staged."""
    with index_of([["a"], ["a", "b"]], [1, 2], path=tmp_path, device="cpu", durability="os") as tm:
        tm.add_set(["c"], 3, where="x < 1")
    with TagMatch(tmp_path, device="cpu", durability=durability) as tm:
        for tags, key, where in [(["b"], 2, None), (["c"], 3, None), (["c"], 3, "x < 2"), (["d"], 4, "x = 1")]:
            with pytest.raises(NotStoredError, match=f"key {key} is not stored with the set .*{tags[0]}"):
                tm.remove_set(tags, key, where=where, missing="error")
        with pytest.raises(NotStoredError, match=r"key 1 is not stored with the set \['a', 'z'\], nor are 1 more"):
            tm.remove_sets([["a"], ["a", "z"], ["a"]], [1, 1, 1], missing="error")
        assert tm.stats()["staged"] == 1
        assert tm.remove_set(["c"], 3, where="x < 1", missing="error") == 1
        with pytest.raises(NotStoredError, match=r"key 3 is not stored with the set \['c'\] where x < 1:"):
            tm.remove_set(["c"], 3, where="x < 1", missing="error")
        table = pa.table({"tags": [["b", "a"], ["a"]], "key": [2, 1]})
        assert tm.remove_subscriptions(table, missing="error") == 2
        assert tm.consolidate() == (1, 0, 3, 0)
        with pytest.raises(InvalidValueError, match="missing must be"):
            tm.remove_set(["a"], 1, missing="err")


#: HTML's characters, and others
TAGS = st.text(st.sampled_from("<>&\"'/ab é"), min_size=1, max_size=6).filter(lambda tag: tag == tag.strip())


class Cells:
    """Texts of a table's cells, row by row, of the tags among them, and which elements there are."""

    def __init__(self, shown: Any) -> None:
        html = ElementTree.fromstring(f"<html>{shown._repr_html_().replace('<br>', '<br/>')}</html>")
        rows = list(html.iter("tr"))
        self.rows = [["".join(cell.itertext()) for cell in row if cell.tag in ("td", "th")] for row in rows]
        self.codes = [["".join(code.itertext()) for code in row.iter("code")] for row in rows]
        self.elements = {element.tag for element in html.iter()} - {"html"}
        self.text = "".join(html.itertext())


@given(st.lists(st.frozensets(TAGS, max_size=3), max_size=5, unique=True))
def test_explain_shows_every_tag_as_it_is(sets: list[frozenset[str]]) -> None:
    with index_of([list(tags) for tags in sets], range(len(sets)), device="cpu") as tm:
        found = tm.explain(frozenset().union(*sets))
    assert isinstance(found, list)
    read = Cells(found)
    assert read.elements <= {"table", "caption", "thead", "tbody", "tr", "td", "th", "code", "i"}
    shown = {frozenset(codes): row[1] for codes, row in zip(read.codes[1:], read.rows[1:], strict=True)}
    assert shown == {tags: str(key) for key, tags in enumerate(sets)}


def test_explain_shows_conditions_and_their_way() -> None:
    with index_of([["cat"]] * 2, [1, 2], where=[None, 'price < 5 and name = "<b>"'], device="cpu") as tm:
        found = tm.explain(["cat"], {"price": 1, "name": "<b>"})
    read = Cells(found)
    assert read.rows[0] == ["tags", "conditions", "keys"]
    assert sorted(read.rows[1:]) == [["cat", "", "1"], ["cat", 'name = "<b>" (by trie)price < 5 (by trie)', "2"]]


def test_what_is_left_out_is_counted() -> None:
    sets, keys = MOST_ROWS + 3, MOST_KEYS + 1_002
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[str(i)] for i in range(sets)], range(sets))
        tm.add_sets([["many"]] * keys, range(keys))
        tm.consolidate()
        read = Cells(tm.explain(map(str, range(sets))))
        assert len(read.rows) == 1 + MOST_ROWS
        assert read.text.rstrip().endswith("and 3 more")
        (_, (_, shown)) = Cells(tm.explain(["many"])).rows
    assert shown == ", ".join(map(str, range(MOST_KEYS))) + " and 1,002 more"


def test_stats_are_a_dict_and_all_shown() -> None:
    with index_of([["a"], ["b"]], [1, 2], device="cpu") as tm:
        stats = tm.stats()
    assert json.loads(json.dumps(stats))["sets"] == 2
    read = Cells(stats)
    named = {row[0] for row in read.rows}
    assert named >= stats.keys() | stats["stages"].keys() | stats["stages"]["merge"]["wait"].keys()
    assert ["sets", "2"] in read.rows


def test_an_index_shows_what_it_holds(tmp_path: Any) -> None:
    path = tmp_path / "a<b.index"
    with index_of(pa.array([["a"], ["b"]]), ["x", "y"], path=path, device="cpu", threads=1, key_type="string") as tm:
        tm.add_set(["c"], "z", where="n < 1")
        read = Cells(tm)
        rows = {"sets": "2", "staged": "1", "with_conditions": "0", "path": str(path), "matched on": "cpu; 1 thread"}
        assert dict(read.rows).items() >= rows.items()
        tm.consolidate()
        assert ["with_conditions", "1"] in Cells(tm).rows
    assert tm._repr_html_() is None


# -- keys that are strings ---------------------------------------------------------------------------------------------

NAMED = [(["a"], "alice"), (["a", "b"], "bob"), (["a", "b"], "alice"), ([], "everyone")]


@pytest.mark.parametrize(("key_type", "pairs"), [("string", strategies.named_pairs), ("integer", strategies.pairs)])
@given(data=st.data(), layout=strategies.layouts)
def test_files_depend_on_what_is_stored_alone(key_type, pairs, data, layout, tmp_path_factory):
    """After any other additions and removals, in any steps."""
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
    tm, oracle = loaded(NAMED, path=path, key_type="string")
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
        (["alice", "bob", "everyone", "no one"], "key names, row 3: no set has the key"),
    ],
)
def test_check(tmp_path, names, told):
    tm, _ = loaded(NAMED, key_type="string")
    tm.check()
    segment = tm.snapshot.only
    damaged = replace(segment, keys=replace(segment.keys, names=strings_of(names)))
    Repository.at(tmp_path / "index").save(Snapshot((damaged,)))
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
def test_times_of_what_is_deleted_are_no_column():
    with index_of([["a"], ["b"]], [1, 2], expires=[timedelta(days=1), None], device="cpu") as tm:
        assert "expires" in tm.to_arrow().column_names
        tm.remove_set(["a"], 1)
        tm.consolidate()
        assert tm.stats()["deleted"] == 1
        assert tm.to_arrow().to_pylist() == [{"tags": ["b"], "key": 2}]


@pytest.mark.usefixtures("segments_stay")
def test_keys_of_two_segments():
    """Each segment numbers its own; one that both have comes once, where that is asked."""
    with TagMatch(key_type="string", device="cpu") as tm:
        for sets, keys in (([["a"], ["c"], ["d"]], ["ana", "cy", "dee"]), ([["a", "b"], ["b"]], ["ana", "bo"])):
            tm.add_sets(sets, keys)
            tm.consolidate()
        assert tm.stats()["segments"] == 2
        assert tm.match_many([["a", "b", "c"]], unique=True).to_pylist() == [["ana", "bo", "cy"]]
        for asked in ([["a", "b", "c"]], pa.array([["a", "b", "c"]], pa.list_(pa.dictionary(pa.int8(), pa.string())))):
            assert sorted(tm.match_many(asked)[0].as_py()) == ["ana", "ana", "bo", "cy"]
