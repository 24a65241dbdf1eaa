"""One message that is asked alone: values of every kind, long answers, segments, and what is counted of it."""

import math
from collections import OrderedDict
from typing import Any, get_args

import pyarrow as pa
import pytest
from oracle import Oracle
from support.conditions import Expression
from support.expressions import text_of
from support.segments import all_in
from support.trees import And, Not, Test, Tree, evaluate

from tagmatch import TagMatch
from tagmatch.model.kernels import packed_attributes
from tagmatch.pipeline import matcher
from tagmatch.pipeline.filters.index import Path


def test_messages_that_come_by_many_nodes_or_to_many_candidates() -> None:
    """Beside some that do not; also with more values than a message has as a rule."""
    filters = [{"p": -i} for i in range(400)] + [{f"a{i}": 0, f"b{j}": j} for i in range(20) for j in range(20)]
    few = {"a3": 1, "b4": 5, "b6": 6, "unknown": 1}
    many = {**{f"a{i}": 1 for i in range(20)}, **{f"b{j}": 10 for j in range(20)}}
    messages = [few, {"p": 1}, many, {"p": -200}, few | {"p": -398}, many | {"p": 1}]
    with all_in("trie"), TagMatch(device="cpu", threads=1) as tm:
        for key, asked in enumerate(filters):
            tm.add_set([], key, where=" and ".join(f"{name} > {bound}" for name, bound in asked.items()))
        tm.consolidate()
        for message in messages:
            wanted = [
                key
                for key, asked in enumerate(filters)
                if all(message.get(name, bound) > bound for name, bound in asked.items())
            ]
            assert wanted
            assert sorted(tm.match([], message)) == wanted
            assert tm.match_unique([], OrderedDict(message)) == set(wanted)


LONG = "ab" * 40_000
NUMBERS = (0, 5, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.5, -1.5, 1e300, math.inf, -math.inf)
TEXTS = ("", "a", "ab", "abc", "é", "\U0010ffff", "nul\0", LONG)
VALUES: list[Any] = [
    *NUMBERS, *TEXTS, True, False, 0.0, -0.0, 5.0, float(2**53), 2.0**63, math.nan, -math.nan, 2**53 - 1, 2**62,
    1 - 2**63, f"{LONG}c", f"c{LONG}", LONG[1:], "b", "nul", None, [], [None], [5, "a", True], (0.5, math.nan), {5},
    frozenset(["ab"]), [2**53, 2**53 + 1, 2.0**53], [None, -0.0], list(range(-50, 50)),
]  # fmt: skip
TREES: list[Tree] = [
    *(Test("p", operator, (number,)) for number in NUMBERS for operator in ("=", "!=", "<", "<=", ">", ">=")),
    *(Test("p", operator, (text,)) for text in TEXTS for operator in ("=", "<", ">=", "prefix", "suffix", "contains")),
    *(Test("p", "=", (flag,)) for flag in (True, False)),
    *(Not(Test("p", operator, (0,))) for operator in ("=", "<", ">")), Test("p", "in", (5, "a", 2**53 + 1)),
    Test("p", "not in", (5, "a", 2**53 + 1)), Test("p", "between", (2**53, 2**53 + 1)), Test("p", "exists", ()),
    Not(Test("p", "exists", ())),
]  # fmt: skip


