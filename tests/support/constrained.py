"""Sets with constraints and messages that Hypothesis draws, and what plain Python says of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from tagmatch.model.filters.constraints import Constraint

Test = Callable[[Any], bool]
#: A constraint, and what it says of each value
Tested = tuple[Constraint, Test]

NAMES = ["p", "q", "r"]
NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    2**53,
    2**53 + 1,
    2.0**53,
    2**63 - 1,
    -(2**63),
    0.5,
    -0.0,
    1.0,
    1.5,
    math.inf,
    -math.inf,
    1e-300,
]
TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "abd",
    "b",
    "ba",
    "bab",
    "é",
    "e",
    "\U0010ffff",
    "a\U0010ffff",
    "Rome",
    "home",
    "xab",
    "xaz",
]
VALUES = [*NUMBERS, *TEXTS, math.nan, True, False]
TAGS = ["t1", "t2", "t3"]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(value: Any, other: Any) -> bool:
    return is_number(value) == is_number(other) and isinstance(value, str) == isinstance(other, str) and value == other


def in_order(value: Any, other: Any) -> bool:
    return (is_number(value) and is_number(other)) or (isinstance(value, str) and isinstance(other, str))


def bytes_of(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: in_order(a, b) and bytes_of(a) < bytes_of(b),
    "<=": lambda a, b: in_order(a, b) and bytes_of(a) <= bytes_of(b),
    ">": lambda a, b: in_order(a, b) and bytes_of(a) > bytes_of(b),
    ">=": lambda a, b: in_order(a, b) and bytes_of(a) >= bytes_of(b),
    "=": same,
    "!=": lambda a, b: not same(a, b),
}


@st.composite
def meaning(draw: st.DrawFn) -> Tested:
    name = draw(st.sampled_from(NAMES))
    kind = draw(st.sampled_from([*COMPARISONS, "between", "in", "not in", "prefix", "suffix", "contains", "exists"]))
    text = draw(st.sampled_from(TEXTS))
    if kind in COMPARISONS:
        known = draw(
            st.sampled_from(
                [*NUMBERS, *TEXTS, *([True, False] if "=" in (kind, kind[-1]) and kind in ("=", "!=") else [])]
            )
        )
        return Constraint.compared(name, kind, known), lambda value: COMPARISONS[kind](value, known)  # type: ignore[arg-type]
    if kind == "between":
        of = draw(st.sampled_from([NUMBERS, TEXTS]))
        low, high = sorted([draw(st.sampled_from(of)), draw(st.sampled_from(of))], key=bytes_of)
        return Constraint.between(
            name, low, high
        ), lambda value: COMPARISONS[">="](value, low) and COMPARISONS["<="](value, high)
    if kind in ("in", "not in"):
        chosen = draw(st.lists(st.sampled_from([*NUMBERS, *TEXTS, True]), min_size=1, max_size=4))
        make = Constraint.one_of if kind == "in" else Constraint.none_of
        return make(name, chosen), lambda value: any(same(value, one) for one in chosen) == (kind == "in")
    if kind == "exists":
        return Constraint.exists(name), lambda value: True  # noqa: ARG005
    makes: dict[str, tuple[Callable[[str, str], Constraint], Callable[[str], bool]]] = {
        "prefix": (Constraint.begins_with, lambda value: value.startswith(text)),
        "suffix": (Constraint.ends_with, lambda value: value.endswith(text)),
        "contains": (Constraint.contains, lambda value: text in value),
    }
    make_it, test = makes[kind]
    return make_it(name, text), lambda value: isinstance(value, str) and test(value)


@st.composite
def parts(draw: st.DrawFn) -> tuple[str, Callable[[list[str], Mapping[str, list[Any]]], bool]]:
    """What is stored for a test, perhaps negated, or a tag that must not be there; and what it says of a message."""
    if draw(st.integers(0, 9)) == 0:
        tag = draw(st.sampled_from(TAGS))
        return Constraint.without_tag(tag).text, lambda tags, _: tag not in tags
    constraint, test = draw(meaning())
    name = constraint.attribute
    if draw(st.integers(0, 3)) == 0:
        return constraint.negation.text, lambda _, values: not any(map(test, values.get(name, [])))
    return constraint.text, lambda _, values: any(map(test, values.get(name, [])))


FILTERS = st.tuples(st.lists(st.sampled_from(TAGS), max_size=2, unique=True), st.lists(parts(), max_size=4))
MESSAGES = st.tuples(
    st.lists(st.sampled_from(TAGS), max_size=3, unique=True),
    st.dictionaries(st.sampled_from([*NAMES, "s"]), st.lists(st.sampled_from(VALUES), max_size=3)),
)


def expected_keys(filters: list[Any], tags: list[str], values: Mapping[str, list[Any]]) -> list[int]:
    return [
        key
        for key, (wanted, tests) in enumerate(filters)
        if set(wanted) <= set(tags) and all(test(tags, values) for _, test in tests)
    ]
