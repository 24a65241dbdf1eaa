"""Sets with constraints and messages that Hypothesis draws, of few values that are easily confused."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from support.expressions import text_of
from support.filters import in_order
from support.trees import Not, Tags, Test, Tree, evaluate

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

_numbers, _texts, _names = st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.sampled_from(NAMES)


def _tests(operators: list[str], operands: st.SearchStrategy[tuple[Any, ...]]) -> st.SearchStrategy[Test]:
    return st.builds(Test, _names, st.sampled_from(operators), operands)


_operands = _numbers | _texts
_leaves = st.one_of(
    _tests(COMPARISONS, st.tuples(_operands)),
    _tests(["=", "!="], st.tuples(_operands | st.booleans())),
    _tests(["between"], st.tuples(_numbers, _numbers) | st.tuples(_texts, _texts)).map(in_order),
    _tests(["in", "not in"], st.lists(_operands | st.just(True), min_size=1, max_size=4).map(tuple)),
    _tests(PATTERNS, st.tuples(_texts)),
    _tests(["exists"], st.just(())),
)
#: A test, perhaps negated, or a tag that must not be there
PARTS = _leaves | _leaves | _leaves.map(Not) | st.sampled_from(TAGS).map(lambda tag: Not(Tags((tag,))))
FILTERS = st.tuples(st.lists(st.sampled_from(TAGS), max_size=2, unique=True), st.lists(PARTS, max_size=4))
MESSAGES = st.tuples(
    st.lists(st.sampled_from(TAGS), max_size=3, unique=True),
    st.dictionaries(st.sampled_from([*NAMES, "s"]), st.lists(st.sampled_from(VALUES), max_size=3)),
)


def expression_of(parts: list[Tree]) -> str | None:
    return " and ".join(text_of(part, random.Random(0)) for part in parts) or None


def expected_keys(filters: list[Any], tags: list[str], values: Mapping[str, list[Any]]) -> list[int]:
    return [
        key
        for key, (wanted, parts) in enumerate(filters)
        if set(wanted) <= set(tags) and all(evaluate(part, tags, values) for part in parts)
    ]
