"""Scenarios of constraints: PCM's and CCM's, dense ones, real data, and constraints with tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, offsets_of
from tagmatch_bench.figures.published import DEFAULT, ZIPF
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.content import Scenario
from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.workloads.content import SCENARIOS, Content, ContentOptions, lists_of

#: Of the default scenario of both papers, in the mean
_CONSTRAINTS_OF_A_FILTER = 4
#: Papers whose default scenario `SCENARIOS` has, under their names in lower case
Paper: TypeAlias = Literal["PCM", "CCM"]

#: Of the checkout; an installed package has no examples
DATA = Path(__file__).resolve().parents[3] / "examples" / "data"


def pcm(constraints: int, messages: int, seed: int, name: str = "", **changes: Any) -> Scenario:
    """PCM's default scenario with about this number of constraints, and other changes of its options."""
    return of_paper("PCM", constraints, messages, seed, name, **changes)


def of_paper(paper: Paper, constraints: int, messages: int, seed: int, name: str = "", **changes: Any) -> Scenario:
    """A paper's default scenario with about this number of constraints, and other changes of its options."""
    default = SCENARIOS[paper.lower()]
    filters = constraints / (_CONSTRAINTS_OF_A_FILTER * default.interfaces)
    low, high = max(1, round(0.9 * filters)), max(1, round(1.1 * filters))
    options = replace(default, seed=seed, **({"min_filters": low, "max_filters": high} | changes))
    return _made(name or f"{paper}, {constraints:,} constraints", options, messages)


def dense(filters: int, messages: int, seed: int) -> Scenario:
    """Filters with 10 intervals, messages with all 20 attributes."""
    return _made(f"dense, {filters:,} filters", replace(SCENARIOS["dense"], seed=seed, interfaces=filters), messages)


def _made(name: str, options: ContentOptions, messages: int) -> Scenario:
    content = Content(options)
    made = content.subscriptions(0, content.filters).select(["key", "constraints"])
    return Scenario(name, made, content.messages(0, messages).combine_chunks())


class Figure(NamedTuple):
    """A paper's figure: the meaning of its axis, and the options of each place; the default scenario is one of them."""

    number: int
    axis: str
    places: dict[float, dict[str, Any]]
    paper: Paper = "PCM"

    @property
    def log_x(self) -> bool:
        """Whether the places are so far apart that the axis should be logarithmic."""
        return max(self.places) >= 10 * min(self.places) > 0

    def scenarios(self, constraints: int, messages: int, seed: int) -> Iterator[tuple[float, Scenario]]:
        """The scenarios, from this number of constraints in the default one."""
        for place, changes in self.places.items():
            name = f"{self.paper} Figure {self.number}, {place:g} {self.axis}"
            yield place, of_paper(self.paper, constraints, messages, seed, name, **changes)


def filters_of_an_interface(constraints: int) -> int:
    """Return the filters of an interface, in the mean, where the default scenario has this number of constraints."""
    return max(1, round(constraints / (_CONSTRAINTS_OF_A_FILTER * SCENARIOS["pcm"].interfaces)))


def exactly(what: str, count: int) -> dict[str, Any]:
    """Options with one number, at least 1, in place of a range."""
    return dict.fromkeys((f"min_{what}", f"max_{what}"), max(1, count))


