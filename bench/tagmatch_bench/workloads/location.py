"""The workload of CLCB: subscriptions with an area, messages with a position, and areas that move.

CLCB: G. Cugola, A. Margara, "High-Performance Location-Aware Publish-Subscribe on GPUs", Middleware 2012.

Names of attributes are correlated. With independent ones the paper's numbers contradict each other: a message has 3 to
5 of 100 names and a filter constraints on 3 to 5, so the message has all names of the filter with probability
C(m, k) / C(100, k) for m and k names; over the nine cases that are as likely, 0.001 % in the mean, and 0.006 % in the
best one (m = 5, k = 3). Yet 0.5 % of the messages are to satisfy a filter, 477 times as many, before any value has been
looked at. So here the names are shared out to topics of five, and a filter, as a message, takes its names from one of
them. Of 20 topics, 1 in 20 messages has the filter's; it then has all of the filter's names with probability 0.411; so
the constraints have to hold for 24 % of these, each of them with probability 0.69.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import offsets_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.where.areas import LIMITS
from tagmatch.workloads.numbers import (
    MAX_ROWS,
    below,
    check_numbers,
    check_range,
    check_rows,
    number,
    position,
    random_of,
    running_sums,
    uniform,
)
from tagmatch_bench.workloads.content import (
    CONSTRAINT,
    EQUAL,
    GREATER,
    LESS,
    UNEQUAL,
    constraints_of,
    draw_counts,
    lists_of,
    no_lists,
    seeds_of,
    table_of,
)

if TYPE_CHECKING:
    from tagmatch.model.arrays import F64Array, I64Array

_U = np.uint64

_MANY = 2**31 - 1
_MOST_FILTERS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class LocationOptions:
    """What the workload is drawn from; each option's meaning and source is its `text`, from which its help is made.

    CLCB: see the package. Where a range is given, each number in it is as likely as any other.
    """

    seed: int = number(1, 0, 2**63 - 1, "Workloads with different seeds share their statistics only.")
    subscribers: int = number(
        250_000, 1, _MANY, "Subscribers, with a subscription each; their numbers are the keys (CLCB Table 1)."
    )
    filters_each: int = number(10, 1, 10_000, "Filters of a subscriber, each with an area (CLCB Table 1).")
    min_constraints: int = number(3, 1, 64, "Fewest constraints of a filter (CLCB Table 1).")
    max_constraints: int = number(5, 1, 64, "Most constraints of a filter, each on another attribute (CLCB Table 1).")
    min_attributes: int = number(3, 1, 64, "Fewest attributes of a message (CLCB Table 1).")
    max_attributes: int = number(5, 1, 64, "Most attributes of a message (CLCB Table 1).")
    names: int = number(100, 1, 1_000_000, "Different names of attributes (CLCB Table 1).")
    topic_names: int = number(
        5, 1, 64, "Names of a topic; a filter and a message take theirs from one (chosen; else selectivity is not met)."
    )
    values: int = number(100, 2, 2**31, "Different values of an attribute: 0, 1, 2, ... (chosen, as in PCM Table 1).")
    selectivity: float = number(
        0.005, 0, 1, "Share of the messages that a filter's content is satisfied by (CLCB Table 1)."
    )
    coverage: float = number(0.0001, 0, 1, "Share of the unit square that an area covers (CLCB Table 1).")
    spots: int = number(
        0, 0, 1_000_000, "Places that areas and messages gather around; 0 for a uniform distribution (CLCB Table 1)."
    )
    spot_exponent: float = number(
        1.0,
        0,
        10,
        "Exponent of Zipf's law, which the frequency of these places follows (chosen; CLCB §5 names the law).",
    )
    spread: float = number(0.01, 0, 1, "Standard deviation of the distance to such a place, on each axis (chosen).")
    together: int = number(
        0,
        0,
        1,
        "1 for filters of a subscriber around one place, where the subscriber is; 0 for a place each (chosen: CLCB "
        "§2 has areas of filters, not of subscribers, and §5 moves filters one by one).",
    )
    degrees: float = number(
        0.0,
        0,
        10,
        "Side of the square in degrees, around longitude and latitude 0, for areas and positions on the sphere; 0 for "
        "the unit plane.",
    )

    def __post_init__(self) -> None:
        check_numbers(self)
        for what in ("constraints", "attributes"):
            if (high := check_range(self, what)) > self.topic_names:
                raise InvalidValueError(f"max_{what} must be at most topic_names, {self.topic_names}, not {high}")
        if self.names % self.topic_names:
            raise InvalidValueError(f"names must be a multiple of topic_names, {self.topic_names}, not {self.names}")
        if self.filters > _MOST_FILTERS:
            raise InvalidValueError(
                f"subscribers times filters_each must be at most {_MOST_FILTERS}, not {self.filters}"
            )
        if self.min_constraints > self.max_attributes:
            raise InvalidValueError(
                f"min_constraints must be at most max_attributes, {self.max_attributes}, not {self.min_constraints}"
            )
        if not self.selectivity:
            raise InvalidValueError("selectivity must be more than 0")
        if self.values_hold > 1:
            raise InvalidValueError(
                f"selectivity must be at most {self.selectivity / self.values_hold:.3g}, the share of the messages "
                f"that have all names of a filter, not {self.selectivity:g}"
            )
        if self.constraint_holds < 1 / self.values:
            raise InvalidValueError(
                f"selectivity must be more than {self.selectivity:g}: constraints would hold for less than one of the "
                "values; have more names or more values"
            )

    @property
    def filters(self) -> int:
        """Filters of all subscribers."""
        return self.subscribers * self.filters_each

    @property
    def topics(self) -> int:
        """Topics that share out the names."""
        return self.names // self.topic_names

    @property
    def tag_topics(self) -> int:
        """Topics of tags, as many as make tags alone as selective as constraints."""
        return max(1, round(sum(self._within().values()) / self.selectivity))

    @property
    def values_hold(self) -> float:
        """Share of the messages with all names of a filter that are to satisfy its constraints."""
        return self.selectivity * self.topics / sum(self._within().values())

    @property
    def constraint_holds(self) -> float:
        """Probability that a constraint holds for the value of an attribute that a message has."""
        within = self._within()
        target = self.values_hold * sum(within.values())
        low, high = 0.0, 1.0
        while low < (middle := (low + high) / 2) < high:
            if sum(share * middle**size for size, share in within.items()) < target:
                low = middle
            else:
                high = middle
        return high

    @property
    def radius(self) -> float:
        """Radius of each area, for which the square is a side wide; single precision has it, as CLCB's vectors do."""
        return float(np.float32(math.sqrt(self.coverage / math.pi)))

    def _within(self) -> dict[int, float]:
        """By number of a filter's constraints, how likely it is that a message of its topic has all of its names."""
        sizes = range(self.min_constraints, self.max_constraints + 1)
        others = range(self.min_attributes, self.max_attributes + 1)
        return {
            size: sum(math.comb(each, size) / math.comb(self.topic_names, size) for each in others)
            / (len(sizes) * len(others))
            for size in sizes
        }


