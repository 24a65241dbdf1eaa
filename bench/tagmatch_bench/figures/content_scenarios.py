"""What constraints are measured on: scenarios of PCM and of CCM, dense ones, real data, and tags beside constraints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tagmatch.model.arrays import offsets_of
from tagmatch.workloads.content import SCENARIOS, Content, ContentOptions
from tagmatch_bench.figures.content_real import RealData, cities, packages
from tagmatch_bench.figures.published import DEFAULT, ZIPF
from tagmatch_bench.harness.content import Scenario
from tagmatch_bench.systems.matcher import UnavailableError

if TYPE_CHECKING:
    from tagmatch_bench.harness.bench import Bench


#: Of the default scenario of both papers, in the mean
_CONSTRAINTS_OF_A_FILTER = 4
#: Papers whose default scenario `SCENARIOS` has, under their names in lower case
Paper: TypeAlias = Literal["PCM", "CCM"]

#: Of the checkout; an installed package has no examples
_DATA = Path(__file__).resolve().parents[3] / "examples" / "data"


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
    """A paper's figure: what is on its axis, and the options of each place; the default scenario is one of them."""

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
    """Options with one number, at least 1, in the place of a range."""
    return dict.fromkeys((f"min_{what}", f"max_{what}"), max(1, count))


def pcm_figures(constraints: int) -> list[Figure]:
    """Return Figures 6 to 9 of PCM, from this number of constraints in the default one (of which PCM has a million)."""
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
    """Filters on Debian packages, and on cities.

    Raises
    ------
    UnavailableError
        The data is not there.
    """
    yield _of_real("Debian packages", packages(_read(_DATA / "debian_tags.parquet"), filters, messages, seed))
    yield _of_real("cities", cities(_read(cities_at or _DATA / "cities.parquet"), filters, messages, seed))


def _read(path: Path) -> pa.Table:
    if not path.is_file():
        raise UnavailableError(f"there is no {path}")
    return pq.read_table(path)


def _of_real(name: str, data: RealData) -> Scenario:
    return Scenario(name, data.in_numbers, data.messages_in_numbers, data.subscriptions, data.messages)


# -- tags and constraints ----------------------------------------------------------------------------------------------

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
    """Make the filters of PCM's default scenario with a set of the Twitter-like workload each, and a key of its own.

    A message has the tags of two of the sets, and attributes that satisfy the first one's constraints.
    """
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
    return pa.ListArray.from_arrays(pa.array(offsets_of(np.bincount(row_of, minlength=len(left)), np.int32)), flat)


INTERFACES = SCENARIOS["ccm"].interfaces

#: With which half of all constraints have the most frequent of 100 names, as §5, Distribution of Names, says
_EXPONENT = 1.7
_FEW_NAMES = 10
_OF_A_DENSE_FILTER = 10
_FILTERS_OF_AN_INTERFACE = 25_000

#: Places of Table 2's panel that are not of the paper
TEN_NAMES, DENSE = f"{_FEW_NAMES} names", "dense"


def ccm_default(constraints: int, messages: int, seed: int) -> Scenario:
    """CCM's default scenario, with about this number of constraints."""
    return of_paper("CCM", constraints, messages, seed)


def ccm_table2(constraints: int, messages: int, seed: int) -> dict[str | float, Scenario]:
    """Return the scenarios of Table 2, and two that match much."""
    sizes = constraints, messages, seed
    return {
        DEFAULT: ccm_default(*sizes),
        ZIPF: of_paper("CCM", *sizes, f"CCM, {ZIPF}", zipf=_EXPONENT),
        TEN_NAMES: of_paper("CCM", *sizes, f"CCM, {TEN_NAMES}", names=_FEW_NAMES),
        DENSE: dense(max(1, constraints // _OF_A_DENSE_FILTER), messages, seed),
    }


def ccm_figures(constraints: int) -> list[Figure]:
    """Return Figures 6 to 11, from this number of constraints in the default one (of which CCM has a million).

    In Figure 7 the number of filters is fixed, in PCM's that of constraints.
    """
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
