"""What Hypothesis draws: expressions and messages; and what the library made of an expression, on values of Python."""

import math
import random
from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st
from oracle import OPERATORS, Attributes, Operator, Tree
from oracle import And as And
from oracle import AtLeast as AtLeast
from oracle import Compared as Compared
from oracle import Not as Not
from oracle import Or as Or
from oracle import Tags as Tags
from oracle import Test as Test
from oracle import Value as Value
from oracle import evaluate as evaluate
from oracle import type_of as type_of
from oracle import values_of as values_of
from support.expressions import WORDS as WORDS
from support.expressions import precedes as precedes
from support.expressions import tests_of
from support.expressions import text_of as text_of

from tagmatch.model.where.alternatives import Row
from tagmatch.model.where.automata import finds
from tagmatch.model.where.comparisons import Comparison
from tagmatch.model.where.constraints import (
    COMPARED,
    CONTAINS,
    LIKE,
    MATCHES,
    NO_TAG,
    PARTS,
    RANGES,
    SUFFIX,
    Constraint,
    Cut,
)
from tagmatch.model.where.types import Typed, Version
from tagmatch.model.where.values import is_reserved, key_of

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
    if constraint.kind == PARTS:
        least, parts = constraint.parts
        held = [
            holds(Constraint.of_tag(part), tags, attributes) if is_reserved(part) else part in tags for part in parts
        ]
        assert not constraint.negated
        return sum(held) >= least
    values = values_of(attributes, constraint.attribute)
    if constraint.kind == COMPARED:
        own = Comparison.in_payload(constraint.attribute, constraint.payload)
        others = list(map(key_of, values_of(attributes, own.right)))
        return any(own.holds(key_of(value), other) for value in values for other in others) != constraint.negated
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
        texts = [value for value in values if type_of(value) == "text"]
        likes = partial(finds, constraint.payload, is_like=constraint.kind == LIKE)
        if constraint.kind in (LIKE, MATCHES):
            return any(map(likes, texts)) != constraint.negated
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
DECIMALS = tuple(map(Decimal, (
    "0.1", "0.10", "-0.1", "0.5", "5", "0.3", "-0.30", "1E+400", "-1E+400", "1E-400", "-1E-400",
    "9007199254740993.5", "9007199254740992.5", "-9007199254740993.5", "9223372036854775807.5",
    "-9223372036854775808.5", "12345678901234567890123456789012345678", "99999999999999999999.99",
    "100000000000000000001", "0.1000000000000000055511151231257827021181583404541015625",
    "0.10000000000000000555111512312578270211815834045410156251",
)))  # fmt: skip
ZONES = (UTC, ZoneInfo("Europe/Rome"), ZoneInfo("America/New_York"), timezone(timedelta(hours=5, minutes=45)))
#: Around the hours that clocks in Rome have twice, and not at all
TIMES = (
    *(
        datetime(2026, month, day, hour, 30, fold=fold, tzinfo=ZONES[1])
        for month, day in ((3, 29), (10, 25)) for hour in (1, 2, 3) for fold in (0, 1)
    ),
    date(2026, 10, 25), date(1, 1, 1), date(9999, 12, 31), datetime(2026, 10, 25, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(1970, 1, 1, tzinfo=UTC),
)  # fmt: skip
VERSIONS = tuple(map(Version, (
    "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1",
    "1.0.1-0", "1.9", "1.10.0", "1.10.0+x", "2.0.0-10", "2.0.0-9", "10.0",
)))  # fmt: skip
ADDRESSES = tuple(map(ip_address, (
    "0.0.0.0", "10.0.0.0", "10.0.0.1", "10.255.255.255", "11.0.0.0", "255.255.255.255", "::", "::1", "::ffff:10.0.0.1",
    "2001:db8::", "2001:db8::ffff",
)))  # fmt: skip
NETWORKS = tuple(map(ip_network, (
    "10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/31", "10.0.0.1/32", "0.0.0.0/0", "::/0", "2001:db8::/32", "::1/128",
)))  # fmt: skip
ATTRIBUTES = ("a", "b", "list `price`", "in", "x.y_1", "é")
TAGS = ("x", "y", "", "a b", '"\\', "a\0", "é")

Drawn = st.SearchStrategy[Any]
_integers = st.sampled_from(INTEGERS) | st.integers(-(2**63), 2**63 - 1)
_decimals = st.sampled_from(DECIMALS) | st.decimals(
    allow_nan=False, allow_infinity=False, min_value=-(10**40), max_value=10**40
)
_zones = st.sampled_from(ZONES)
times = st.sampled_from(TIMES) | st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=_zones) | st.dates()
versions = st.sampled_from(VERSIONS) | st.from_regex(
    r"[0-9]{1,3}(\.[0-9]{1,2}){0,3}(-([0-9]{1,2}|[a-c-]+)(\.([0-9]{1,2}|[a-c-]+)){0,2})?(\+x)?", fullmatch=True
).map(Version)
addresses = st.sampled_from(ADDRESSES) | st.ip_addresses()
networks = st.sampled_from(NETWORKS)
_floats = st.sampled_from(FLOATS) | st.floats(allow_nan=False)
texts = st.sampled_from(TEXTS) | st.text(max_size=5)
all_numbers = numbers = _integers | _floats | _decimals
#: Those of a type each, which have an order
TYPED = {"time": times, "version": versions, "ip": addresses}
typed = st.one_of(*TYPED.values())
#: What can be written in an expression
operands = st.booleans() | numbers | texts | typed
#: And what an attribute may have
values = operands | st.just(math.nan)
attribute_names = st.sampled_from(ATTRIBUTES[:3]) | st.sampled_from(ATTRIBUTES)
tags = st.sampled_from(TAGS)