_CLCB = LocationOptions()
#: `clcb` is the default scenario of CLCB's Table 1, `zipf` that of its Figure 4, and in `every` all content matches, as
#: in its Figure 6 (b), so that areas alone select
SCENARIOS: Mapping[str, LocationOptions] = {
    "clcb": _CLCB,
    "zipf": replace(_CLCB, spots=1000),
    "every": replace(_CLCB, names=5, min_attributes=5, selectivity=1.0),
}


class DrawnPlaces(NamedTuple):
    """What places are drawn from: `sums` has the running sums of the spots' shares; without spots, all is uniform."""

    sums: F64Array
    x: F64Array
    y: F64Array
    spread: float


class LocationContent(NamedTuple):
    """What constraints and attributes are drawn from; `holds` is how likely it is that a constraint holds."""

    topics: int
    topic_names: int
    values: int
    holds: float


@inlined
def _single(value):
    """Round to single precision, within the unit square."""
    wrapped = np.float64(np.float32(value - math.floor(value)))
    return wrapped if wrapped < 1.0 else 0.0


@kernel
def draw_places(first, each, seed, places, x, y):
    """Write the place of each row from `first` on; `each` rows that follow one another share one."""
    for i in range(len(x)):
        random = random_of((first + i) // each, seed)
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
def draw_names(first, seed, topics, topic_names, offsets, names):
    """Write, ascending, names of one topic for each row from `first` on; those of the i-th begin at `offsets[i]`."""
    for i in range(len(offsets) - 1):
        random = random_of(first + i, seed) + _U(1)
        topic = below(random, topics)
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
        random = random_of(first + i, seed)
        for j in range(offsets[i], offsets[i + 1]):
            drawn[j] = below(random + _U(j - offsets[i]), values)


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
        random = random_of(first + i, seed)
        for j in range(offsets[i], offsets[i + 1]):
            kind, second, third = uniform(random), uniform(random + _U(1)), random + _U(2)
            random += _U(3)
            if kind < 0.5:
                share = holds + width * (2.0 * second - 1.0)
                end = np.int64(math.floor(share * values + uniform(third)))
                less = kind < 0.25
                operators[j] = LESS if less else GREATER
                operands[j] = end if less else values - 1 - end
            else:
                operators[j] = EQUAL if second < equal else UNEQUAL
                operands[j] = values if 1.0 - second <= outside else below(third, values)


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


#: Parts of the workload with their own random numbers
_DRAWN = (
    "spots", "filters", "messages", "moves", "moved", "filter tags", "message tags", "filter names", "message names",
    "operators", "values",
)  # fmt: skip


def subscriptions_schema(area: pa.DataType) -> pa.Schema:
    """Columns of subscriptions with areas of this type."""
    tags, constraints = pa.list_(pa.string()), pa.list_(CONSTRAINT)
    return pa.schema({"key": pa.uint64(), "tags": tags, "constraints": constraints, "area": area})


def messages_schema(point: pa.DataType, attributes: Mapping[str, pa.DataType]) -> pa.Schema:
    """Columns of messages with positions of this type and such attributes."""
    return pa.schema({"tags": pa.list_(pa.string()), "location": point, **attributes})


class LocationWorkload:
    """The workload of areas.

    A filter has an area, and content: constraints on attributes, `a0`, `a1`, ..., whose values are integers from 0 to
    `values` - 1, or tags, `t0`, `t1`, .... Constraints and tags are drawn independently of each other, and each alone
    selects `selectivity` of the messages; a filter with both selects next to nothing. Places have single precision.
    """

    def __init__(self, options: LocationOptions) -> None:
        self._options = options
        self.filters = options.filters
        self.attributes = [f"a{name}" for name in range(options.names)]
        self._names = pa.array(self.attributes)
        self._content = LocationContent(options.topics, options.topic_names, options.values, options.constraint_holds)
        self._seeds = dict(zip(_DRAWN, seeds_of(options.seed, len(_DRAWN)), strict=True))
        x, y = np.empty(options.spots), np.empty(options.spots)
        draw_places(0, 1, self._seeds["spots"], DrawnPlaces(np.empty(0), x, y, 0.0), x, y)
        shares = np.arange(1.0, options.spots + 1) ** -options.spot_exponent
        self._places = DrawnPlaces(running_sums(shares), x, y, float(options.spread))
        sphere = options.degrees > 0
        self._area, self._point = (SPHERE_AREA, SPHERE_POINT) if sphere else (PLANE_AREA, PLANE_POINT)
        self.subscriptions_schema = subscriptions_schema(self._area)
        self.messages_schema = messages_schema(self._point, {name: pa.int64() for name in self.attributes})
        self.moves_schema = pa.schema({"filter": pa.uint32(), "key": pa.uint64(), "location": self._point})

    def subscriptions(
        self, first: int, last: int, *, content: ContentKind = "constraints", threads: int = 1
    ) -> pa.Table:
        """Generate filters `first` to `last`, in the order of their subscriptions."""
        _check(first, last, self.filters, content)

        def make(begin: int, end: int) -> pa.RecordBatch:
            keys = np.arange(begin, end, dtype=np.uint64) // np.uint64(self._options.filters_each)
            columns = [pa.array(keys), self._tag_lists("filter", begin, end, content), self._asked(begin, end, content)]
            return pa.record_batch([*columns, self._areas(begin, end)], schema=self.subscriptions_schema)

        return table_of(make, first, last, self._options.max_constraints, threads)

    def messages(self, first: int, last: int, *, content: ContentKind = "constraints", threads: int = 1) -> pa.Table:
        """Generate messages `first` to `last`."""
        _check(first, last, MAX_ROWS, content)

        def make(begin: int, end: int) -> pa.RecordBatch:
            columns = [self._tag_lists("message", begin, end, content), self._located(begin, end, "messages")]
            values = self._values(begin, end, content)
            return pa.record_batch([*columns, *values], schema=self.messages_schema)

        return table_of(make, first, last, self._options.names, threads)

    def moves(self, first: int, last: int) -> pa.Table:
        """Generate moves `first` to `last`, each of a random filter to anywhere (CLCB §5)."""
        check_rows(first, last, MAX_ROWS)
        filters = draw_counts(first, last, self._seeds["moved"], 0, self.filters - 1)
        keys = (filters // self._options.filters_each).astype(np.uint64)
        moved = self._located(first, last, "moves")
        return pa.table([pa.array(filters.astype(np.uint32)), pa.array(keys), moved], schema=self.moves_schema)

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
        """Offsets of rows, and names from one of these topics each."""
        options = self._options
        kind = "constraints" if what.startswith("filter") else "attributes"
        low, high = getattr(options, f"min_{kind}"), getattr(options, f"max_{kind}")
        offsets = offsets_of(draw_counts(first, last, self._seeds[what], low, high))
        names = np.empty(int(offsets[-1]), np.int64)
        draw_names(first, self._seeds[what], topics, options.topic_names, offsets, names)
        return offsets, names

    def _tag_lists(self, whose: str, first: int, last: int, content: ContentKind) -> pa.ListArray:
        if content == "constraints":
            return no_lists(last - first, pa.string())
        offsets, names = self._lists_of_names(first, last, f"{whose} tags", self._options.tag_topics)
        tags = pc.binary_join_element_wise(pa.scalar("t"), pa.array(names).cast(pa.string()), pa.scalar(""))
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), tags)

    def _asked(self, first: int, last: int, content: ContentKind) -> pa.ListArray:
        if content == "tags":
            return no_lists(last - first, CONSTRAINT)
        offsets, names = self._lists_of_names(first, last, "filter names", self._options.topics)
        operators, operands = np.empty(len(names), np.uint8), np.empty(len(names), np.int64)
        draw_constraints(first, self._seeds["operators"], offsets, self._content, operators, operands)
        asked = constraints_of(self._names.take(pa.array(names)), operators, pa.array(operands))
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), asked)

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