@pytest.fixture
def is_alone(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each single message since, whether one kernel answered it."""
    seen: list[bool] = []

    def alone(*arguments: Any) -> Any:
        found = matcher.alone(*arguments)
        seen.append(found is not None)
        return found

    monkeypatch.setattr("tagmatch.pipeline.service.alone", alone)
    return seen


def as_column(value: Any) -> pa.Table | None:
    """The message as a table, if Arrow has a type for its values."""
    if isinstance(value, set | frozenset):
        value = list(value)
    try:
        return pa.table({"p": pa.array([value])}) if value not in (None, [], [None]) else pa.table({"tags": [[""]]})
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


@pytest.mark.slow
@pytest.mark.parametrize("path", get_args(Path))
@pytest.mark.parametrize("is_read", [True, False], ids=["packed", "not packed"])
def test_a_value_of_each_kind(path: Path, is_read: bool, is_alone: list[bool], rng: Any, monkeypatch: Any) -> None:
    """As in a table, and as the oracle says; and so they are where Python's bytes are not as they are read."""
    monkeypatch.setattr(packed_attributes, "_IS_READ", is_read)
    with all_in(path), TagMatch(device="cpu", threads=1) as tm:
        tm.add_sets([[]] * len(TREES), range(len(TREES)), where=[text_of(tree, rng) for tree in TREES])
        tm.consolidate()
        for value in VALUES:
            expected = [key for key, tree in enumerate(TREES) if evaluate(tree, (), {"p": value})]
            assert sorted(tm.match([], {"p": value, "other": LONG})) == expected
            assert tm.match_unique([], {"p": value}) == set(expected)
            table = as_column(value)
            if table is not None:
                assert tm.match_many(table, unique=True).to_pylist() == [expected]
        assert is_alone == [is_read] * len(is_alone)
        assert len(is_alone) == 2 * len(VALUES)


def test_which_bytes_are_read() -> None:
    """Version 2 of `marshal`; newer ones write texts and what is there twice in another way."""
    assert packed_attributes.writes_as_read(2)
    assert not any(map(packed_attributes.writes_as_read, (0, 3, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("path", get_args(Path))
@pytest.mark.parametrize("key_type", ["integer", "string"])
def test_long_answers_in_segments(path: Path, key_type: Any, rng: Any) -> None:
    """Thousands of keys, of sets in several segments of which some have no constraints, and of single sets."""
    names = (lambda key: key) if key_type == "integer" else (lambda key: f"é{key}" * (1 + key % 7))
    wheres = [Expression.of(Test("p", "<", (number,)), rng) for number in range(40)]
    tm, oracle = TagMatch[Any](key_type=key_type, device="cpu", threads=1), Oracle()
    with all_in(path), tm:
        for first in (0, 9000, 12_000):
            for database in (tm, oracle):
                keys = range(first, first + 3000)
                where = [wheres[key % 40] if key % 3 else None for key in keys]
                tags = [["a"] if key % 5 == 0 else [] for key in keys]
                database.add_sets(tags, list(map(names, keys)), where=where)
                database.add_sets([["b"]] * 2000, [names(key) for key in range(20_000, 22_000)], where=wheres[0])
                database.consolidate()
        for tags in ([], ["a"], ["a", "b"]):
            for value in (-1, 20, [30, 39], 40, None):
                expected = oracle.match(tags, {"p": value})
                assert sorted(tm.match(tags, {"p": value})) == expected
                assert tm.match_unique(tags, {"p": value}) == set(expected)
        assert len(tm.match(["a", "b"], {"p": -1})) == 3 * 3000 + 2000


@pytest.mark.slow
@pytest.mark.parametrize("path", get_args(Path))
def test_more_patterns_than_attributes(path: Path, is_alone: list[bool], rng: Any) -> None:
    """Of many attributes, of which a message has few; of its text hundreds of patterns are found at once."""
    text = LONG[:2000]
    texts = [text[:size] for size in range(1, 120)] + ["b" * 3, "aba", "c", "xa"]
    operators = ("prefix", "suffix", "contains")
    trees: list[Tree] = [Test(name, operator, (each,)) for name in "pq" for operator in operators for each in texts]
    trees += [And((Not(Test("p", "contains", (each,))), Test("q", "suffix", (each,)))) for each in texts]
    with all_in(path), TagMatch(device="cpu", threads=1) as tm:
        tm.add_sets([[]] * len(trees), range(len(trees)), where=[text_of(tree, rng) for tree in trees])
        tm.consolidate()
        found = 0
        for attributes in (
            {"p": text}, {"q": text}, {"p": text[:119], "q": f"x{text}c"}, {"p": ["a", text, text]},
            {"p": "c", "q": "ab"}, {"p": 7, "q": text}, {"p": None}, {"p": ""}, {},
        ):  # fmt: skip
            expected = [key for key, tree in enumerate(trees) if evaluate(tree, (), attributes)]
            assert sorted(tm.match([], attributes)) == expected
            table = {name: pa.array([value]) for name, value in attributes.items() if value is not None}
            if table:
                assert tm.match_many(pa.table(table), unique=True).to_pylist() == [expected]
            found = max(found, len(expected))
        assert found > 300
        assert all(is_alone)
