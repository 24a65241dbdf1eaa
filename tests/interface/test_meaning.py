"""Conditions are compared by what they mean: however one is written, it is not added again, and is removed."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import And, AtLeast, Not, Or, Tags, Test, Tree
from support import filters
from support.expressions import text_of

from tagmatch import TagMatch, casefold, words

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}
ATTRIBUTES = {"title": "string", "posted": "timestamp", "price": "decimal(10, 2)"}

#: Each line says one thing in several ways
SAME = [
    ["x between 1 and 1", "x = 1.0", 'x = decimal "1.00"', "x in {1}", "x = 1 or x = 1 and y = 2"],
    ["x = 1 or x = 2", "x in {2, 1}", "at least 1 of {x = 2, x = 1}", "not not (x = 2 or x = 1)"],
    ["x between 1 and 7", "x between 1 and 5 or x between 3 and 7"],
    ["x >= 1 and x <= 5", "x <= 5 and (x >= 1 or x > 2)", "at least 2 of {x <= 5, x >= 1}"],
    ["not (x = 1 or y = 2)", "not y = 2 and not x = 1", "not at least 1 of {x = 1, y = 2}"],
    ['any of tags {"a", "b"}', 'tags {"b"} or tags {"a"}', 'at least 1 of tags {"a", "b"}'],
    ['at least 2 of {x = 1, y = 1, tags {"a"}}', 'at least 2 of {tags {"a"}, y in {1.0}, x between 1 and 1}'],
    ['ip in cidr "10.0.0.0/8"', 'ip between ip "10.0.0.0" and ip "10.255.255.255"'],
    ['day >= date "2026-11-28"', 'day >= timestamp "2026-11-28T01:00:00+01:00"'],
    ['v = version "1.0"', 'v = version "1.0.0+build"'],
    ['name prefix "ab"', 'name like "ab%"', 'name prefix "ab" or name prefix "abc"'],
    # As they are declared
    ['title phrase "Red  BIKE"', 'title phrase "red bike"', 'not not title phrase "RED Bike"'],
    ['posted >= "2026-11-28"', 'posted >= date "2026-11-28"', 'posted >= "2026-11-28T00:00:00Z"'],
    ['price = "1.50"', "price = 1.5", 'price = decimal "1.5"'],
]


@pytest.fixture
def tm(reached: Any, path: Path) -> Any:
    return reached(TagMatch(path, **OPTIONS, attributes=ATTRIBUTES, analyzers={"title": casefold(words())}))


@pytest.mark.parametrize("texts", SAME, ids=[each[0] for each in SAME])
def test_what_means_the_same_is_there_and_is_found(tm: Any, texts: list[str]) -> None:
    tm.add_set(["t"], 1, where=texts[0])
    tm.put(2, ["t"], where=texts[0])
    (stored, _, _, _) = tm.consolidate()
    for text in texts:
        tm.add_set(["t"], 1, where=text)
        tm.put(2, ["t"], where=text)
        assert tm.consolidate() == (0, stored, 0, 0)
        assert tm.get(2).where == text
    for text in texts:
        tm.remove_set(["t"], 1, where=text, missing="error")
        tm.add_set(["t"], 1, where=text)
    assert tm.remove_set(["t"], 1, where=texts[-1], missing="error") * 2 == stored
    assert tm.consolidate()[2] >= stored // 2
    assert (tm.get(1), tm.get(2).where) == (None, texts[-1])


def test_alternatives_that_a_sets_own_tags_make_equal_are_one(tm: Any) -> None:
    text = 'tags {"x"} or tags {"y"} or a = 1'
    sets, keys = [["x", "y"], ["z"], ["x"], ["y", "x", "z"]], [1, 2, 3, 4]
    different = 2 + 3 + 3 + 2
    tm.add_sets(sets, keys, where=[text] * 4)
    assert tm.consolidate() == (different, 0, 0, 0)
    for tags, key in zip(sets, keys, strict=True):
        tm.add_set(tags, key, where=text)
    assert tm.consolidate() == (0, different, 0, 0)
    assert sorted(tm.match_unique(["x", "y"])) == [1, 3]
    tm.remove_set(sets[0], 1, where=text, missing="error")
    tm.remove_sets(sets[1:], keys[1:], where=[text] * 3, missing="error")
    assert tm.consolidate() == (0, 0, different, 0)


def another(tree: Tree, rng: random.Random) -> Tree:
    """A tree that means the same."""
    match tree:
        case Not(part):
            return Not(another(part, rng))
        case And(parts) | Or(parts):
            is_all = isinstance(tree, And)
            own = [another(part, rng) for part in parts]
            own += rng.sample(own, rng.randrange(2))
            rng.shuffle(own)
            some = tuple(own)
            every: list[Tree] = [AtLeast(len(some) if is_all else 1, some), type(tree)(some)]
            negated = tuple(map(Not, some))
            every.append(Not(Or(negated) if is_all else And(negated)))
            return rng.choice(every)
        case Tags(tags):
            several: list[Tree] = [And(tuple(Tags((tag,)) for tag in tags)), AtLeast(1, (tree,)), Tags(tags[::-1])]
            return rng.choice(several[len(tags) < 2 :])
        case Test(attribute, "in", operands):
            equal = tuple(
                Test(attribute, "in" if hasattr(each, "prefixlen") else "=", (_same(each, rng),)) for each in operands
            )
            return rng.choice([Or(equal), AtLeast(1, equal), Test(attribute, "in", operands[::-1])])
        case Test(attribute, "=", (operand,)):
            return Test(attribute, rng.choice(["=", "in"]), (_same(operand, rng),))
        case Test(attribute, name, operands):
            return Not(Not(Test(attribute, name, tuple(_same(each, rng) for each in operands))))
    return tree


def _same(value: Any, rng: random.Random) -> Any:
    if type(value) is int:
        return rng.choice([value, Decimal(value), *([float(value)] if int(float(value)) == value else [])])
    if type(value) is date:
        return rng.choice([value, datetime(value.year, value.month, value.day, tzinfo=UTC)])
    return value


@given(tree=filters.trees, spelling=filters.spellings, reopens=st.booleans())
def test_however_it_is_written(tree: Tree, spelling: random.Random, reopens: bool, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("meaning") / "index"
    first = text_of(tree, spelling)
    second = text_of(another(another(tree, spelling), spelling), spelling)
    with TagMatch(path, **OPTIONS) as tm:
        tm.add_set(["t"], 1, where=first)
        stored = tm.consolidate()[0]
        tm.add_set(["t"], 1, where=second)
        assert reopens or tm.consolidate() == (0, stored, 0, 0), second
    with TagMatch(path, **OPTIONS) as tm:
        assert not reopens or tm.consolidate() == (0, stored, 0, 0), second
        tm.remove_set(["t"], 1, where=second, missing="error")
        assert tm.consolidate() == (0, 0, stored, 0)
        assert len(tm) == 0
