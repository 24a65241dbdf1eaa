"""Generates rows of the workload of areas: subscriptions, messages and moves, in Arrow columns.

Kernels that draw places, names and constraints. A row depends on the seed and the row's number alone.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import offsets_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.parallel import run_rows
from tagmatch.workloads.content.generate import CONSTRAINT
from tagmatch.workloads.shards import mix, position, uniform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tagmatch.model.arrays import F64Array, I64Array
    from tagmatch.workloads.location.options import LocationOptions

_U = np.uint64

#: Operators by number
EQUAL, UNEQUAL, LESS, GREATER = range(4)


class Places(NamedTuple):
    """What places are drawn from: `sums` has the running sums of the spots' shares; without spots, all is uniform."""

    sums: F64Array
    x: F64Array
    y: F64Array
    spread: float


class Content(NamedTuple):
    """What constraints and attributes are drawn from; `holds` is how likely it is that a constraint holds."""

    topics: int
    topic_names: int
    values: int
    holds: float


@inlined
def _random_of(row, seed):
    return mix(_U(row) ^ mix(seed))


@inlined
def _below(random, limit):
    """Return an integer from 0 to `limit` - 1."""
    return min(np.int64(uniform(random) * limit), limit - 1)


@inlined
def _single(value):
    """Round to single precision, within the unit square."""
    wrapped = np.float64(np.float32(value - math.floor(value)))
    return wrapped if wrapped < 1.0 else 0.0