def _check(first: int, last: int, count: int, content: str) -> None:
    check_rows(first, last, count)
    if content not in get_args(ContentKind):
        raise InvalidValueError(f"content must be one of {', '.join(get_args(ContentKind))}, not {content!r}")


#: Columns of places, with the types that theirs become
PLACES = pa.schema(
    {
        "country": pa.string(),
        "timezone": pa.string(),
        "population": pa.int64(),
        "lat": pa.float64(),
        "lon": pa.float64(),
    }
)
#: Radii of alerts, and how far a subscriber is from the middle of a place, in metres
_LEAST_METRES, _MOST_METRES = 2_000.0, 100_000.0
_AROUND_METRES = 5_000.0
#: An alert wants places with more inhabitants than this
_LEAST_PEOPLE, _MOST_PEOPLE = 100.0, 1_000_000.0
_HALF = 0.5


class NearMe(NamedTuple):
    """Subscriptions, messages and moves, with columns as `LocationWorkload` with `degrees` has them."""

    subscriptions: pa.Table
    messages: pa.Table
    moves: pa.Table


def near_me(places: pa.Table, filters: int, messages: int, seed: int, *, moves: int = 0) -> NearMe:
    """Alerts "near me": a circle around a subscriber, and how large a place must be.

    A subscriber is 5 km or so from a place, which is drawn by its population, as people live there. Radii are from 2 to
    100 km and least populations from 100 to a million, both evenly on a logarithmic scale. Half of the filters also ask
    for the tag of the place's country. A message is about a place, each as likely: from its location, with tags of its
    country and time zone, and its population as an attribute. A move brings a filter to a subscriber elsewhere.
    """
    places = _checked(places)
    random = np.random.default_rng(seed)
    people = np.maximum(places["population"].to_numpy().astype(np.float64), 1.0)
    shares = people / people.sum()
    homes = random.choice(len(places), filters, p=shares)
    radii = np.exp(random.uniform(np.log(_LEAST_METRES), np.log(_MOST_METRES), filters))
    area = pa.StructArray.from_arrays([*_around(places, homes, random), pa.array(radii)], fields=list(SPHERE_AREA))
    least = np.exp(random.uniform(np.log(_LEAST_PEOPLE), np.log(_MOST_PEOPLE), filters)).astype(np.int64)
    with_country = np.flatnonzero(random.random(filters) < _HALF)
    countries = _tags("country", places["country"].take(pa.array(homes[with_country])))
    tags = lists_of(np.isin(np.arange(filters), with_country).astype(np.int64), countries)
    keys = pa.array(np.arange(filters, dtype=np.uint64))
    more_people = constraints_of(
        pa.repeat(pa.scalar("population"), filters), np.full(filters, GREATER, np.uint8), pa.array(least)
    )
    asked = lists_of(np.ones(filters, np.int64), more_people)
    stored = pa.table([keys, tags, asked, area], schema=subscriptions_schema(SPHERE_AREA))

    drawn = places.take(pa.array(random.integers(0, len(places), messages)))
    both = [_tags(name, drawn[name]) for name in ("country", "timezone")]
    order = np.arange(2 * messages).reshape(2, messages).T.ravel()
    tags = lists_of(np.full(messages, 2, np.int64), pa.concat_arrays(both).take(pa.array(order)))
    schema = messages_schema(SPHERE_POINT, {"population": pa.int64()})
    sent = pa.table([tags, _struct(drawn["lon"], drawn["lat"]), drawn["population"]], schema=schema)

    moved = random.integers(0, max(filters, 1), moves if filters else 0)
    to = _struct(*_around(places, random.choice(len(places), len(moved), p=shares), random))
    columns = {"filter": moved.astype(np.uint32), "key": moved.astype(np.uint64), "location": to}
    return NearMe(stored, sent, pa.table(columns))


