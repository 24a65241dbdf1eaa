"""Sets with constraints and messages that Hypothesis draws, of few values that are easily confused, and their tests."""

import math
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Not, Tags, Test, Tree, evaluate
from support.agreement import index_of
from support.conditions import Message as ConditionMessage
from support.conditions import in_tables
from support.expressions import text_of
from support.filters import any_test
from support.segments import all_in
from support.simulator import SIMULATED

from tagmatch import TagMatch
from tagmatch.model.input.values import packed
from tagmatch.pipeline.filters import trie
from tagmatch.pipeline.filters.index import Path

NAMES = ["p", "q", "r"]
NUMBERS = [
    0, 1, -1, 2, 3, 7, 2**53, 2**53 + 1, 2.0**53, 2**63 - 1, -(2**63), 0.5, -0.0, 1.0, 1.5, math.inf, -math.inf, 1e-300,
]  # fmt: skip
TEXTS = [
    "", "a", "ab", "abc", "abd", "b", "ba", "bab", "é", "e", "\U0010ffff", "a\U0010ffff", "Rome", "home", "xab", "xaz",
]  # fmt: skip
VALUES = [*NUMBERS, *TEXTS, math.nan, True, False]
TAGS = ["t1", "t2", "t3"]
COMPARISONS = ["<", "<=", ">", ">=", "=", "!="]
PATTERNS = ["prefix", "suffix", "contains"]

_leaves = any_test(*map(st.sampled_from, (NAMES, NUMBERS, TEXTS)))
#: A test, perhaps negated, or a tag that must not be there
PARTS = _leaves | _leaves | _leaves.map(Not) | st.sampled_from(TAGS).map(lambda tag: Not(Tags((tag,))))
FILTERS = st.tuples(st.lists(st.sampled_from(TAGS), max_size=2, unique=True), st.lists(PARTS, max_size=4))
MESSAGES = st.tuples(
    st.lists(st.sampled_from(TAGS), max_size=3, unique=True),
    st.dictionaries(st.sampled_from([*NAMES, "s"]), st.lists(st.sampled_from(VALUES), max_size=3)),
)


def expression_of(parts: list[Tree]) -> str | None:
    return " and ".join(text_of(part, random.Random(0)) for part in parts) or None


def expected_keys(filters: list[Any], tags: list[str], values: Mapping[str, Any]) -> list[int]:
    return [
        key
        for key, (wanted, parts) in enumerate(filters)
        if set(wanted) <= set(tags) and all(evaluate(part, tags, values) for part in parts)
    ]


# -- tests, which take a fixture `device` of the importing module ------------------------------------------------------

Message = tuple[list[str], Mapping[str, Any]]

#: Whatever sets ask for, they are all in the trie, or all in lines
either = pytest.mark.parametrize("path", get_args(Path))


def with_sets(wheres: Sequence[tuple[list[str], str | None]], path: Path, device: str, **options: Any) -> TagMatch[int]:
    """An index of these sets, whose keys are their numbers."""
    sets, expressions = (list(each) for each in zip(*wheres, strict=True))
    with all_in(path):
        tm = index_of(sets, range(len(sets)), where=expressions, **{"device": device, "threads": 2} | options)
    stats = tm.stats()
    assert stats["device"] == device
    assert stats["with_conditions"][path] == sum(stats["with_conditions"].values())
    return tm


def answers(tm: TagMatch[int], messages: Sequence[Message]) -> list[list[int]]:
    return [sorted(keys) for keys in tm.match_many(table_of(messages)).to_pylist()]


def table_of(messages: Sequence[Message], kind: pa.DataType | None = None) -> pa.Table:
    """Messages with packed attributes, as clients and gateways send them."""
    tags = pa.array([tags for tags, _ in messages], pa.list_(kind or pa.string()))
    return pa.table({"tags": tags, "attributes": pa.array([packed(values) for _, values in messages], pa.binary())})


def all_by(tm: TagMatch[int], device: str) -> bool:
    """Whether the device has matched all packets so far."""
    counts = tm.stats()["matched_by"]
    return device == "cpu" or counts["cpu"] == 0 < counts["cuda"]


