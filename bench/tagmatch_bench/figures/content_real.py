"""Subscriptions to real data: to cities of the world, and to Debian packages.

Each message is a row of the data, and each filter asks for what a random row has, in some of the ways that the data
allows, so that it matches that row at least. Everything comes twice: with texts and several values, as the data has
them, and in numbers only, one for each attribute of a message, for systems that take nothing else. There texts are
their places in the order of all texts, and each value of an attribute with several is an attribute of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import offsets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tagmatch.model.arrays import BoolArray, F64Array, I64Array

#: Filters ask in so many ways of those that there are
_FEWEST, _MOST = 2, 4
_PREFIX = 3
#: Half of the side of a square that a filter on places asks for, in degrees
_LEAST_DEGREES, _MOST_DEGREES = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class RealData:
    """Subscriptions and messages."""

    subscriptions: pa.Table  # As `TagMatch.add_subscriptions` and `match_many` take them
    messages: pa.Table
    in_numbers: pa.Table  # The same in numbers only
    messages_in_numbers: pa.Table


class _Test(NamedTuple):
    """A way to ask: of filters `rows`, each once, for an attribute; the operand is a text or numbers.

    `low` and `high` are what the text is between in numbers, and where there is none, the operand.
    """

    rows: I64Array
    names: pa.Array
    operator: str
    low: F64Array
    high: F64Array
    texts: pa.Array | None = None
    names_in_numbers: pa.Array | None = None


def cities(data: pa.Table, filters: int, messages: int, seed: int) -> RealData:
    """Filters on name, country, time zone, population and place."""
    random = np.random.default_rng(seed)
    columns = {name: data[name].combine_chunks() for name in ("name", "country", "timezone")}
    orders = {name: _Order(column) for name, column in columns.items()}
    numbers = {name: data[name].to_numpy().astype(np.float64) for name in ("population", "lat", "lon")}
    about = random.integers(0, len(data), filters)
    asked = _some_of(random, filters, 5)
    tests = []
    for number, name in enumerate(("country", "timezone")):
        rows = np.flatnonzero(asked[:, number])
        place = orders[name].places[about[rows]].astype(np.float64)
        texts = columns[name].take(pa.array(about[rows]))
        tests.append(_Test(rows, _repeated(name, len(rows)), "=", place, place, texts))
    rows = np.flatnonzero(asked[:, 2])
    tests.append(_prefixes(rows, "name", columns["name"].take(pa.array(about[rows])), orders["name"]))
    rows = np.flatnonzero(asked[:, 3])
    population = numbers["population"][about[rows]]
    tests.append(_Test(rows, _repeated("population", len(rows)), ">", np.floor(population / 2) - 1, population))
    rows = np.flatnonzero(asked[:, 4])
    half = random.uniform(_LEAST_DEGREES, _MOST_DEGREES, len(rows))
    for name in ("lat", "lon"):
        middle = numbers[name][about[rows]]
        tests.append(_Test(rows, _repeated(name, len(rows)), "between", middle - half, middle + half))

    drawn = pa.array(random.integers(0, len(data), messages))
    in_numbers = {name: pa.array(order.places.astype(np.float64)) for name, order in orders.items()}
    in_numbers |= {name: pa.array(column) for name, column in numbers.items()}
    names = [*orders, *numbers]
    return RealData(
        _subscriptions(filters, tests),
        data.select(names).take(drawn).combine_chunks(),
        _in_numbers(filters, tests),
        pa.table(in_numbers).select(names).take(drawn).combine_chunks(),
    )


def packages(data: pa.Table, filters: int, messages: int, seed: int) -> RealData:
    """Filters on the facets of Debian's tags, such as `role` in `role::program`, of several values, and on names."""
    random = np.random.default_rng(seed)
    data = data.filter(pc.greater(pc.list_value_length(data["tags"]), 0))
    tags, names = data["tags"].combine_chunks(), data["package"].combine_chunks()
    order = _Order(names)
    about = random.integers(0, len(data), filters)
    own = tags.take(pa.array(about))
    offsets = offsets_of(pc.list_value_length(own).to_numpy(zero_copy_only=False).astype(np.int64))
    flat, owners = own.flatten(), np.repeat(np.arange(filters), np.diff(offsets))
    # The first few tags of each in an order of chance
    by_chance = np.lexsort((random.random(len(flat)), owners))
    wanted = random.integers(_FEWEST, _MOST + 1, filters)
    few = np.sort(by_chance[np.arange(len(flat)) - offsets[:-1][owners] < wanted[owners]])
    asked = flat.take(pa.array(few))
    facets, values = _facets(asked)
    ones = np.ones(len(few))
    rows = np.flatnonzero(random.random(filters) < 1 / _MOST)
    tests = [
        _Test(owners[few], facets, "=", ones, ones, values, asked),
        _prefixes(rows, "package", names.take(pa.array(about[rows])), order),
    ]

    drawn = random.integers(0, len(data), messages)
    sent = tags.take(pa.array(drawn))
    row_of, flat = pc.list_parent_indices(sent).to_numpy(), sent.flatten()
    facets, values = _facets(flat)
    own_columns = {"package": names.take(pa.array(drawn))}
    in_numbers = {"package": pa.array(order.places[drawn].astype(np.float64))}
    for facet in facets.unique().to_pylist():
        at = np.flatnonzero(pc.equal(facets, facet))
        lengths = offsets_of(np.bincount(row_of[at], minlength=messages), np.int32)
        own_columns[facet] = pa.ListArray.from_arrays(pa.array(lengths), values.take(pa.array(at)))
    for tag in flat.unique().to_pylist():
        there = np.zeros(messages, np.bool_)
        there[row_of[np.flatnonzero(pc.equal(flat, tag))]] = True
        in_numbers[tag] = pa.array(np.ones(messages), mask=~there)
    return RealData(
        _subscriptions(filters, tests), pa.table(own_columns), _in_numbers(filters, tests), pa.table(in_numbers)
    )