@kernel
def draw_places(first, each, seed, places, x, y):
    """Write the place of each row from `first` on; `each` rows that follow one another share one."""
    for i in range(len(x)):
        random = _random_of((first + i) // each, seed)
        if len(places.sums) == 0:
            x[i], y[i] = _single(uniform(random)), _single(uniform(random + _U(1)))
            continue
        spot = position(places.sums, uniform(random))
        # Two normal numbers of two uniform ones (Box, Muller 1958)
        far = places.spread * math.sqrt(-2.0 * math.log(1.0 - uniform(random + _U(1))))
        angle = 2.0 * math.pi * uniform(random + _U(2))
        x[i] = _single(places.x[spot] + far * math.cos(angle))
        y[i] = _single(places.y[spot] + far * math.sin(angle))


@kernel
def draw_counts(first, seed, low, high, counts):
    """Write, of each row from `first` on, a number from `low` to `high`."""
    for i in range(len(counts)):
        counts[i] = low + _below(_random_of(first + i, seed), high - low + 1)


@kernel
def draw_names(first, seed, topics, topic_names, offsets, names):
    """Write, ascending, names of one topic for each row from `first` on; those of the i-th begin at `offsets[i]`."""
    for i in range(len(offsets) - 1):
        random = _random_of(first + i, seed) + _U(1)
        topic = _below(random, topics)
        wanted, at = offsets[i + 1] - offsets[i], offsets[i]
        # Each name is taken with the share of those wanted among those left: all choices are as likely
        for j in range(topic_names):
            random += _U(1)
            if uniform(random) * (topic_names - j) < wanted:
                names[at] = topic * topic_names + j
                at += 1
                wanted -= 1


@kernel
def draw_values(first, seed, offsets, values, drawn):
    """Write a value from 0 to `values` - 1 for each attribute of rows from `first` on."""
    for i in range(len(offsets) - 1):
        random = _random_of(first + i, seed)
        for j in range(offsets[i], offsets[i + 1]):
            drawn[j] = _below(random + _U(j - offsets[i]), values)


@kernel
def draw_constraints(first, seed, offsets, content, operators, operands):
    """Write an operator and an operand for each constraint of rows from `first` on.

    Half are on order, with an operand that makes them hold for more values or for fewer; half are = or !=, in such
    shares that in the mean they hold as often. Where != holds too rarely, some have an operand that is no value.
    """
    values, holds = content.values, content.holds
    width = min(holds, 1.0 - holds)
    equal = max(0.0, (1.0 - 1.0 / values - holds) / (1.0 - 2.0 / values)) if values > 2 else 0.0
    outside = max(0.0, 1.0 - (1.0 - holds) * values)
    for i in range(len(offsets) - 1):
        random = _random_of(first + i, seed)
        for j in range(offsets[i], offsets[i + 1]):
            kind, second, third = uniform(random), uniform(random + _U(1)), random + _U(2)
            random += _U(3)
            if kind < 0.5:
                share = holds + width * (2.0 * second - 1.0)
                below = np.int64(math.floor(share * values + uniform(third)))
                less = kind < 0.25
                operators[j] = LESS if less else GREATER
                operands[j] = below if less else values - 1 - below
            else:
                operators[j] = EQUAL if second < equal else UNEQUAL
                operands[j] = values if 1.0 - second <= outside else _below(third, values)


#: What a filter asks of a message's content, and what messages then have
ContentKind: TypeAlias = Literal["constraints", "tags", "both"]

#: Areas and positions on the plane, where the square that they are drawn from is one wide
PLANE_AREA = pa.struct({"x": pa.float64(), "y": pa.float64(), "radius": pa.float64()})
PLANE_POINT = pa.struct({"x": pa.float64(), "y": pa.float64()})
#: The same on the sphere, in degrees
SPHERE_AREA = pa.struct({"lon": pa.float64(), "lat": pa.float64(), "metres": pa.float64()})
SPHERE_POINT = pa.struct({"lon": pa.float64(), "lat": pa.float64()})
#: The Earth's mean radius (IUGG)
EARTH_METRES = 6_371_008.8

#: Messages and moves have numbers below this
MAX_ROWS = 2**40

_OPERATORS = pa.array(["=", "!=", "<", ">"])
_BLOCK_ROWS = 1 << 15
_STREAMS = 11


def subscriptions_schema(area: pa.DataType) -> pa.Schema:
    """Columns of subscriptions with areas of this type."""
    tags, constraints = pa.list_(pa.string()), pa.list_(CONSTRAINT)
    return pa.schema({"key": pa.uint64(), "tags": tags, "constraints": constraints, "area": area})


def messages_schema(point: pa.DataType, attributes: Mapping[str, pa.DataType]) -> pa.Schema:
    """Columns of messages with positions of this type and such attributes."""
    return pa.schema({"tags": pa.list_(pa.string()), "location": point, **attributes})


class Location:
    """The workload of areas.

    A filter has an area, and content: constraints on attributes, `a0`, `a1`, ..., whose values are integers from 0 to
    `values` - 1, or tags, `t0`, `t1`, .... Constraints and tags are drawn independently of each other, and each alone
    selects `selectivity` of the messages; who asks for both selects next to nothing. Places have single precision.
    """

    def __init__(self, options: LocationOptions) -> None:
        self._options = options
        self.filters = options.filters
        self.attributes = [f"a{name}" for name in range(options.names)]
        self._names = pa.array(self.attributes)
        self._content = Content(options.topics, options.topic_names, options.values, options.constraint_holds)
        seeds = [np.uint64(mix(np.uint64(options.seed) ^ np.uint64(mix(np.uint64(i))))) for i in range(_STREAMS)]
        self._seeds = dict(zip(_DRAWN, seeds, strict=True))
        self._places = _places(options, self._seeds["spots"])
        sphere = options.degrees > 0
        self._area, self._point = (SPHERE_AREA, SPHERE_POINT) if sphere else (PLANE_AREA, PLANE_POINT)
        self.subscriptions_schema = subscriptions_schema(self._area)
        self.messages_schema = messages_schema(self._point, {name: pa.int64() for name in self.attributes})
        self.moves_schema = pa.schema({"filter": pa.uint32(), "key": pa.uint64(), "location": self._point})

    def subscriptions(
        self, first: int, last: int, *, content: ContentKind = "constraints", threads: int = 1
    ) -> pa.Table:
        """Generate filters `first` to `last`, in the order of their subscriptions."""
        batches = self.stream_subscriptions(first, last, content=content, threads=threads)
        return pa.Table.from_batches(batches, self.subscriptions_schema)

    def messages(self, first: int, last: int, *, content: ContentKind = "constraints", threads: int = 1) -> pa.Table:
        """Generate messages `first` to `last`."""
        batches = self.stream_messages(first, last, content=content, threads=threads)
        return pa.Table.from_batches(batches, self.messages_schema)

    def moves(self, first: int, last: int) -> pa.Table:
        """Generate moves `first` to `last`, each of a random filter to anywhere (CLCB §5)."""
        _check_rows(first, last, MAX_ROWS)
        filters = np.empty(last - first, np.int64)
        draw_counts(first, self._seeds["moved"], 0, self.filters - 1, filters)
        keys = (filters // self._options.filters_each).astype(np.uint64)
        moved = self._located(first, last, "moves")
        return pa.table([pa.array(filters.astype(np.uint32)), pa.array(keys), moved], schema=self.moves_schema)

    def stream_subscriptions(
        self, first: int, last: int, *, content: ContentKind = "constraints", threads: int = 1
    ) -> Iterator[pa.RecordBatch]:
        """Generate the rows of `subscriptions` in batches."""
        _check_content(content)

        def make(begin: int, end: int) -> pa.RecordBatch:
            keys = np.arange(begin, end, dtype=np.uint64) // np.uint64(self._options.filters_each)
            columns = [pa.array(keys), self._tag_lists("filter", begin, end, content), self._asked(begin, end, content)]
            return pa.record_batch([*columns, self._areas(begin, end)], schema=self.subscriptions_schema)

        return _stream(make, first, last, self.filters, threads)

    def stream_messages(
        self, first: int, last: int, *, content: ContentKind = "constraints", threads: int = 1
    ) -> Iterator[pa.RecordBatch]:
        """Generate the rows of `messages` in batches."""
        _check_content(content)

        def make(begin: int, end: int) -> pa.RecordBatch:
            columns = [self._tag_lists("message", begin, end, content), self._located(begin, end, "messages")]
            values = self._values(begin, end, content)
            return pa.record_batch([*columns, *values], schema=self.messages_schema)

        return _stream(make, first, last, MAX_ROWS, threads)

    # -- places --------------------------------------------------------------------------------------------------------

    def _points(self, first: int, last: int, what: str, each: int = 1) -> tuple[F64Array, F64Array]:
        x, y = np.empty(last - first), np.empty(last - first)
        draw_places(first, each, self._seeds[what], self._places, x, y)
        if self._options.degrees:
            return (x - 0.5) * self._options.degrees, (y - 0.5) * self._options.degrees
        return x, y

    def _located(self, first: int, last: int, what: str) -> pa.StructArray:
        x, y = self._points(first, last, what)
        return pa.StructArray.from_arrays([pa.array(x), pa.array(y)], fields=list(self._point))

    def _areas(self, first: int, last: int) -> pa.StructArray:
        options = self._options
        x, y = self._points(first, last, "filters", options.filters_each if options.together else 1)
        radius = options.radius * (np.radians(options.degrees) * EARTH_METRES if options.degrees else 1)
        columns = [pa.array(x), pa.array(y), pa.array(np.full(len(x), radius))]
        return pa.StructArray.from_arrays(columns, fields=list(self._area))

    # -- content -------------------------------------------------------------------------------------------------------

    def _lists_of_names(self, first: int, last: int, what: str, topics: int) -> tuple[I64Array, I64Array]:
        """Offsets of rows, and names from one of these topics each; empty where `what` is not drawn."""
        options = self._options
        kind = "constraints" if what.startswith("filter") else "attributes"
        counts = np.empty(last - first, np.int64)
        low, high = getattr(options, f"min_{kind}"), getattr(options, f"max_{kind}")
        draw_counts(first, self._seeds[what], low, high, counts)
        offsets = offsets_of(counts)
        names = np.empty(int(offsets[-1]), np.int64)
        draw_names(first, self._seeds[what], topics, options.topic_names, offsets, names)
        return offsets, names

    def _tag_lists(self, whose: str, first: int, last: int, content: ContentKind) -> pa.ListArray:
        if content == "constraints":
            return _no_lists(last - first, pa.string())
        offsets, names = self._lists_of_names(first, last, f"{whose} tags", self._options.tag_topics)
        tags = pc.binary_join_element_wise(pa.scalar("t"), pa.array(names).cast(pa.string()), pa.scalar(""))
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), tags)

    def _asked(self, first: int, last: int, content: ContentKind) -> pa.ListArray:
        if content == "tags":
            return _no_lists(last - first, CONSTRAINT)
        offsets, names = self._lists_of_names(first, last, "filter names", self._options.topics)
        operators, operands = np.empty(len(names), np.uint8), np.empty(len(names), np.int64)
        draw_constraints(first, self._seeds["operators"], offsets, self._content, operators, operands)
        columns = [self._names.take(pa.array(names)), _OPERATORS.take(pa.array(operators)), pa.array(operands)]
        columns += [pa.nulls(len(names), pa.int64()), pa.nulls(len(names), pa.string())]
        constraints = pa.StructArray.from_arrays(columns, fields=list(CONSTRAINT))
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), constraints)

    def _values(self, first: int, last: int, content: ContentKind) -> list[pa.Array]:
        if content == "tags":
            return [pa.nulls(last - first, pa.int64())] * len(self.attributes)
        offsets, names = self._lists_of_names(first, last, "message names", self._options.topics)
        drawn = np.empty(len(names), np.int64)
        draw_values(first, self._seeds["values"], offsets, self._options.values, drawn)
        rows = np.repeat(np.arange(last - first), np.diff(offsets))
        there = np.zeros((len(self.attributes), last - first), np.bool_)
        values = np.zeros(there.shape, np.int64)
        there[names, rows], values[names, rows] = True, drawn
        return [pa.array(row, mask=~present) for row, present in zip(values, there, strict=True)]


