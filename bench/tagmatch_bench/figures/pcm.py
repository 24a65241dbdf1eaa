"""`tagmatch-bench pcm`: the table and the figures of PCM's evaluation (§4), and scenarios that match much."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tagmatch_bench.figures import content_scenarios as scenarios
from tagmatch_bench.figures.content_beside import DEVICES, PUBLISHED, Shown, beside
from tagmatch_bench.figures.pcm_throughput import throughput
from tagmatch_bench.figures.published_content import DEFAULT, PCM_TABLE2, PCM_TABLE2_TIMES, PCM_TIMES
from tagmatch_bench.harness.content_latency import OURS
from tagmatch_bench.systems.catalogue import ENCODED

if TYPE_CHECKING:
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result

PARTS = ("table2", "figure6", "figure7", "figure8", "figure9", "much", "throughput")

_SEQUENTIAL = ("SFF", "BE-Tree")
#: Systems, and what §4.1 compares them with (its OCM shares tables, on six cores); and ours
_PAIRS = [
    *((system, other) for system in ("CCM", "OCM", "OCM, sharing tables") for other in _SEQUENTIAL),
    ("OCM", "CCM"),
    ("OCM, sharing tables", "CCM"),
    *((own, other) for own in (OURS, *ENCODED) for other in _SEQUENTIAL),
]
#: Constraints of a filter of the dense scenario
_OF_A_DENSE_FILTER = 10
_FEW_NAMES = 10


@dataclass(frozen=True, slots=True)
class PcmSizes:
    """How large the scenarios are, the events of a call where many come at once, and what is wanted."""

    constraints: int = 1_000_000
    calls: tuple[int, ...] = (1, 16, 256, 4_096, 65_536)
    parts: tuple[str, ...] = PARTS


def pcm(bench: Bench, sizes: PcmSizes) -> Result:
    """Measure all parts that are wanted."""
    options = bench.options
    result = bench.result(
        "pcm",
        "PCM: latency and throughput of matching",
        f"""Microseconds an event, of {options.queries:,} events that come one by one (§4.1). PCM: Margara, Cugola, IEEE
        TPDS 2014; its OCM is PCM on a CPU, its CCM on a GPU. {DEVICES.format(threads=options.threads)}
        {PUBLISHED.format(year=2012)} *BE-Tree* is what the paper calls BETree; its version 1.3 was never published. Of
        Figure 7 the paper prints no numbers: SFF is ahead of PCM with one or two constraints a filter only, and in
        Figure 8 with less than 1,000 filters. *Much*: {_FEW_NAMES} names of attributes, so that most events go to all
        interfaces, and filters of {_OF_A_DENSE_FILTER} intervals on 20 attributes that all events have. *Throughput*
        (§4.2) is of calls with up to {max(sizes.calls):,} events, which SFF, BE-Tree and OCM, too, share out to
        {options.threads} threads, and CCM takes one or several at a time; *CPU or GPU* (§4.3) of `match_many`, by the
        events of a call, where `device="auto"` takes the side that was sooner when the index was opened.""",
        constraints=sizes.constraints,
        calls=sizes.calls,
        parts=sizes.parts,
    )
    works = {
        "table2": partial(_table2, bench, result, sizes.constraints),
        **{
            f"figure{figure.number}": partial(_figure, bench, result, figure, sizes.constraints)
            for figure in scenarios.figures(sizes.constraints)
        },
        "much": partial(_much, bench, result, sizes.constraints),
        "throughput": partial(throughput, bench, result, sizes.constraints, sizes.calls),
    }
    for part in PARTS:
        if part in sizes.parts:
            works[part]()
    return result


def _table2(bench: Bench, result: Result, constraints: int) -> None:
    shown = Shown("PCM Table 2", "scenario", micros=PCM_TABLE2, times=PCM_TABLE2_TIMES)
    scenario = scenarios.pcm(constraints, bench.options.queries, bench.options.seed)
    beside(bench, result, shown, [(DEFAULT, scenario)], _PAIRS)


def _figure(bench: Bench, result: Result, figure: scenarios.Figure, constraints: int) -> None:
    places = figure.scenarios(constraints, bench.options.queries, bench.options.seed)
    beside(bench, result, Shown.of(figure, PCM_TIMES), places, _PAIRS)


def _much(bench: Bench, result: Result, constraints: int) -> None:
    events, seed = bench.options.queries, bench.options.seed
    few_names = scenarios.pcm(constraints, events, seed, f"PCM, {_FEW_NAMES} names", names=_FEW_NAMES)
    dense = scenarios.dense(max(1, constraints // _OF_A_DENSE_FILTER), events, seed)
    places = {f"{_FEW_NAMES} names": few_names, "dense": dense}
    measured = beside(bench, result, Shown("scenarios that match much", "scenario"), places.items(), _PAIRS)
    for place, found in measured.items():
        result.add(f"{places[str(place)].name}: keys of an answer", found.keys_per_message, "keys")
