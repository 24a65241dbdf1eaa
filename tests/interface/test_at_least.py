"""Sets that ask for some number of their parts, and those whose alternatives are too many to be sets."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import AtLeast, Tags, There, Within, evaluate
from support import filters
from support.areas import PLACES, SHAPES
from support.conditions import Expression, Message, assert_found_one_by_one, in_tables

from tagmatch import FilterError, TagMatch
from tagmatch.model.options import Layout
from tagmatch.model.where.language import rows_of

_TREES = st.lists(st.tuples(st.sets(filters.tags, max_size=2), filters.counting_trees), min_size=1, max_size=6)


def _trees(stored: list[tuple[set[str], Any]]) -> list[Any]:
    return [tree for _, tree in stored]


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes whose values have no type, and are numbers if they are floats."""
    types = {bool, int, float, str, type(None)}
    sound = {name: own for name, own in attributes.items() if {*map(type, _listed(own))} <= types}
    return {name: own for name, own in sound.items() if all(each == each for each in _listed(own))}


def _listed(own: Any) -> list[Any]:
    return [*own] if isinstance(own, list | tuple) else [own]


@given(stored=_TREES, data=st.data())
def test_any_condition(layout: Layout, stored: list[tuple[set[str], Any]], data: st.DataObject) -> None:
    spelling = data.draw(filters.spellings)
    expressions = [Expression.of(tree, spelling) for _, tree in stored]
    messages = [
        Message(sorted(tags), _plain(found)) for tags, found in map(data.draw, map(filters.messages, _trees(stored)))
    ]
    with TagMatch(layout=layout, device="cpu", threads=1) as tm:
        tm.add_sets([own for own, _ in stored], range(len(stored)), where=expressions)
        tm.consolidate()
        expected = assert_found_one_by_one(tm, stored, messages)
        for numbers, table in in_tables(messages):
            found = tm.match_many(table, unique=True).to_pylist()
            assert [set(each) for each in found] == [expected[number] for number in numbers]
        # As iteration gives them, or as they were written
        for key, ((own, _), expression) in enumerate(zip(stored, expressions, strict=True)):
            if key % 2:
                tm.remove_set(own, key, where=expression)
        for row, keys in list(tm):
            for key in keys:
                if key % 2 == 0:
                    tm.remove_set(row, key)
        tm.consolidate()
        assert len(tm) == 0


def test_one_of_many_sets_is_found_once_and_kept(layout: Layout, tmp_path: Path) -> None:
    """Of each set, any two of five tags are enough; sets that are found by several of them are answers once."""
    rng = random.Random(1)
    sets = [sorted(rng.sample(range(40), 5)) for _ in range(300)]
    trees = [AtLeast(2, tuple(Tags((f"t{each}",)) for each in own)) for own in sets]
    with TagMatch(tmp_path / "index", layout=layout, device="cpu") as tm:
        tm.add_sets([[]] * len(sets), range(len(sets)), where=[Expression.of(tree, rng) for tree in trees])
        tm.add_set(["t1"], 1_000)
        tm.consolidate()
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        assert len(tm) == len({*map(tuple, sets)}) + 1
        queries = [[f"t{each}" for each in rng.sample(range(40), 8)] for _ in range(50)]
        found = tm.match_many(queries).to_pylist()
        for query, keys in zip(queries, found, strict=True):
            wanted = [key for key, tree in enumerate(trees) if evaluate(tree, query, {})] + [1_000] * ("t1" in query)
            assert sorted(keys) == sorted(tm.match(query)) == wanted


def test_more_alternatives_than_there_may_be_sets() -> None:
    pairs = " and ".join(f'(tags {{"a{at}"}} or b{at} = 1)' for at in range(12))
    with TagMatch(device="cpu") as tm:
        tm.add_set(["x"], 1, where=pairs)
        tm.add_set([], 2, where=f"not ({pairs})")
        tm.add_set([], 3, where=" or ".join(f"c{at} = {at}" for at in range(1_100)))
        tm.consolidate()
        assert len(tm) == 14
        tags, attributes = ["x", *(f"a{at}" for at in range(0, 12, 2))], {f"b{at}": 1 for at in range(1, 12, 2)}
        assert tm.match(tags, attributes) == [1]
        assert tm.match(tags[:-1], attributes) == [2]
        assert sorted(tm.match(tags, {**attributes, "c1099": 1_099, "c7": 7})) == [1, 3]