def of_python(value: Value) -> Value:
    """A value of the library's own as Python has it."""
    if not isinstance(value, Typed):
        return value
    name, _, text = str(value).partition(" ")
    makers = {"date": date.fromisoformat, "timestamp": datetime.fromisoformat, "version": Version, "ip": ip_address}
    return makers[name](text.strip('"'))


def in_order(test: Test) -> Test:
    """`between` with the lesser value first."""
    low, high = test.operands
    return Test(test.attribute, test.operator, (high, low) if precedes(high, low) else (low, high))


def any_test(names: Drawn, numbers: Drawn, texts: Drawn) -> Drawn:
    others = list(TYPED.values()) if numbers is all_numbers else []
    ordered = st.one_of(numbers, texts, *others)
    pairs = st.one_of(*(st.tuples(each, each) for each in (numbers, texts, *others)))
    of_types = {"values": st.booleans() | ordered, "ordered": ordered, "texts": texts}

    def tests(name: str, own: Operator) -> Drawn:
        taken = of_types[own.takes]
        several = st.lists(taken | networks if others else taken, min_size=1, max_size=4).map(tuple)
        operands = {"none": st.just(()), "one": st.tuples(taken), "two": pairs, "list": several}[own.operands]
        drawn = st.builds(Test, names, st.just(name), operands)
        return drawn.map(in_order) if own.operands == "two" else drawn

    return st.one_of(*(tests(name, own) for name, own in OPERATORS.items() if own.takes in of_types))


_tests = any_test(attribute_names, all_numbers, texts)


@st.composite
def _any_tests(draw: st.DrawFn) -> Test:
    """The same, which is shown by its name: as a whole it is too long for Hypothesis."""
    test: Test = draw(_tests)
    return test


tests = _any_tests()
leaves = tests | st.builds(Tags, st.lists(tags, min_size=1, max_size=3).map(tuple))


def joined(parts: Drawn) -> Drawn:
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, parts) | st.builds(And, several) | st.builds(Or, several)


def counted(parts: Drawn) -> Drawn:
    several = st.lists(parts, min_size=1, max_size=5).flatmap(
        lambda drawn: st.builds(AtLeast, st.integers(1, len(drawn)), st.just(tuple(drawn)))
    )
    return joined(parts) | several


#: At most nine tests, which make fewer than 1,024 conjunctions
trees = st.recursive(leaves, joined, max_leaves=9)
#: With `at least`
counting_trees = st.recursive(leaves, counted, max_leaves=12)
spellings = st.integers(0, 2**32 - 1).map(random.Random)


def neighbours(value: Value) -> list[Value]:
    """Values that are easily confused with this one, and it itself."""
    if isinstance(value, bool):
        return [value, not value, int(value), str(value).lower()]
    if hasattr(value, "max_prefixlen"):
        if hasattr(value, "prefixlen"):
            return [near for each in (value[0], value[-1]) for near in neighbours(each)]
        most = 2**value.max_prefixlen - 1
        return [
            value,
            str(value),
            int(value) % 2**63,
            *(type(value)(int(value) + by) for by in (-1, 1) if 0 <= int(value) + by <= most),
        ]
    if isinstance(value, Version):
        plain = value.partition("+")[0]
        return [
            value,
            str(value),
            Version(plain + "-a"),
            Version(plain + ("" if "-" in plain else ".1")),
            Version(plain.partition("-")[0]),
        ]
    if isinstance(value, date):
        if not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=UTC)
        near = [value, value.date(), value.isoformat(), value.replace(microsecond=(value.microsecond + 1) % 10**6)]
        return [*near, value.replace(tzinfo=ZONES[2]), value.replace(fold=1 - value.fold), int(value.year)]
    if isinstance(value, Decimal):
        near = [value, *(_EXACTLY.add(value, by) for by in _NEAR), str(value)]
        if abs(value) < 2**62:
            near += [
                int(value),
                float(value),
                math.nextafter(float(value), -math.inf),
                math.nextafter(float(value), math.inf),
            ]
        return near
    if isinstance(value, str):
        last = [
            value[:-1] + chr(ord(value[-1]) + step) for step in (-1, 1) if value and ord(value[-1]) + step in _PLAIN
        ]
        return [value, value + "\0", value + "a", value + "\U0010ffff", "a" + value, value[:-1], value[1:], *last]
    near = [
        value,
        float(value),
        Decimal(value) if math.isfinite(value) else value,
        math.nextafter(value, math.inf),
        math.nextafter(value, -math.inf),
    ]
    if math.isfinite(value):
        near += [each for each in (int(value) - 1, int(value), int(value) + 1) if each in range(-(2**63), 2**63)]
    return near


_NEAR, _EXACTLY = (Decimal("1E-20"), Decimal("-1E-20")), Context(prec=900)
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


# -- expressions about data --------------------------------------------------------------------------------------------

_NAMES = st.sampled_from(["", "a", "ana", "é", "z"])
_RANKS = st.integers(-3, 3)


def _of(name: str, operators: list[str], *operands: Drawn) -> Drawn:
    return st.builds(Test, st.just(name), st.sampled_from(operators), st.tuples(*operands))


#: About columns `name` of texts and `rank` of integers
data_trees = st.recursive(
    _of("name", ["=", "!=", "<", ">=", "prefix", "contains", "suffix"], _NAMES)
    | _of("rank", ["=", "!=", "<", "<=", ">", "in", "not in"], _RANKS)
    | _of("rank", ["between"], _RANKS, _RANKS).map(in_order)
    | _of("name", ["in"], _NAMES, _NAMES)
    | st.builds(Test, st.sampled_from(["name", "rank"]), st.just("exists"), st.just(())),
    joined,
    max_leaves=4,
)