#: What has random numbers of its own
_DRAWN = (
    "spots",
    "filters",
    "messages",
    "moves",
    "moved",
    "filter tags",
    "message tags",
    "filter names",
    "message names",
    "operators",
    "values",
)
assert len(_DRAWN) == _STREAMS


def _places(options: LocationOptions, seed: np.uint64) -> Places:
    x, y = np.empty(options.spots), np.empty(options.spots)
    draw_places(0, 1, seed, Places(np.empty(0), x, y, 0.0), x, y)
    shares = np.arange(1.0, options.spots + 1) ** -options.spot_exponent
    return Places(np.cumsum(shares) / max(shares.sum(), 1e-300), x, y, float(options.spread))


def _no_lists(rows: int, kind: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), pa.array([], kind))


def _check_content(content: str) -> None:
    if content not in get_args(ContentKind):
        raise InvalidValueError(f"content must be one of {', '.join(get_args(ContentKind))}, not {content!r}")


def _check_rows(first: int, last: int, count: int) -> None:
    if not 0 <= first <= last <= count:
        raise InvalidValueError(f"first and last must be ascending and from 0 to {count}, not {first} and {last}")


def _stream(
    make: Callable[[int, int], pa.RecordBatch], first: int, last: int, count: int, threads: int
) -> Iterator[pa.RecordBatch]:
    """Have threads make rows `first` to `last` of `count`, in blocks of the same size."""
    _check_rows(first, last, count)
    blocks, at_once = list(pairwise([*range(first, last, _BLOCK_ROWS), last])), 4 * threads
    parts = (blocks[begin : begin + at_once] for begin in range(0, len(blocks), at_once))
    return (batch for part in parts for batch in run_rows(make, part, threads))
