"""`TagMatch(channels=…)` itself under Table 2's ratios: what fails of each channel, order by order, over some seeds."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from tagmatch import Channel, DeadlineMissed, Overloaded
from tagmatch.model.options import Order
from tagmatch_bench.figures.qos_figures import FAIL, add_failures, percent_failed
from tagmatch_bench.harness.confidence import Mean
from tagmatch_bench.qos.channels import NANOSECONDS
from tagmatch_bench.qos.driving import numbers_when_due
from tagmatch_bench.qos.options import CHANNELS, SCENARIOS, QosOptions, in_own_times
from tagmatch_bench.qos.simulator import ChannelResult, arrivals
from tagmatch_bench.systems.tagmatch import Tagmatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from tagmatch import TagMatch
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result

_ORDERS: tuple[Order, ...] = get_args(Order)
_COMPARED = (("edf", "dfgs"), ("fifo", "edf"), ("fifo", "dfgs"))
_TABLE2 = SCENARIOS["table2"]
#: What else than answered may become of queries
_UNANSWERED = ("refused", "deserted", "dropped", "cancelled", "failed")
_POINTS = "percentage points"
#: Calls that may wait at a time
_CALLERS = 64
#: Calls whose times are taken; this share of them take at most what is taken for the processing time. Of more, what
#: else runs on the machine would be a part
_SAMPLES, _AT_MOST = 40, 0.75


@dataclass(frozen=True, slots=True)
class PipelineSizes:
    """How much the pipeline gets.

    Attributes
    ----------
    sets : int
        Stored sets.
    seconds : float
        What a call of channel 1 takes, about.
    calls : int
        Calls of both channels in a run, about.
    seeds : int
        Runs of each order.
    loads : tuple of float
        How many times Table 2's rates, for each thread.
    threads : int
        Threads that match.
    """

    sets: int = 100_000
    seconds: float = 0.002
    calls: int = 1_000
    seeds: int = 10
    loads: tuple[float, ...] = (1.0, 1.5)
    threads: int = 1


def pipeline(bench: Bench, result: Result, sizes: PipelineSizes) -> None:
    """Ask in Table 2's ratios: a call of channel 2 has as many times the queries as its processing time is longer."""
    workload = bench.workload(sizes.sets)
    calls = _calls(workload.sets, workload.queries, sizes.seconds)
    own = _own_times(workload.sets, calls)
    channels = [flow.channel for flow in own.flows]
    system = "TagMatch" if sizes.threads == 1 else f"TagMatch, {sizes.threads} threads"
    panels = {
        load: result.panel(f"{system}, Table 2's rates × {load * sizes.threads:g}, Poisson", "channel", FAIL, log=False)
        for load in sizes.loads
    }
    failed: dict[tuple[str, float], list[dict[str, float]]] = {}
    seeds = range(bench.options.seed, bench.options.seed + sizes.seeds)
    with ExitStack() as stack:
        indexes = {
            order: stack.enter_context(_opened(workload.sets, channels, order, sizes.threads)) for order in _ORDERS
        }
        for index in indexes.values():
            _ask_all(index, replace(own, messages=sizes.calls, seed=0), calls)  # from which it learns what calls take
        for load, panel in panels.items():
            scenario = replace(own.faster(load * sizes.threads), messages=sizes.calls)
            runs: dict[Order, list[list[ChannelResult]]] = {order: [] for order in _ORDERS}
            for seed in seeds:  # side by side, as a machine is not always as fast
                for order, index in indexes.items():
                    runs[order].append(_ask_all(index, replace(scenario, seed=seed), calls))
            for order, of_seeds in runs.items():
                add_failures(panel, {channel: (order, channel) for channel in CHANNELS}, of_seeds)
                failed[order, load] = [percent_failed(each) for each in of_seeds]
    for load in sizes.loads:
        for more, less in _COMPARED:
            for channel in CHANNELS:
                pairs = zip(failed[more, load], failed[less, load], strict=True)
                difference = Mean(tuple(one[channel] - other[channel] for one, other in pairs))
                what = f"{system}, rates × {load * sizes.threads:g}, {channel}: {more} fails more than {less} by"
                result.add(what, difference.mean, _POINTS)
                result.add(f"{what}, 95 % confidence, from", difference.mean - difference.half_width, _POINTS)
                result.add(f"{what}, 95 % confidence, to", difference.mean + difference.half_width, _POINTS)