def _checked(places: pa.Table) -> pa.RecordBatch:
    """Places with the columns `PLACES`, and a sound value in each; InvalidValueError."""
    if missing := [name for name in PLACES.names if name not in places.column_names]:
        raise InvalidValueError(f"places have no column {missing[0]!r}; have {', '.join(PLACES.names)}")
    if not len(places):
        raise InvalidValueError("places has no rows; have at least one")
    columns = []
    for name, kind in zip(PLACES.names, PLACES.types, strict=True):
        try:
            column = places[name].cast(kind).combine_chunks()
        except pa.ArrowException as error:
            raise InvalidValueError(f"places: column {name!r} must be of {kind}: {error}") from None
        sound = column.is_valid()
        if name in LIMITS:
            sound = pc.and_kleene(sound, pc.less_equal(pc.abs(column), LIMITS[name]))
        if not pc.all(sound).as_py():
            row = sound.index(False).as_py()
            wanted = f"from -{LIMITS[name]:.0f} to {LIMITS[name]:.0f}" if name in LIMITS else "there"
            raise InvalidValueError(f"places: column {name!r}: row {row} must be {wanted}, not {column[row].as_py()}")
        columns.append(column)
    return pa.record_batch(columns, schema=PLACES)


def _around(places: pa.RecordBatch, rows: I64Array, random: np.random.Generator) -> tuple[pa.Array, pa.Array]:
    """Longitudes and latitudes not far from places."""
    lon, lat = (places[name].to_numpy()[rows] for name in ("lon", "lat"))
    east, north = random.normal(0.0, np.degrees(_AROUND_METRES / EARTH_METRES), (2, len(rows)))
    # On a pole, any longitude will do
    lon = lon + east / np.maximum(np.cos(np.radians(lat)), 1e-3)
    return pa.array((lon + 180.0) % 360.0 - 180.0), pa.array(np.clip(lat + north, -90.0, 90.0))


def _struct(lon: pa.Array, lat: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays([lon, lat], fields=list(SPHERE_POINT))


def _tags(kind: str, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(kind), values, pa.scalar(":"))
