"""Queries a second: Tables 1 and 3, Figures 2 to 5 and 7, and the two layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from tagmatch_bench.figures import published
from tagmatch_bench.harness.bench import Bench, Rate
from tagmatch_bench.harness.data import Workload, extend
from tagmatch_bench.harness.report import percent
from tagmatch_bench.harness.results import Answers, Panel, Result, Row, Target
from tagmatch_bench.harness.timing import alternate
from tagmatch_bench.systems.catalogue import (
    BALANCED,
    BALANCED_GPU,
    CPU_ONLY,
    ICN,
    ON_BOTH,
    OURS,
    PREFIX_TREE,
    RAREST,
    RAREST_GPU,
    SYSTEMS,
    TAGMATCH_GPU,
    TAGMATCH_HYBRID,
    Build,
    some,
    tagmatch,
)
from tagmatch_bench.systems.tagmatch import build_index

_QUERIES_A_SECOND = "queries/s"
# Keys of a set, and the share of the full database whose memory is enough for them
_KEYS = (1, 5, 50)
_SHARE_WITH_KEYS = 0.05
_ON_GPU = (RAREST_GPU, BALANCED_GPU, TAGMATCH_GPU, TAGMATCH_HYBRID)
_TREES_AND_OURS = (RAREST, BALANCED, CPU_ONLY, *_ON_GPU, PREFIX_TREE)


@dataclass(frozen=True, slots=True)
class _Place:
    """A place on an x axis: what it is called in tables of answers, and which systems meet which workload there."""

    x: str | float
    name: str
    systems: Mapping[str, Build]
    workload: Workload


def _match_and_unique(
    bench: Bench, result: Result, places: Iterable[_Place], *, of_keys: bool = False, **looks: Any
) -> tuple[Panel, Panel]:
    """Add and fill a panel for `match` and one for `match-unique`, of queries a second or of keys."""
    what, unit = (", output", "keys/s") if of_keys else ("", _QUERIES_A_SECOND)
    match, unique = (result.panel(name + what, unit=unit, **looks) for name in ("match", "match-unique"))
    for place in places:
        with bench.built(place.systems, place.workload.sets, result) as matchers:
            for panel in (match, unique):
                where = f"{panel.title}, {place.name}"
                stored, queries = place.workload.sets, place.workload.queries
                rates = bench.throughput(result, where, matchers, stored, queries, unique=panel is unique)
                panel.add_all({name: rate.keys if of_keys else rate.queries for name, rate in rates.items()}, place.x)
                if of_keys and rates:
                    result.add(
                        f"{where}: keys of an answer", max(rate.keys_per_query for rate in rates.values()), "keys"
                    )
    return match, unique


def table1(bench: Bench) -> Result:
    """All systems, three sizes of the database."""
    result = bench.result(
        "table1",
        "Table 1: throughput of all systems",
        f"""`match` with 10, 20 and 100 % of the database, which is {bench.in_words(bench.sets())} here and 212 million
        in the paper, whose own numbers are from two Xeons and two GPUs. `tagmatch` compares tags and so is exact, as
        the dict and the hash table are; the scans, the trees and those with `exact=False` answer by signature,
        as published. {ON_BOTH}""",
    )
    panel = result.panel("match", "database", _QUERIES_A_SECOND, published=published.TABLE1)
    for column, share in published.TABLE1_SHARES.items():
        workload = bench.workload(bench.sets(share))
        with bench.built(SYSTEMS, workload.sets, result) as matchers:
            for name, rate in bench.throughput(result, column, matchers, workload.sets, workload.queries).items():
                panel.add(name, column, rate.queries)
    return result


def table3(bench: Bench) -> Result:
    """The trees and TagMatch, `match` and `match-unique`."""
    result = bench.result(
        "table3",
        "Table 3: comparison with the prefix tree and the ICN matcher",
        f"""10 and 20 % of the database ({bench.in_words(bench.sets(0.1))}, and {bench.in_words(bench.sets(0.2))} here).
        {ON_BOTH}""",
    )
    found = published.TABLE3_MATCH, published.TABLE3_MATCH_UNIQUE
    _by_size(bench, result, (0.1, 0.2), (*_TREES_AND_OURS, ICN), found)
    return result


def fig4(bench: Bench) -> Result:
    """Throughput against the size of the database."""
    result = bench.result(
        "fig4",
        "Figure 4: throughput against the size of the database",
        f"100 % is {bench.in_words(bench.sets())} here, 212 million sets in the paper. {ON_BOTH}",
    )
    found = published.FIG4_MATCH, published.FIG4_MATCH_UNIQUE
    _by_size(bench, result, (0.2, 0.4, 0.6, 0.8, 1.0), _TREES_AND_OURS, found)
    return result


def _by_size(
    bench: Bench,
    result: Result,
    shares: Iterable[float],
    systems: Iterable[str],
    published_values: tuple[list[Row], list[Row]],
) -> None:
    """Measure `match` and `match-unique` with shares of the full database."""
    sizes = {percent(share): bench.sets(share) for share in shares}
    places = (_Place(column, column, some(systems), bench.workload(sets)) for column, sets in sizes.items())
    panels = _match_and_unique(bench, result, places, x_label="database")
    for panel, values in zip(panels, published_values, strict=True):
        panel.published = values


_EXTRA_TAGS = range(1, 11)


@cache
def _by_query_size(bench: Bench) -> tuple[list[Answers], dict[int, dict[str, Rate]]]:
    """Measure once what Figures 2 and 3 show: rates by additional tags, and how answers compare."""
    result = bench.result("fig2", "", "")
    workload = bench.workload(bench.sets())
    found = {}
    with bench.built(some(_TREES_AND_OURS), workload.sets, result) as matchers:
        for extra in _EXTRA_TAGS:
            options = bench.options
            queries = extend(workload.sample, bench.queries, extra, extra, options.seed, threads=options.threads)
            where = f"{extra} additional tags"
            found[extra] = bench.throughput(result, where, matchers, workload.sets, queries, unique=True)
    return result.answers, found


def fig2(bench: Bench) -> Result:
    """Throughput for queries of 1 to 10 additional tags."""
    result = bench.result(
        "fig2",
        "Figure 2: throughput for queries of different sizes",
        f"""`match-unique` on the full database ({bench.in_words(bench.sets())} here); queries are a stored set and 1 to
        10 more tags (2 to 4 in the workload proper, §4.3.1). {ON_BOTH} The paper prints no values.""",
    )
    result.answers, found = _by_query_size(bench)
    panel = result.panel("match-unique, input", "additional tags", _QUERIES_A_SECOND)
    for extra, rates in found.items():
        panel.add_all({name: rate.queries for name, rate in rates.items()}, str(extra))
    return result


def fig3(bench: Bench) -> Result:
    """Keys a second for queries of 1 to 10 additional tags."""
    result = bench.result(
        "fig3",
        "Figure 3: output rate for queries of different sizes",
        f"""The runs of Figure 2, counted in keys. {ON_BOTH} What answers by signature delivers wrong keys too, so its
        output is greater for the same queries. The paper prints no values.""",
    )
    result.answers, found = _by_query_size(bench)
    panel = result.panel("match-unique, output", "additional tags", "keys/s")
    for extra, rates in found.items():
        panel.add_all({name: rate.keys for name, rate in rates.items()}, str(extra))
    return result


#: Threads that the paper states its speed-ups against (§4.3.3)
_PAPER_BASE = 4


def fig5(bench: Bench) -> Result:
    """Throughput against the number of threads."""
    result = bench.result(
        "fig5",
        "Figure 5: throughput against the number of threads",
        f"The full database ({bench.in_words(bench.sets())} here). {ON_BOTH}",
    )
    by_threads(bench, result, _TREES_AND_OURS)
    return result


def by_threads(
    bench: Bench, result: Result, systems: Sequence[str], targets: Mapping[int, Target] = MappingProxyType({})
) -> None:
    """Add panels for `match`, `match-unique` and speed-ups with 1, 2, 4 ... threads, on the full database.

    `targets`: of the speed-up, by threads.
    """
    most = bench.options.threads
    counts = sorted({most, *(2**i for i in range(most.bit_length()))})
    workload = bench.workload(bench.sets())
    places = (
        _Place(float(count), f"{count} threads", {name: _with_threads(name, count) for name in systems}, workload)
        for count in counts
    )
    match, _ = _match_and_unique(bench, result, places, x_label="threads", style="lines")
    base = _PAPER_BASE if _PAPER_BASE in counts else 1
    speed_up = result.panel("speed-up of match", "threads", f"times that of {base}", "lines", log=False)
    speed_up.add_ratios(match, base)
    if base == _PAPER_BASE:
        speed_up.published = published.FIG5_SPEED_UP
    rates = {(row.what, row.x): row.value for row in match.rows}
    for (name, count), rate in rates.items():
        if count in targets:
            what = f"{name}: {count:.0f} threads against one"
            result.add(what, rate / rates[name, 1], "times", targets[int(count)])


def _with_threads(name: str, threads: int) -> Build:
    return lambda sets, _: SYSTEMS[name](sets, threads)


def fig7(bench: Bench) -> Result:
    """Throughput against the size of partitions."""
    sizes = [max(1, round(share * bench.sets())) for share in (0.0005, 0.002, 0.005, 0.02, 0.05, 0.2, 1.0)]
    result = bench.result(
        "fig7",
        "Figure 7: throughput against the size of partitions",
        f"""`MAX_P` of Algorithm 1 on the full database ({bench.in_words(bench.sets())} here). {ON_BOTH} The paper finds
        the best throughput at about 200,000 sets and more, where a GPU scans the partitions (§4.3.5). Here it matters
        less: a CPU skips blocks of a partition by the bits that their sets share, and a GPU gets partitions in runs
        of up to 8,192 sets, each with its own mask.""",
    )
    workload = bench.workload(bench.sets())
    places = (
        _Place(
            float(size),
            f"MAX_P {size:,}",
            {
                name: tagmatch(name, max_partition_size=size)
                for name in (BALANCED, CPU_ONLY, BALANCED_GPU, TAGMATCH_GPU, TAGMATCH_HYBRID)
            },
            workload,
        )
        for size in dict.fromkeys(sizes)
    )
    _match_and_unique(bench, result, places, x_label="MAX_P", style="lines")
    return result


def keys(bench: Bench) -> Result:
    """Keys a second against the keys of a set."""
    sets = bench.sets(_SHARE_WITH_KEYS)
    result = bench.result(
        "keys",
        "Throughput against the keys of a set",
        f"""{sets:,} distinct sets with {_KEYS[0]} to {_KEYS[-1]} keys each in the mean; the paper's 212 million have
        about 50 each (§4.2.1), of its 300 million users' 35 interests. Counted are keys of answers, which grow as much;
        `match-unique` gives those once that a query gets from several sets. {ON_BOTH}""",
        keys=_KEYS,
    )
    systems = some((RAREST, BALANCED, RAREST_GPU, BALANCED_GPU))
    places = (_Place(str(count), f"{count} keys a set", systems, bench.workload(sets, count)) for count in _KEYS)
    _match_and_unique(bench, result, places, of_keys=True, x_label="keys of a set")
    return result


def layouts(bench: Bench) -> Result:
    """The two layouts: throughput, build time and memory."""
    result = bench.result(
        "layouts",
        "The two layouts",
        f"""Not in the paper: its layout, `balanced`, and `rarest`, which orders sets by their rarest tag. A build is
        `add_sets` and `consolidate` from Arrow columns. The largest has {bench.in_words(bench.sets())}. {ON_BOTH}""",
    )
    match = result.panel("match", "distinct sets", _QUERIES_A_SECOND)
    build = result.panel("build", "distinct sets", "s")
    memory = result.panel("index in memory", "distinct sets", "bytes a set", log=False)
    for share in (0.1, 0.3, 1.0):
        workload = bench.workload(bench.sets(share))
        column = f"{workload.distinct:,}"
        with bench.built(some((RAREST, BALANCED, CPU_ONLY, *_ON_GPU)), workload.sets, result) as matchers:
            for name, rate in bench.throughput(result, column, matchers, workload.sets, workload.queries).items():
                match.add(name, column, rate.queries)
                if name in OURS.values():
                    memory.add(name, column, (matchers[name].nbytes() or 0) / workload.distinct)
        builds = {
            name: partial(build_index, workload.sets, layout=layout, threads=bench.options.threads, device="cpu")
            for layout, name in OURS.items()
            if name in bench.wanted(OURS.values())
        }
        build.add_all(alternate(builds, bench.options.rounds), column)
    return result
