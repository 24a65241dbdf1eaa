"""What notebooks show, read back from its HTML."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from support.agreement import index_of

from tagmatch import TagMatch
from tagmatch.notebook import MOST_KEYS, MOST_ROWS

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
    with TagMatch(device="cpu") as tm:
        tm.add_set(["cat"], 1)
        tm.add_set(["cat"], 2, where='price < 5 and name = "<b>"')
        tm.consolidate()
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
        rows = dict(row for row in read.rows)
        assert rows["sets"] == "2"
        assert rows["staged"] == "1"
        assert rows["with_conditions"] == "0"
        assert rows["path"] == str(path)
        assert rows["matched on"] == "cpu; 1 thread"
        tm.consolidate()
        assert ["with_conditions", "1"] in Cells(tm).rows
    assert tm._repr_html_() is None