def _opened(sets: pa.Table, channels: Sequence[Channel], order: Order, threads: int = 1) -> TagMatch:
    """An index with so many threads; another core should be left for those who ask."""
    return Tagmatch(sets, threads=threads, device="cpu", channels=channels, order=order).index


def _calls(sets: pa.Table, queries: pa.ListArray, seconds: float) -> list[pa.ListArray]:
    """The queries of a call, of each channel: so many that one of channel 1 takes about so long."""
    with _opened(sets, [], "fifo") as index:
        some = queries[: min(len(queries), 1000)]
        index.match_many(some)
        begun = time.perf_counter()
        index.match_many(some)
        rate = len(some) / (time.perf_counter() - begun)
    first = max(1, min(round(rate * seconds), len(queries)))
    second = max(1, min(round(first * _TABLE2.processing2 / _TABLE2.processing1), len(queries)))
    return [queries[:first], queries[:second]]


def _own_times(sets: pa.Table, calls: Sequence[pa.ListArray]) -> QosOptions:
    """Table 2 in units of what most calls of each channel take at most, alone."""
    taken = []
    with _opened(sets, [Channel(name) for name in CHANNELS], "fifo") as index:
        for name, queries in zip(CHANNELS, calls, strict=True):
            samples = []
            for _ in range(_SAMPLES):
                begun = time.perf_counter()
                index.match_many(queries, channel=name)
                samples.append(time.perf_counter() - begun)
            taken.append(float(np.quantile(samples, _AT_MOST)))
    return in_own_times(_TABLE2, taken)


def _ask_all(index: TagMatch, options: QosOptions, calls: Sequence[pa.ListArray]) -> list[ChannelResult]:
    """Ask as a Poisson process, each call in a thread of its own, and count what becomes of all queries."""
    messages = arrivals(options.flows, options.messages / options.rate, options.seed, poisson=True)
    before = index.stats()["channels"]
    begun = time.perf_counter()

    def ask(channel: int, due: float) -> None:
        try:
            waited = max(0.0, time.perf_counter() - begun - due)
            index.match_many(calls[channel], channel=CHANNELS[channel], waited=waited)
        except (DeadlineMissed, Overloaded):
            pass  # the index counts them

    with ThreadPoolExecutor(_CALLERS) as callers:
        times, channel_of = (messages.arrival / NANOSECONDS).tolist(), messages.channel.tolist()
        due = numbers_when_due(times, lambda: time.perf_counter() - begun)
        for call in [callers.submit(ask, channel_of[number], times[number]) for number in due]:
            call.result()
    after = index.stats()["channels"]
    results = [_counted(name, before[name], after[name]) for name in CHANNELS]
    for channel, (each, queries) in enumerate(zip(results, calls, strict=True)):
        offered = int(np.count_nonzero(messages.channel == channel)) * len(queries)
        if each.offered != offered or each.in_time + each.late + each.dropped != offered:
            raise RuntimeError(f"{each.name}: {offered} queries were offered, and counts are {each}")
    return results


def _counted(name: str, before: dict[str, Any], after: dict[str, Any]) -> ChannelResult:
    """What became of a channel's queries in between."""
    counts = {what: after[what] - before[what] for what in ("offered", "answered", "late", *_UNANSWERED)}
    dropped = sum(counts[what] for what in _UNANSWERED)
    return ChannelResult(name, counts["offered"], counts["answered"] - counts["late"], counts["late"], dropped, ())