_WITH_AREAS = st.recursive(filters.leaves | st.sampled_from(SHAPES).map(Within), filters.counted, max_leaves=12)


@given(stored=st.lists(_WITH_AREAS, min_size=1, max_size=5), data=st.data())
def test_areas_are_parts(layout: Layout, stored: list[Any], data: st.DataObject) -> None:
    """Also among those of `not`, and of messages that are at several places, or nowhere."""
    spelling = data.draw(filters.spellings)
    with TagMatch(layout=layout, device="cpu", threads=1) as tm:
        for key, tree in enumerate(stored):
            tm.add_set([], key, where=filters.text_of(tree, spelling))
        tm.consolidate()
        for tree in stored:
            tags, attributes = data.draw(filters.messages(tree))
            location = data.draw(st.none() | st.sampled_from(PLACES) | st.lists(st.sampled_from(PLACES), max_size=2))
            there = There(location)
            wanted = {key for key, each in enumerate(stored) if evaluate(each, tags, attributes, there)}
            assert tm.match_unique(sorted(tags), attributes, location=location) == wanted
            for key in range(len(stored)):
                assert tm.explain(sorted(tags), attributes, location=location, key=key).matches == (key in wanted)
        for key, tree in enumerate(stored):
            tm.remove_set([], key, where=filters.text_of(tree, spelling), missing="error")
        tm.consolidate()
        assert len(tm) == 0


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("at least 2 of {a = 1, b = 1, within near(5)}",
         [["within near(5)", "a = 1"], ["within near(5)", "b = 1"], ["a = 1", "b = 1"]]),
        ("at least 3 of {a = 1, b = 1, c = 1, within near(5) and d = 1}",
         [["within near(5)", "at least 3 of {a = 1, b = 1, c = 1, d = 1}"], ["a = 1", "b = 1", "c = 1"]]),
        (" and ".join(f"(a{n} = 1 or b{n} = 1)" for n in range(12)) + " and (a = 1 or within near(5))",
         [["within near(5)", *(f"at least 1 of {{a{n} = 1, b{n} = 1}}" for n in range(12))],
          ["a = 1", *(f"at least 1 of {{a{n} = 1, b{n} = 1}}" for n in range(12))]]),
    ],
)  # fmt: skip
def test_areas_are_told_apart(where: str, rows: list[list[str]]) -> None:
    """A set has an area, and its parts are others."""
    found = {frozenset(each.text for each in row.constraints) for row in rows_of(where)}
    assert found == {*map(frozenset, rows)}


@pytest.mark.parametrize(
    "where",
    [
        f"at least 3 of {{{', '.join(f'within box({n}, 0, {n + 1}, 1)' for n in range(30))}}}",
        f"at least 100 of {{{', '.join(f'within box({n}, 0, {n + 1}, 1)' for n in range(101))}}}",
    ],
)
def test_too_many_areas_are_parts(where: str) -> None:
    with TagMatch(device="cpu") as tm, pytest.raises(FilterError, match="has more than 1,024 alternatives"):
        tm.add_set([], 1, where=where)


def test_explained() -> None:
    with TagMatch(device="cpu") as tm:
        tm.add_set([], 1, where='at least 2 of {a = 1, tags {"x"}, not b = 2}')
        tm.consolidate()
        ((row, keys),) = tm.explain(["x"], {"a": 1, "b": 2})
        assert ([*map(str, row)], keys) == (['at least 2 of {a = 1, not b = 2, tags {"x"}}'], (1,))
        assert str(tm.explain([], {"a": 1, "b": 2}, key=1)).endswith(": 1 of 3 hold, not 2")