class _Order:
    """Texts in the order of their bytes, each once."""

    def __init__(self, column: pa.Array) -> None:
        self._texts = np.array(sorted(text.encode() for text in column.unique().to_pylist()))
        self.places: I64Array = np.searchsorted(self._texts, np.array([text.encode() for text in column.to_pylist()]))

    def range_of(self, prefixes: Sequence[str]) -> tuple[F64Array, F64Array]:
        """The first and the last place of texts that begin with each prefix; there is one."""
        begins = [prefix.encode() for prefix in prefixes]
        first = np.searchsorted(self._texts, np.array(begins))
        end = np.searchsorted(self._texts, np.array([begin + b"\xff" for begin in begins]))
        return first.astype(np.float64), (end - 1).astype(np.float64)


def _some_of(random: np.random.Generator, filters: int, ways: int) -> BoolArray:
    """Which of some ways each filter asks in."""
    ranks = random.random((filters, ways)).argsort(axis=1).argsort(axis=1)
    chosen: BoolArray = ranks < random.integers(_FEWEST, _MOST + 1, filters)[:, None]
    return chosen


def _repeated(name: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(name), count)


def _prefixes(rows: I64Array, name: str, texts: pa.Array, order: _Order) -> _Test:
    prefixes = pc.utf8_slice_codeunits(texts, 0, _PREFIX)
    return _Test(rows, _repeated(name, len(rows)), "prefix", *order.range_of(prefixes.to_pylist()), prefixes)


def _facets(tags: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The facet of each tag, and its value."""
    parts = pc.extract_regex(tags, "^(?P<facet>[^:]*)::(?P<value>.*)$")
    return parts.field("facet"), parts.field("value")


class _Column(NamedTuple):
    """Constraints with one operator, each of the filter in `rows`; `operands` are as the fields of the struct."""

    rows: I64Array
    names: pa.Array
    operator: str
    operands: tuple[pa.Array, ...]


def _subscriptions(filters: int, tests: Sequence[_Test]) -> pa.Table:
    """The filters with texts."""
    columns = []
    for test in tests:
        nulls = pa.nulls(len(test.rows))
        texts, value = (nulls, pa.array(test.low)) if test.texts is None else (test.texts, nulls)
        operands = value.cast(pa.float64()), _uppers(test, test.operator), texts.cast(pa.string())
        columns.append(_Column(test.rows, test.names, test.operator, operands))
    return _table(filters, columns, ("value", "upper", "text"))


def _in_numbers(filters: int, tests: Sequence[_Test]) -> pa.Table:
    """The filters without texts: a prefix is an interval, and the value of a facet an attribute."""
    columns = []
    for test in tests:
        names = test.names if test.names_in_numbers is None else test.names_in_numbers
        operator = "between" if test.operator == "prefix" else test.operator
        columns.append(_Column(test.rows, names, operator, (pa.array(test.low), _uppers(test, operator))))
    return _table(filters, columns, ("value", "upper"))


def _uppers(test: _Test, operator: str) -> pa.Array:
    return pa.array(test.high) if operator == "between" else pa.nulls(len(test.rows), pa.float64())


def _table(filters: int, columns: Sequence[_Column], fields: Sequence[str]) -> pa.Table:
    """A subscription for each filter, whose key is its number."""
    owners = np.concatenate([each.rows for each in columns])
    order = np.argsort(owners, kind="stable")
    names = pa.concat_arrays([each.names.cast(pa.string()) for each in columns])
    operators = pa.concat_arrays([_repeated(each.operator, len(each.rows)) for each in columns])
    operands = [pa.concat_arrays(list(parts)) for parts in zip(*(each.operands for each in columns), strict=True)]
    struct = pa.StructArray.from_arrays([names, operators, *operands], ["attr", "op", *fields]).take(pa.array(order))
    offsets = offsets_of(np.bincount(owners, minlength=filters), np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), struct)
    return pa.table({"key": pa.array(np.arange(filters, dtype=np.uint64)), "constraints": lists})
