"""Queries a second: Tables 1 and 3, Figures 2 to 5 and 7, and the two layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from workloads.bench.data import extend
from workloads.bench.paper import catalogue, published
from workloads.bench.paper.catalogue import BALANCED, CPU_ONLY, ICN, PREFIX_TREE, RAREST, SYSTEMS
from workloads.bench.timing import alternate
from workloads.systems.tagmatch import Tagmatch

if TYPE_CHECKING:
    import pyarrow as pa

    from workloads.bench.paper.bench import Bench, Rate
    from workloads.bench.paper.results import Answers, Result
    from workloads.systems.matcher import Matcher

_QUERIES_A_SECOND = "queries/s"
_MATCH, _MATCH_UNIQUE = "match", "match-unique"
_TREES_AND_OURS = (RAREST, BALANCED, CPU_ONLY, PREFIX_TREE)


def _some(names: Iterable[str]) -> dict[str, catalogue.Build]:
    return {name: SYSTEMS[name] for name in names}


def table1(bench: Bench) -> Result:
    """All systems, three sizes of the database."""
    result = bench.result(
        "table1",
        "Table 1: throughput of all systems",
        f"""`match` with 10, 20 and 100 % of the database, which is {bench.sets():,} distinct sets here and 212 million
        in the paper, whose own numbers are from two Xeons and two GPUs. `tagmatch` compares tags and so is exact, as
        the dict and the hash table are; the scans, the trees and *CPU-only TagMatch* answer by signature, as
        published.""",
    )
    panel = result.panel("match", "database", _QUERIES_A_SECOND, published=published.TABLE1)
    for column, share in published.TABLE1_SHARES.items():
        workload = bench.workload(bench.sets(share))
        with bench.built(SYSTEMS, workload.sets, result) as matchers:
            for name, rate in bench.throughput(result, column, matchers, workload.queries).items():
                panel.add(name, column, rate.queries)
    return result


def table3(bench: Bench) -> Result:
    """The trees and TagMatch, `match` and `match-unique`."""
    result = bench.result(
        "table3",
        "Table 3: comparison with the prefix tree and the ICN matcher",
        f"10 and 20 % of the database ({bench.sets(0.1):,} and {bench.sets(0.2):,} distinct sets here).",
    )
    _by_size(bench, result, (0.1, 0.2), (*_TREES_AND_OURS, ICN))
    result.panels[0].published = published.TABLE3_MATCH
    result.panels[1].published = published.TABLE3_MATCH_UNIQUE
    return result


def fig4(bench: Bench) -> Result:
    """Throughput against the size of the database."""
    result = bench.result(
        "fig4",
        "Figure 4: throughput against the size of the database",
        f"100 % is {bench.sets():,} distinct sets here, 212 million in the paper.",
    )
    _by_size(bench, result, (0.2, 0.4, 0.6, 0.8, 1.0), _TREES_AND_OURS)
    result.panels[0].published = published.FIG4_MATCH
    result.panels[1].published = published.FIG4_MATCH_UNIQUE
    return result


def _by_size(bench: Bench, result: Result, shares: Iterable[float], systems: Iterable[str]) -> None:
    """Add a panel for `match` and one for `match-unique`."""
    panels = {name: result.panel(name, "database", _QUERIES_A_SECOND) for name in (_MATCH, _MATCH_UNIQUE)}
    for share in shares:
        column = f"{share:.0%}".replace("%", " %")
        workload = bench.workload(bench.sets(share))
        with bench.built(_some(systems), workload.sets, result) as matchers:
            for name, panel in panels.items():
                where = f"{name}, {column}"
                rates = bench.throughput(result, where, matchers, workload.queries, unique=name == _MATCH_UNIQUE)
                for system, rate in rates.items():
                    panel.add(system, column, rate.queries)


_EXTRA_TAGS = range(1, 11)


@cache
def _by_query_size(bench: Bench) -> tuple[list[Answers], dict[int, dict[str, Rate]]]:
    """Measure once what Figures 2 and 3 show: rates by additional tags, and how answers compare."""
    result = bench.result("fig2", "", "")
    workload = bench.workload(bench.sets())
    found = {}
    with bench.built(_some(_TREES_AND_OURS), workload.sets, result) as matchers:
        for extra in _EXTRA_TAGS:
            queries = extend(workload.sets, bench.options.queries, extra, extra, bench.options.seed)
            where = f"{extra} additional tags"
            found[extra] = bench.throughput(result, where, matchers, queries, unique=True)
    return result.answers, found


def fig2(bench: Bench) -> Result:
    """Throughput for queries of 1 to 10 additional tags."""
    result = bench.result(
        "fig2",
        "Figure 2: throughput for queries of different sizes",
        f"""`match-unique` on the full database ({bench.sets():,} distinct sets here); queries are a stored set and 1 to
        10 more tags, of which the workload proper has 2 to 4 (§4.3.1). The paper prints no values.""",
    )
    result.answers, found = _by_query_size(bench)
    panel = result.panel("match-unique, input", "additional tags", _QUERIES_A_SECOND)
    for extra, rates in found.items():
        for name, rate in rates.items():
            panel.add(name, str(extra), rate.queries)
    return result


def fig3(bench: Bench) -> Result:
    """Keys a second for queries of 1 to 10 additional tags."""
    result = bench.result(
        "fig3",
        "Figure 3: output rate for queries of different sizes",
        """The runs of Figure 2, counted in keys. What answers by signature delivers wrong keys too, so its output is
        greater for the same queries. The paper prints no values.""",
    )
    result.answers, found = _by_query_size(bench)
    panel = result.panel("match-unique, output", "additional tags", "keys/s")
    for extra, rates in found.items():
        for name, rate in rates.items():
            panel.add(name, str(extra), rate.keys)
    return result


#: Threads that the paper states its speed-ups against (§4.3.3)
_PAPER_BASE = 4


def fig5(bench: Bench) -> Result:
    """Throughput against the number of threads."""
    counts = _thread_counts(bench.options.threads)
    result = bench.result(
        "fig5",
        "Figure 5: throughput against the number of threads",
        f"The full database ({bench.sets():,} distinct sets here).",
    )
    workload = bench.workload(bench.sets())
    panels = {name: result.panel(name, "threads", _QUERIES_A_SECOND, "lines") for name in (_MATCH, _MATCH_UNIQUE)}
    base = _PAPER_BASE if _PAPER_BASE in counts else 1
    speed_up = result.panel("speed-up of match", "threads", f"times that of {base}", "lines", log=False)
    if base == _PAPER_BASE:
        speed_up.published = published.FIG5_SPEED_UP
    for count in counts:
        systems = {name: _with_threads(name, count) for name in _TREES_AND_OURS}
        with bench.built(systems, workload.sets, result) as matchers:
            for name, panel in panels.items():
                where = f"{name}, {count} threads"
                rates = bench.throughput(result, where, matchers, workload.queries, unique=name == _MATCH_UNIQUE)
                for system, rate in rates.items():
                    panel.add(system, float(count), rate.queries)
    first = {value.system: value.value for value in panels[_MATCH].values if value.x == base}
    for value in panels[_MATCH].values:
        speed_up.add(value.system, value.x, value.value / first[value.system])
    return result


def _thread_counts(most: int) -> list[int]:
    """Return 1, 2, 4 ... and `most`."""
    return sorted({most, *(2**i for i in range(most.bit_length()))})


def _with_threads(name: str, threads: int) -> catalogue.Build:
    return lambda sets, _: SYSTEMS[name](sets, threads)


def fig7(bench: Bench) -> Result:
    """Throughput against the size of partitions."""
    sizes = [max(1, round(share * bench.sets())) for share in (0.0005, 0.002, 0.005, 0.02, 0.05, 0.2, 1.0)]
    result = bench.result(
        "fig7",
        "Figure 7: throughput against the size of partitions",
        f"""`MAX_P` of Algorithm 1 on the full database ({bench.sets():,} distinct sets here). The paper finds the best
        throughput at about 200,000 sets and more, where a GPU scans the partitions (§4.3.5). On a CPU, which skips
        blocks of a partition by the bits that their sets share, the size matters less.""",
    )
    workload = bench.workload(bench.sets())
    panels = {name: result.panel(name, "MAX_P", _QUERIES_A_SECOND, "lines") for name in (_MATCH, _MATCH_UNIQUE)}
    for size in dict.fromkeys(sizes):
        systems: dict[str, catalogue.Build] = {
            RAREST: SYSTEMS[RAREST],
            BALANCED: _with_partitions(size, exact=True),
            CPU_ONLY: _with_partitions(size, exact=False),
        }
        with bench.built(systems, workload.sets, result) as matchers:
            for name, panel in panels.items():
                where = f"{name}, MAX_P {size:,}"
                rates = bench.throughput(result, where, matchers, workload.queries, unique=name == _MATCH_UNIQUE)
                for system, rate in rates.items():
                    if system != RAREST:
                        panel.add(system, float(size), rate.queries)
    return result


def _with_partitions(size: int, *, exact: bool) -> catalogue.Build:
    def build(sets: pa.Table, threads: int) -> Matcher[Any]:
        return Tagmatch(sets, layout="balanced", exact=exact, max_partition_size=size, threads=threads)

    return build


def layouts(bench: Bench) -> Result:
    """The two layouts: throughput, build time and memory."""
    result = bench.result(
        "layouts",
        "The two layouts",
        """Not in the paper: its layout, `balanced`, beside `rarest`, which orders sets by their rarest tag. A build is
        `add_sets` and `consolidate` from Arrow columns.""",
    )
    match = result.panel("match", "distinct sets", _QUERIES_A_SECOND)
    build = result.panel("build", "distinct sets", "s")
    memory = result.panel("index in memory", "distinct sets", "bytes a set", log=False)
    for share in (0.1, 0.3, 1.0):
        workload = bench.workload(bench.sets(share))
        column = f"{len(workload.sets):,}"
        systems: Mapping[str, catalogue.Build] = _some((RAREST, BALANCED, CPU_ONLY))
        with bench.built(systems, workload.sets, result) as matchers:
            for name, rate in bench.throughput(result, column, matchers, workload.queries).items():
                match.add(name, column, rate.queries)
                if name != CPU_ONLY:
                    memory.add(name, column, (matchers[name].nbytes() or 0) / len(workload.sets))
        names = bench.wanted((RAREST, BALANCED))
        builds = {name: partial(SYSTEMS[name], workload.sets, bench.options.threads) for name in names}
        for name, seconds in alternate(builds, bench.options.rounds).items():
            build.add(name, column, seconds)
    return result
