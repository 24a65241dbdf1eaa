"""What is stored, given back: iteration, `in`, `to_arrow`, notebooks; and what changes say that they did."""

import json
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import strategies
from support.agreement import index_of, loaded

from tagmatch import InvalidValueError, NotStoredError, ResultTooLargeError, TagMatch, contents
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
    """Also where rows are many times as large as what is stored: one set with many keys and long tags."""
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
    """What is staged counts, in order, whoever has staged it; and nothing is staged."""
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