@either
@given(filters=st.lists(FILTERS, min_size=1, max_size=30), messages=st.lists(MESSAGES, min_size=1, max_size=8))
def test_any_filters(device: str, layout: Any, path: Path, filters: list[Any], messages: list[Any]) -> None:
    wheres = [(tags, expression_of(parts)) for tags, parts in filters]
    wanted = [expected_keys(filters, tags, values) for tags, values in messages]
    with with_sets(wheres, path, device, layout=layout) as tm:
        assert answers(tm, messages) == wanted
        assert tm.match_many(table_of(messages), unique=True).to_pylist() == wanted
        dictionaries = table_of(messages, pa.dictionary(pa.int32(), pa.string()))
        assert [sorted(keys) for keys in tm.match_many(dictionaries).to_pylist()] == wanted
        for numbers, table in in_tables([ConditionMessage(tags, dict(values)) for tags, values in messages]):
            # The rows begin within a byte of the columns' bits
            found = tm.match_many(pa.concat_tables([table, table]).combine_chunks()[1:]).to_pylist()
            assert [sorted(keys) for keys in found] == [wanted[i] for i in (numbers + numbers)[1:]]
        for (tags, values), keys in list(zip(messages, wanted, strict=True))[: 2 if SIMULATED else None]:
            assert sorted(tm.match(tags, attributes=values)) == keys
            assert tm.match_unique(tags, attributes=values) == set(keys)
            assert sorted(key for _, found in tm.explain(tags, attributes=values) for key in found) == keys
        assert all_by(tm, device)


@either
def test_every_operator_and_value(device: str, path: Path) -> None:
    """All at once in one index, constants and patterns among all others; messages are tags, and in columns."""
    known = NUMBERS[5:15] if SIMULATED else [*NUMBERS, *TEXTS]
    trees = [Test("p", comparison, (value,)) for value in known for comparison in COMPARISONS]
    trees += [Test("p", pattern, (text,)) for text in (TEXTS[:1] if SIMULATED else TEXTS) for pattern in PATTERNS]
    values = known if SIMULATED else VALUES
    expected = [[key for key, tree in enumerate(trees) if evaluate(tree, (), {"p": value})] for value in values]
    with with_sets([([], expression_of([tree])) for tree in trees], path, device) as tm:
        assert answers(tm, [([], {"p": value}) for value in values]) == expected
        both = answers(tm, [([], {"p": [value, other]}) for value, other in pairwise(values)])
        assert both == [sorted({*one, *other}) for one, other in pairwise(expected)]
        for numbers, table in in_tables([ConditionMessage([], {"p": value}) for value in values]):
            assert tm.match_many(table, unique=True).to_pylist() == [expected[i] for i in numbers]
        assert all_by(tm, device)


def ranges_of(rng: random.Random, names: str) -> tuple[list[str], list[Tree]]:
    ranges = []
    for name in rng.choices(names, k=rng.randint(1, 4)):
        low = rng.randrange(1000)
        ranges.append(Test(name, "between", (low, low + rng.choice([0, 3, 50, 400, 1000, 1000, 1000]))))
    return rng.sample(TAGS, rng.choice([0, 0, 0, 1])), ranges


@pytest.mark.slow
@either
def test_segments_and_deletions(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, device: str, layout: Any, path: Path
) -> None:
    """So many that the trie has inner nodes and leaves, values have many cells, and lines several blocks."""
    monkeypatch.setattr(trie, "_LEAF", 4)
    count = 60 if SIMULATED else 1_000
    filters = [ranges_of(rng, "abcdefgh"[: 4 if SIMULATED else 8]) for _ in range(count)]
    removed = set(rng.sample(range(count), count // 20))
    messages: list[Message] = [
        (rng.sample(TAGS, rng.randint(0, 2)), {name: rng.randrange(1100) for name in names})
        for names in (rng.sample("abcdefgh", rng.randint(0, 6)) for _ in range(8 if SIMULATED else 100))
    ]
    with all_in(path), TagMatch(layout=layout, device=device, threads=2) as tm:
        for key, (tags, ranges) in enumerate(filters):
            tm.add_set(tags, key, where=expression_of(ranges))
            if key == count * 5 // 6:
                tm.consolidate()
        for key in removed:
            tm.remove_set(filters[key][0], key, where=expression_of(filters[key][1]))
        tm.consolidate()
        found = answers(tm, messages)
        assert all_by(tm, device)
    assert found == [[key for key in expected_keys(filters, *message) if key not in removed] for message in messages]
    assert sum(map(len, found)) > 0
