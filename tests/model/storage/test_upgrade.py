"""Indexes whose conditions older versions stored: `upgrade` gives these the form of today, and changes find them."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import filters
from support.agreement import assert_agree, assert_records
from support.command import done
from support.conditions import Expression, Message
from support.expiring import set_clock
from support.index_files import contents_of
from support.old_formats import CONTENTS, DATA, SETS

from tagmatch import Circle, IndexLockedError, TagMatch, upgrade
from tagmatch.changing import Changing
from tagmatch.model.change_counts import ADD
from tagmatch.model.columns import rows_of_tags
from tagmatch.model.where.language import rows_of

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}
WHERE = ["x = 1", "x = 2", 'x = 5 and y != "a"', 'x = 6 and y != "a"', "x > 1 and not x > 9"]


def as_before(rows: Any) -> Any:
    """What older versions made of the alternatives of an expression: each is stored for itself."""
    return sorted(rows, key=lambda row: sorted(str(term) for term in row))


def add_as_before(tm: TagMatch[Any], tags: list[str], key: int, where: str) -> None:
    with patch("tagmatch.model.where.alternatives.folded", as_before):
        rows = [[*tags, *row.tags, *(each.tag for each in row.constraints)] for row in rows_of(where)]
    tm._engine._staging.extend([rows_of_tags(rows)], np.full(len(rows), key, np.uint64), removed=ADD)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    with TagMatch(tmp_path / "index", **OPTIONS) as tm:
        for where in WHERE:
            tm.add_set(["cat"], 7, where=where)
        tm.consolidate()
    return tmp_path / "index"


@pytest.mark.parametrize("name", CONTENTS)
def test_an_index_of_each_format_has_records(tmp_path: Path, name: str, layout: str) -> None:
    index, oracle = Path(shutil.copytree(DATA / f"{name}-{layout}.index", tmp_path / "index")), Oracle()
    key_type, fill = CONTENTS[name]
    fill(oracle)
    oracle.consolidate()
    assert upgrade(index).sets == len(oracle)
    before = contents_of(index)
    assert upgrade(index).rewritten == 0
    assert contents_of(index) == before
    with TagMatch.open(index, **OPTIONS, data={"rank": "int64"}) as tm:
        assert_records(tm, oracle)
        key = next(iter(oracle.records()))
        new = 5 if key_type == "integer" else "five"
        for database in (tm, oracle):
            database.put(new, ["put"], data={"rank": 1})
            database.put(key, ["put"])
            database.delete(next(reversed(oracle.records())))
            database.consolidate()
        assert_records(tm, oracle)
        assert_agree(tm, oracle, [["put"], SETS[9]])


def test_what_it_says_and_does(index: Path) -> None:
    became = upgrade(index)
    assert (became.number, became.sets_before, became.sets, became.rewritten) == (2, 5, 3, 1)
    with TagMatch.open(index, **OPTIONS) as tm:
        assert sorted(tm.match(["cat"], {"x": 5, "y": "b"})) == [7, 7]
        tm.add_set(["cat"], 7, where='y != "a" and (x = 6 or x = 5)')
        tm.remove_set(["cat"], 7, where="not (not x = 1 and not x = 2)", missing="error")
        assert tm.consolidate() == (0, 1, 1, 0)
    assert upgrade(index) == type(became)(3, 2, 2, 0)


def test_the_command_says_so(index: Path) -> None:
    size = f"{index}: snapshot 2, 3 sets; before:"
    assert done("upgrade", index) == f"{size} 5 sets; the conditions of 1 key are stored in another form\n"
    assert done("upgrade", index) == f"{size} 3 sets; no condition needs a change\n"


def test_sets_with_areas_and_times_that_are_not_the_same_stay_apart(tmp_path: Path, monkeypatch: Any) -> None:
    index, clock = tmp_path / "index", set_clock(monkeypatch)
    places = [Circle(9, 45, 10), Circle(9, 45, 20)]
    with TagMatch(index, **OPTIONS) as tm:
        for number, where in enumerate(["x = 1", "x = 2", "x = 3"]):
            tm.add_set(["cat"], 7, where=where, area=places[number // 2])
            tm.add_set(["cat"], 8, where=where, expires=clock.after([5, 9, 9][number]))
            tm.add_set([["cat"], ["dog"]][number % 2], 9, where=where)
        tm.add_set(["cat"], 8, where="x in {2, 3}")  # for ever
        tm.consolidate()
    assert upgrade(index).rewritten == 2
    with TagMatch.open(index, **OPTIONS) as tm:
        texts = {key: sorted(str(each.where) for each in tm.get(key).alternatives) for key in (7, 8, 9)}
    assert texts == {
        7: ["x = 3", "x in {1, 2}"],
        8: ["x = 1", "x = 2", "x = 3", "x in {2, 3}"],
        9: ["x = 2", "x in {1, 3}"],
    }


def test_one_who_writes_is_waited_for(index: Path) -> None:
    with TagMatch(index, **OPTIONS) as tm:
        tm.add_set(["dog"], 8)
        with pytest.raises(IndexLockedError, match="has changes staged"):
            upgrade(index)
    became = upgrade(index)  # with the change that was left
    assert (became.sets_before, became.sets) == (6, 4)


def test_what_is_interrupted_is_gone_on_with(index: Path) -> None:
    for method in ("_saved", "consolidate"):
        with patch.object(Changing, method, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            upgrade(index)
        with TagMatch.open(index, **OPTIONS) as tm:
            assert (len(tm), tm.stats()["staged"]) == (5, 6)
    assert upgrade(index).sets == 3
    assert upgrade(index).rewritten == 0


TREES = st.lists(filters.trees, min_size=1, max_size=3)


@given(trees=TREES, data=st.data(), spelling=filters.spellings)
def test_messages_get_the_same_keys_and_changes_find_what_was_stored(
    trees: Any, data: Any, spelling: Any, tmp_path_factory: Any
) -> None:
    index = tmp_path_factory.mktemp("upgraded") / "index"
    expressions = [Expression.of(tree, spelling) for tree in trees]
    messages = [Message(*data.draw(filters.messages(tree))) for tree in trees]
    with TagMatch(index, **OPTIONS) as tm:
        for key, where in enumerate(expressions):
            add_as_before(tm, ["t"], key, where)
        tm.consolidate()
        answers = [tm.match_unique(["t", *message.tags], message.attributes) for message in messages]
    upgrade(index)
    with TagMatch.open(index, **OPTIONS) as tm:
        assert [tm.match_unique(["t", *message.tags], message.attributes) for message in messages] == answers
        for key, where in enumerate(expressions):
            tm.remove_set(["t"], key, where=where)
            assert tm.consolidate()[3] == 0
            record = tm.get(key)
            # The rest says the same as others do, with their own tags
            assert record is None or all(each.tags > {"t"} for each in record.alternatives)