def pcm_figures(constraints: int) -> list[Figure]:
    """Return Figures 6 to 9 of PCM, from this number of constraints in the default one (a million in PCM)."""
    of_one = filters_of_an_interface(constraints)
    shorter = {
        float(each): exactly("constraints", each) | exactly("filters", _CONSTRAINTS_OF_A_FILTER * of_one // each)
        for each in (1, 2, 3, 5, 7, 9)
    }
    fewer = {
        float(max(1, of_one * share // 100)): exactly("filters", of_one * share // 100) for share in (1, 10, 100, 1000)
    }
    return [
        Figure(6, "attributes", {float(each): exactly("attributes", each) for each in (1, 3, 5, 7, 9)}),
        Figure(7, "constraints a filter", shorter),
        Figure(8, "filters an interface", fewer),
        Figure(9, "interfaces", {float(each): {"interfaces": each} for each in (10, 30, 100)}),
    ]


def real(filters: int, messages: int, seed: int, cities_at: Path | None) -> Iterator[Scenario]:
    """Filters on Debian packages, and on cities."""
    yield _packages(read(DATA / "debian_tags.parquet"), filters, messages, seed)
    yield _cities(read(cities_at or DATA / "cities.parquet"), filters, messages, seed)


def read(path: Path) -> pa.Table:
    """A file of data; raises UnavailableError."""
    if not path.is_file():
        raise UnavailableError(f"there is no {path}")
    return pq.read_table(path)


# Each message is a row of the data, and each filter asks for what a random row has, in some of the ways that the data
# allows, so that it matches that row at least. Everything comes twice: with texts and several values, as the data has
# them, and in numbers only, one for each attribute of a message, for systems that take nothing else. There texts are
# their places in the order of all texts, and each value of an attribute with several becomes its own attribute.

#: Number of ways in which filters ask, of all ways
_FEWEST, _MOST = 2, 4
_PREFIX = 3
#: Half of the side of a square that a filter on places asks for, in degrees
_LEAST_DEGREES, _MOST_DEGREES = 0.5, 5.0


class _Test(NamedTuple):
    """A way to ask: of filters `rows`, each once, for an attribute; the operand is a text or numbers.

    `low` and `high` are the numbers that a text lies between, or the operand itself if it is a number.
    """

    rows: I64Array
    names: pa.Array
    operator: str
    low: F64Array
    high: F64Array
    texts: pa.Array | None = None
    names_in_numbers: pa.Array | None = None


def _cities(data: pa.Table, filters: int, messages: int, seed: int) -> Scenario:
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
        tests.append(_Test(rows, pa.repeat(name, len(rows)), "=", place, place, texts))
    rows = np.flatnonzero(asked[:, 2])
    tests.append(_prefixes(rows, "name", columns["name"].take(pa.array(about[rows])), orders["name"]))
    rows = np.flatnonzero(asked[:, 3])
    population = numbers["population"][about[rows]]
    tests.append(_Test(rows, pa.repeat("population", len(rows)), ">", np.floor(population / 2) - 1, population))
    rows = np.flatnonzero(asked[:, 4])
    half = random.uniform(_LEAST_DEGREES, _MOST_DEGREES, len(rows))
    for name in ("lat", "lon"):
        middle = numbers[name][about[rows]]
        tests.append(_Test(rows, pa.repeat(name, len(rows)), "between", middle - half, middle + half))

    drawn = pa.array(random.integers(0, len(data), messages))
    in_numbers = {name: pa.array(order.places.astype(np.float64)) for name, order in orders.items()}
    in_numbers |= {name: pa.array(column) for name, column in numbers.items()}
    names = [*orders, *numbers]
    sent = data.select(names).take(drawn).combine_chunks()
    sent_in_numbers = pa.table(in_numbers).select(names).take(drawn).combine_chunks()
    return _both_ways("cities", filters, tests, sent, sent_in_numbers)


def _packages(data: pa.Table, filters: int, messages: int, seed: int) -> Scenario:
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
        own_columns[facet] = lists_of(np.bincount(row_of[at], minlength=messages), values.take(pa.array(at)))
    for tag in flat.unique().to_pylist():
        there = np.zeros(messages, np.bool_)
        there[row_of[np.flatnonzero(pc.equal(flat, tag))]] = True
        in_numbers[tag] = pa.array(np.ones(messages), mask=~there)
    return _both_ways("Debian packages", filters, tests, pa.table(own_columns), pa.table(in_numbers))


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


def _prefixes(rows: I64Array, name: str, texts: pa.Array, order: _Order) -> _Test:
    prefixes = pc.utf8_slice_codeunits(texts, 0, _PREFIX)
    return _Test(rows, pa.repeat(name, len(rows)), "prefix", *order.range_of(prefixes.to_pylist()), prefixes)


def _facets(tags: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The facet of each tag, and its value."""
    parts = pc.extract_regex(tags, "^(?P<facet>[^:]*)::(?P<value>.*)$")
    return parts.field("facet"), parts.field("value")


def _both_ways(name: str, filters: int, tests: list[_Test], sent: pa.Table, sent_in_numbers: pa.Table) -> Scenario:
    given, in_numbers = (_subscriptions(filters, tests, in_numbers=each) for each in (False, True))
    return Scenario(name, in_numbers, sent_in_numbers, given, sent)


def _subscriptions(filters: int, tests: Sequence[_Test], *, in_numbers: bool) -> pa.Table:
    """A subscription for each filter, whose key is its number; in numbers, a prefix is an interval."""
    columns: list[tuple[pa.Array, ...]] = []
    for test in tests:
        operator = "between" if in_numbers and test.operator == "prefix" else test.operator
        names = test.names_in_numbers if in_numbers and test.names_in_numbers is not None else test.names
        nulls, low, high = (pa.array(column, pa.float64()) for column in ([None] * len(test.rows), test.low, test.high))
        is_text = test.texts is not None and not in_numbers
        texts = pa.nulls(len(test.rows)) if test.texts is None or in_numbers else test.texts
        upper = high if operator == "between" else nulls
        operators = pa.repeat(operator, len(test.rows))
        columns.append((names.cast(pa.string()), operators, nulls if is_text else low, upper, texts.cast(pa.string())))
    fields = ["attr", "op", "value", "upper", *(() if in_numbers else ("text",))]
    parts = [pa.concat_arrays(list(each)) for each in zip(*columns, strict=True)][: len(fields)]
    owners = np.concatenate([each.rows for each in tests])
    struct = pa.StructArray.from_arrays(parts, fields).take(pa.array(np.argsort(owners, kind="stable")))
    lists = lists_of(np.bincount(owners, minlength=filters), struct)
    return pa.table({"key": pa.array(np.arange(filters, dtype=np.uint64)), "constraints": lists})


TAGS, CONSTRAINTS, BOTH = "tags alone", "constraints alone", "tags and constraints"

#: What satisfies a constraint: its value and so much more
_STEPS = {"=": 0, "!=": 1, "<": -1, ">": 1}


class Mixed(NamedTuple):
    """Subscriptions with tags, constraints, or both, and messages that have both, each for one of them at least."""

    subscriptions: dict[str, pa.Table]
    messages: pa.Table

    def asked(self, what: str) -> pa.Table:
        """The messages with tags, attributes, or both."""
        return {
            TAGS: self.messages.select(["tags"]),
            CONSTRAINTS: self.messages.drop_columns(["tags"]),
            BOTH: self.messages,
        }[what]


def mixed(bench: Bench, constraints: int, messages: int) -> Mixed:
    """Make the filters of PCM's default scenario each with a set of the Twitter-like workload and its own key."""
    seed = bench.options.seed
    filters = pcm(constraints, 1, seed).subscriptions["constraints"].combine_chunks()
    tags = bench.workload(len(filters), 1).sets["tags"].combine_chunks()
    keys = pa.array(np.arange(len(filters), dtype=np.uint64))
    random = np.random.default_rng(seed)
    about, others = random.integers(0, len(filters), (2, messages))
    sent = {"tags": _side_by_side(tags.take(pa.array(about)), tags.take(pa.array(others)))}
    own = filters.take(pa.array(about))
    row_of, flat = pc.list_parent_indices(own).to_numpy(), own.flatten()
    names, operators, values = (pc.struct_field(flat, field) for field in ("attr", "op", "value"))
    steps = np.array(list(_STEPS.values()))[pc.index_in(operators, pa.array(list(_STEPS))).to_numpy()]
    for name in pc.unique(names).to_pylist():
        at = np.flatnonzero(pc.equal(names, name))
        column, there = np.zeros(messages, np.int64), np.zeros(messages, np.bool_)
        column[row_of[at]], there[row_of[at]] = values.to_numpy()[at] + steps[at], True
        sent[name] = pa.array(column, mask=~there)
    columns = {"key": keys, "tags": tags, "constraints": filters}
    tables = {TAGS: ["key", "tags"], CONSTRAINTS: ["key", "constraints"], BOTH: list(columns)}
    return Mixed(
        {what: pa.table({each: columns[each] for each in some}) for what, some in tables.items()}, pa.table(sent)
    )


def _side_by_side(left: pa.ListArray, right: pa.ListArray) -> pa.ListArray:
    """Lists with the elements of two, row by row."""
    row_of = np.concatenate([pc.list_parent_indices(each).to_numpy() for each in (left, right)])
    flat = pa.concat_arrays([left.flatten(), right.flatten()]).take(pa.array(np.argsort(row_of, kind="stable")))
    return lists_of(np.bincount(row_of, minlength=len(left)), flat)


INTERFACES = SCENARIOS["ccm"].interfaces

#: With which half of all constraints have the most frequent of 100 names, as §5, Distribution of Names, says
_EXPONENT = 1.7
FEW_NAMES, OF_A_DENSE_FILTER = 10, 10
_FILTERS_OF_AN_INTERFACE = 25_000

#: Places of Table 2's panel that are not of the paper
TEN_NAMES, DENSE = f"{FEW_NAMES} names", "dense"


def ccm_default(constraints: int, messages: int, seed: int) -> Scenario:
    """CCM's default scenario, with about this number of constraints."""
    return of_paper("CCM", constraints, messages, seed)


def ccm_table2(constraints: int, messages: int, seed: int) -> dict[str | float, Scenario]:
    """Return the scenarios of Table 2, and two that match much."""
    sizes = constraints, messages, seed
    return {
        DEFAULT: ccm_default(*sizes),
        ZIPF: of_paper("CCM", *sizes, f"CCM, {ZIPF}", zipf=_EXPONENT),
        **much("CCM", *sizes),
    }


def much(paper: Paper, constraints: int, messages: int, seed: int) -> dict[str | float, Scenario]:
    """Return scenarios that match much: few names of attributes, and dense filters."""
    few = of_paper(paper, constraints, messages, seed, f"{paper}, {TEN_NAMES}", names=FEW_NAMES)
    return {TEN_NAMES: few, DENSE: dense(max(1, constraints // OF_A_DENSE_FILTER), messages, seed)}


def ccm_figures(constraints: int) -> list[Figure]:
    """Return Figures 6 to 11, from this number of constraints in the default one (a million in CCM)."""
    of_one = filters_of_an_interface(constraints)
    longer = {float(each): exactly("constraints", each) | exactly("filters", of_one) for each in (1, 2, 3, 4, 5, 7, 9)}
    filters = [
        max(1, of_one * each // _FILTERS_OF_AN_INTERFACE) for each in (100, 1_000, 10_000, 25_000, 100_000, 250_000)
    ]
    as_in_pcm = {figure.number: figure._replace(paper="CCM") for figure in pcm_figures(constraints)}
    return [
        as_in_pcm[6],
        Figure(7, "constraints a filter", longer, "CCM"),
        Figure(8, "filters an interface", {float(each): exactly("filters", each) for each in filters}, "CCM"),
        as_in_pcm[9],
        Figure(10, "names", {float(each): {"names": each} for each in (10, 30, 100, 300, 1_000)}, "CCM"),
        Figure(
            11,
            "% of constraints on numbers",
            {float(each): {"strings": 1 - each / 100} for each in (0, 25, 50, 75, 100)},
            "CCM",
        ),
    ]
