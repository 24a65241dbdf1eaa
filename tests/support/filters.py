"""What Hypothesis draws: expressions and messages; and what the library made of an expression, on values of Python."""

import math
import random
from collections.abc import Collection
from typing import Any

from hypothesis import strategies as st
from oracle import OPERATORS, Attributes, Operator, Tree
from oracle import And as And
from oracle import Not as Not
from oracle import Or as Or
from oracle import Tags as Tags
from oracle import Test as Test
from oracle import Value as Value
from oracle import evaluate as evaluate
from oracle import values_of as values_of
from support.expressions import WORDS as WORDS
from support.expressions import precedes as precedes
from support.expressions import tests_of
from support.expressions import text_of as text_of

from tagmatch.model.where.alternatives import Row
from tagmatch.model.where.constraints import CONTAINS, NO_TAG, RANGES, SUFFIX, Constraint, Cut
from tagmatch.model.where.values import key_of

# -- what the library made of an expression ----------------------------------------------------------------------------


def satisfies(row: Row, tags: Collection[str], attributes: Attributes) -> bool:
    """Whether a message has all tags of a row, and all of its constraints hold."""
    return set(row.tags) <= set(tags) and all(holds(each, tags, attributes) for each in row.constraints)


def holds(constraint: Constraint, tags: Collection[str], attributes: Attributes) -> bool:
    """Whether a constraint holds, from its intervals, or its text."""
    if constraint.kind == NO_TAG:
        assert constraint.negated
        assert not constraint.attribute
        return constraint.payload not in tags
    values = values_of(attributes, constraint.attribute)
    if constraint.kind == RANGES:
        assert not constraint.payload
        keys = [key_of(value) for value in values]
        found = any(
            after(key, interval.lower) and not after(key, interval.upper)
            for interval in constraint.intervals
            for key in keys
        )
    else:
        assert not constraint.intervals
        texts = [value for value in values if isinstance(value, str)]
        found = any(
            {SUFFIX: text.endswith, CONTAINS: text.__contains__}[constraint.kind](constraint.payload) for text in texts
        )
    return found != constraint.negated


def after(key: str, cut: Cut) -> bool:
    one, two = key.encode(), cut.key.encode()
    match cut.side:
        case "[":
            return one >= two
        case "]":
            return one > two
        case "^":
            return one > two and not one.startswith(two)
    raise AssertionError(cut)


# -- what Hypothesis draws ---------------------------------------------------------------------------------------------

INTEGERS = (
    0, 1, -1, 5, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, -(2**53), -(2**53) - 1, 2**62 + 1, 2**63 - 1, 2**63 - 2,
    2**63 - 512, 2**63 - 513, 2**63 - 1024, -(2**63), -(2**63) + 1,
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 0.5, 0.1, 1.0, 5.0, 5e-324, -5e-324, 1.7976931348623157e308, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63),
    2.0**63 - 1024, 2.0**64, 1e16, math.inf, -math.inf,
)  # fmt: skip
TEXTS = (
    "", "a", "ab", "abc", "b", "ba", "é", "e\u0301", "\0", "a\0", "a\0\0", "a\U0010ffff", "\U0010ffff", "\uffff",
    "🦊", "～", '"', "\\", "\\n", "\n\t", "`", "and", "x" * 70, "\ufeff",
)  # fmt: skip
ATTRIBUTES = ("a", "b", "list `price`", "in", "x.y_1", "é")
TAGS = ("x", "y", "", "a b", '"\\', "a\0", "é")

Drawn = st.SearchStrategy[Any]
_integers = st.sampled_from(INTEGERS) | st.integers(-(2**63), 2**63 - 1)
_floats = st.sampled_from(FLOATS) | st.floats(allow_nan=False)
texts = st.sampled_from(TEXTS) | st.text(max_size=5)
numbers = _integers | _floats
#: What can be written in an expression
operands = st.booleans() | numbers | texts
#: And what an attribute may have
values = operands | st.just(math.nan)
attribute_names = st.sampled_from(ATTRIBUTES[:3]) | st.sampled_from(ATTRIBUTES)
tags = st.sampled_from(TAGS)


def in_order(test: Test) -> Test:
    """`between` with the lesser value first."""
    low, high = test.operands
    return Test(test.attribute, test.operator, (high, low) if precedes(high, low) else (low, high))


def any_test(names: Drawn, numbers: Drawn, texts: Drawn) -> Drawn:
    pairs = st.tuples(numbers, numbers) | st.tuples(texts, texts)
    of_types = {"values": st.booleans() | numbers | texts, "ordered": numbers | texts, "texts": texts}

    def tests(name: str, own: Operator) -> Drawn:
        taken = of_types[own.takes]
        several = st.lists(taken, min_size=1, max_size=4).map(tuple)
        operands = {"none": st.just(()), "one": st.tuples(taken), "two": pairs, "list": several}[own.operands]
        drawn = st.builds(Test, names, st.just(name), operands)
        return drawn.map(in_order) if own.operands == "two" else drawn

    return st.one_of(*(tests(name, own) for name, own in OPERATORS.items()))


tests = any_test(attribute_names, numbers, texts)
leaves = tests | st.builds(Tags, st.lists(tags, min_size=1, max_size=3).map(tuple))


def _joined(parts: Drawn) -> Drawn:
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, parts) | st.builds(And, several) | st.builds(Or, several)


#: At most nine tests, of which fewer than 1,024 conjunctions come
trees = st.recursive(leaves, _joined, max_leaves=9)
spellings = st.integers(0, 2**32 - 1).map(random.Random)


def neighbours(value: Value) -> list[Value]:
    """Values that are easily confused with this one, and it itself."""
    if isinstance(value, bool):
        return [value, not value, int(value), str(value).lower()]
    if isinstance(value, str):
        last = [
            value[:-1] + chr(ord(value[-1]) + step) for step in (-1, 1) if value and ord(value[-1]) + step in _PLAIN
        ]
        return [value, value + "\0", value + "a", value + "\U0010ffff", "a" + value, value[:-1], value[1:], *last]
    near = [value, float(value), math.nextafter(value, math.inf), math.nextafter(value, -math.inf)]
    if math.isfinite(value):
        near += [each for each in (int(value) - 1, int(value), int(value) + 1) if each in range(-(2**63), 2**63)]
    return near


#: Characters that are no halves of others
_PLAIN = frozenset(range(0xD800)) | frozenset(range(0xE000, 0x110000))


@st.composite
def messages(draw: st.DrawFn, tree: Tree | None = None) -> tuple[set[str], dict[str, Any]]:
    """Tags and attributes: missing ones, ones of several values, and values that are near to those of the tree."""
    wanted = tests_of(tree)
    near = [value for test in wanted for operand in test.operands for value in neighbours(operand)]
    value = st.sampled_from(near) | values if near else values
    names = sorted({test.attribute for test in wanted} | {draw(attribute_names)})
    several = st.lists(st.none() | value, max_size=3)
    attributes = {name: draw(value | value | st.none() | several | several.map(tuple)) for name in names}
    return draw(st.sets(tags)), {name: attributes[name] for name in names if draw(st.integers(0, 5))}
