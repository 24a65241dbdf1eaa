"""`tagmatch-bench qos-real`: the figures of "Pub/Sub on Stream" with real matching, and the pipeline itself."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from tagmatch import Channel, DeadlineMissed, Overloaded, TagMatch
from tagmatch.model.arrays import F64Array
from tagmatch.model.options import Order
from tagmatch_bench.figures.figure import PARTS
from tagmatch_bench.figures.qos import (
    ARRIVALS,
    BOTH,
    EDF,
    FAIL,
    IGNORANT,
    Runs,
    add_failures,
    figures,
    percent_failed,
    table1,
)
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.results import Mean, Result, Target
from tagmatch_bench.qos.driving import BROKERS, Channels, Driven, Spent, numbers_when_due, run_threads, run_virtual
from tagmatch_bench.qos.kernels import EXACT, Messages
from tagmatch_bench.qos.matching import Matching, times_of
from tagmatch_bench.qos.simulator import (
    CHANNELS,
    NANOSECONDS,
    SCENARIOS,
    ChannelResult,
    QosOptions,
    arrivals,
    count_results,
    in_own_times,
)
from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.tagmatch import Tagmatch

_ORDERS: tuple[Order, ...] = get_args(Order)
_COMPARED = (("edf", "dfgs"), ("fifo", "edf"), ("fifo", "dfgs"))
#: Other outcomes of queries than an answer
_UNANSWERED = ("refused", "deserted", "dropped", "cancelled", "failed")
_POINTS = "percentage points"
#: Calls that may wait at a time
_CALLERS = 64
#: Calls whose times are measured; this share of them take at most the assumed processing time. Of more, what
#: else runs on the machine would be a part
_CALLS_TIMED, _CALLS_AT_MOST = 40, 0.75


@dataclass(frozen=True, slots=True)
class PipelineSizes:
    """How much the pipeline gets."""

    sets: int = 100_000  # stored sets
    seconds: float = 0.002  # what a call of channel 1 takes, about
    calls: int = 1_000  # calls of both channels in a run, about
    seeds: int = 10  # runs of each order
    loads: tuple[float, ...] = (1.0, 1.5)  # how many times Table 2's rates, for each thread
    threads: int = 1  # threads that match
    processes: int = 1  # that ask; each has such an index, and gets such messages


def pipeline(bench: Bench, result: Result, sizes: PipelineSizes) -> None:
    """Ask in Table 2's ratios: a call of channel 2 has as many times the queries as its processing time is longer."""
    workload = bench.workload(sizes.sets)
    calls = _calls(workload.sets, workload.queries, sizes.seconds)
    own = _own_times(workload.sets, calls)
    channels = [flow.channel for flow in own.flows]
    cores = sizes.threads * sizes.processes
    several = {"threads": sizes.threads, "processes": sizes.processes}
    system = ", ".join(["TagMatch", *(f"{count} {what}" for what, count in several.items() if count > 1)])
    panels = {
        load: result.panel(f"{system}, Table 2's rates × {load * cores:g}, Poisson", "channel", FAIL, log=False)
        for load in sizes.loads
    }
    failed: dict[tuple[str, float], list[dict[str, float]]] = {}
    seeds = range(bench.options.seed, bench.options.seed + sizes.seeds)
    with _asked_in_processes((workload.sets, channels, calls, sizes.threads), sizes.processes) as ask:
        for order in _ORDERS:
            ask(order, replace(own, messages=sizes.calls, seed=0))  # from which it learns what calls take
        for load, panel in panels.items():
            scenario = replace(own.faster(load * sizes.threads), messages=sizes.calls)
            runs: dict[Order, list[list[ChannelResult]]] = {order: [] for order in _ORDERS}
            for seed in seeds:  # side by side, as a machine is not always as fast
                for order in _ORDERS:
                    runs[order].append(ask(order, replace(scenario, seed=seed)))
            for order, of_seeds in runs.items():
                add_failures(panel, {channel: (order, channel) for channel in CHANNELS}, of_seeds)
                failed[order, load] = [percent_failed(each) for each in of_seeds]
    for load in sizes.loads:
        for more, less in _COMPARED:
            for channel in CHANNELS:
                pairs = zip(failed[more, load], failed[less, load], strict=True)
                difference = Mean(tuple(one[channel] - other[channel] for one, other in pairs))
                what = f"{system}, rates × {load * cores:g}, {channel}: {more} fails more than {less} by"
                result.add(what, difference.mean, _POINTS)
                result.add(f"{what}, 95 % confidence, from", difference.mean - difference.half_width, _POINTS)
                result.add(f"{what}, 95 % confidence, to", difference.mean + difference.half_width, _POINTS)


#: Of a process: an index for each order, and the queries of each channel's calls
_indexes: dict[Order, TagMatch] = {}
_asked: list[pa.ListArray] = []


def _open_all(sets: pa.Table, channels: Sequence[Channel], calls: Sequence[pa.ListArray], threads: int) -> None:
    """Let this process have an index for each order."""
    _asked[:] = calls
    _indexes.update((order, _opened(sets, channels, order, threads)) for order in _ORDERS)


def _ask_own(order: Order, options: QosOptions) -> list[ChannelResult]:
    return _ask_all(_indexes[order], options, _asked)


@contextmanager
def _asked_in_processes(
    given: tuple[pa.Table, Sequence[Channel], Sequence[pa.ListArray], int], processes: int
) -> Iterator[Callable[[Order, QosOptions], list[ChannelResult]]]:
    """Give a function that asks in other processes, all at the same time, each with its messages, and adds up."""
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pools = [
            stack.enter_context(ProcessPoolExecutor(1, spawn, initializer=_open_all, initargs=given))
            for _ in range(processes)
        ]

        def ask(order: Order, options: QosOptions) -> list[ChannelResult]:
            seeds = range(options.seed * processes, (options.seed + 1) * processes)
            asked = [
                pool.submit(_ask_own, order, replace(options, seed=seed))
                for pool, seed in zip(pools, seeds, strict=True)
            ]
            return [_added_up(of_channel) for of_channel in zip(*(each.result() for each in asked), strict=True)]

        yield ask


def _added_up(results: Sequence[ChannelResult]) -> ChannelResult:
    """What all processes counted of a channel."""
    offered, in_time, late, dropped = (
        sum(getattr(each, what) for each in results) for what in ("offered", "in_time", "late", "dropped")
    )
    return ChannelResult(results[0].name, offered, in_time, late, dropped, ())


def _opened(sets: pa.Table, channels: Sequence[Channel], order: Order, threads: int = 1) -> TagMatch:
    """An index with `threads` threads; leave another core for the callers."""
    return Tagmatch(sets, threads=threads, device="cpu", channels=channels, order=order).index


def _calls(sets: pa.Table, queries: pa.ListArray, seconds: float) -> list[pa.ListArray]:
    """The queries of a call on each channel: as many as make a call of channel 1 take about `seconds`."""
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
            for _ in range(_CALLS_TIMED):
                begun = time.perf_counter()
                index.match_many(queries, channel=name)
                samples.append(time.perf_counter() - begun)
            taken.append(float(np.quantile(samples, _CALLS_AT_MOST)))
    return in_own_times(_TABLE2, taken)


def _ask_all(index: TagMatch, options: QosOptions, calls: Sequence[pa.ListArray]) -> list[ChannelResult]:
    """Ask as a Poisson process, each call in its own thread, and count the outcomes of all queries."""
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
    """The outcome of a channel's queries in between."""
    counts = {what: after[what] - before[what] for what in ("offered", "answered", "late", *_UNANSWERED)}
    dropped = sum(counts[what] for what in _UNANSWERED)
    return ChannelResult(name, counts["offered"], counts["answered"] - counts["late"], counts["late"], dropped, ())


FIFO = "FIFO"
_TABLE2 = SCENARIOS["table2"]
LEARNED = f"{BOTH}, learned"
_OF_FIGURE12 = {IGNORANT: 0.0, BOTH: 0.0, LEARNED: 0.0, EDF: 0.0}
_ON_THREADS = (IGNORANT, FIFO, BOTH, LEARNED, EDF)
#: Different events of a channel
_EVENTS = 256
#: Messages whose times are measured; this share of them take at most the assumed processing time
_SAMPLES, _AT_MOST = 300, 0.95
_CHECKED = 20
#: Factor of the work on threads, which take a while to wake
_STRETCH = 8
_MICROSECONDS = Target(30, at_most=True)


@dataclass(frozen=True, slots=True)
class RealSizes:
    """Sizes, and the parts to run; see the command's help."""

    messages: int = 1_500
    seeds: int = 3
    subscriptions: tuple[int, int] = (6_000, 600_000)
    parts: tuple[str, ...] = PARTS["qos-real"]
    pipeline: PipelineSizes = field(default_factory=PipelineSizes)


def sizes_of(**given: Any) -> RealSizes:
    """The sizes that options of the command give; those of the pipeline begin with its name."""
    own = {name: given.pop(name) for name in ("messages", "seeds", "parts") if name in given}
    subscriptions = given.pop("subscriptions1"), given.pop("subscriptions2")
    pipeline = PipelineSizes(**{name.removeprefix("pipeline_"): value for name, value in given.items()})
    return RealSizes(subscriptions=subscriptions, pipeline=pipeline, **own)


def qos_real(bench: Bench, sizes: RealSizes) -> Result:
    """Run all parts that are wanted."""
    result = bench.result(
        "qos-real",
        "Messages with deadlines, with real matching",
        f"""Table 1 and Figures 6 to 12 of "Pub/Sub on Stream" (Wang et al., DEBS 2012) with real work on the CPU: each
        message has all 238 attributes and is matched, by an H phase and SubC phases, against {sizes.subscriptions[0]:,}
        subscriptions (channel 1) or {sizes.subscriptions[1]:,} (channel 2) of 1,504 predicates. Its tasks wait in the
        orders that `TagMatch` has: *DFGS + Smart Dispatch* is `dfgs`, *EDF* is `edf`, *FIFO* is `fifo`, in which all
        workers take whole messages from one queue; *QoS-ignorant* has an order `fifo` for each worker, which get whole
        messages in turn. Where a broker of the paper asks how long a message will take, the answer is the longest time
        that was measured of its channel (§6.1); in *learned* it is what earlier tasks took, as `dfgs` of `TagMatch`
        learns it, which is not published. Except for the panels of threads, CycloneDDS and `TagMatch`, **one thread
        does the work of all workers**: each worker has its own clock, which goes on by the CPU time to take a task
        and to do it, so that seven can be shown on a machine with fewer cores. To have messages wait counts for no
        worker, as in the paper, whose eighth core did that. Workers do not share caches and memory as seven cores
        would. Periods and deadlines are Table 2's in units of each channel's own processing time: what
        {100 * _AT_MOST:g} % of its messages take at most, alone and whole. Values are means of {sizes.seeds} seeds with
        about {sizes.messages:,} messages each. *Fail* are messages that are answered late, deserted, refused or
        dropped, of each channel and of all together.""",
        **asdict(sizes),
    )
    with bench.doing("qos-real: making subscriptions"):
        seed = bench.options.seed
        matchings = [
            Matching(count, parts, _EVENTS, seed)
            for count, parts in zip(sizes.subscriptions, (_TABLE2.parts1, _TABLE2.parts2), strict=True)
        ]
        real = Real(sizes.messages, range(seed, seed + sizes.seeds), matchings)
    asked = [(matching, row) for matching in matchings for row in range(_CHECKED)]
    found, right = ([getattr(each, way)(row) for each, row in asked] for way in ("answer", "whole_answer"))
    result.compare("tasks", "H and SubC phases", found, right)
    for name, seconds, paper in zip(CHANNELS, real.processing, (0.07, 1.3), strict=True):
        result.add(f"processing time, {name} (paper: {paper:g} ms)", seconds * 1e3, "ms")
    for name, seconds in zip(CHANNELS, real.longest, strict=True):
        result.add(f"longest processing time, {name}", seconds * 1e3, "ms")
    ratio = real.processing[1] / real.processing[0]
    result.add("processing time, channel 2 against channel 1 (paper: 18.6 times)", ratio, "times")
    works: dict[str, Callable[[], object]] = {
        "table1": partial(_table1, result, seed),
        **figures(real, result),
        "threads": partial(_threads, real, result),
        "pipeline": partial(pipeline, bench, result, sizes.pipeline),
        "dds": partial(_dds, real, result),
    }
    bench.do(works, sizes.parts, "qos-real: running")
    for policy, spent in real.spent.items():
        overhead = (spent.putting + spent.taking) / max(spent.messages, 1) * 1e6
        result.add(f"{policy}: a message's CPU time without matching", overhead, "µs", _MICROSECONDS)
    result.add("messages offered, each of them answered or dropped", real.messages, "messages")
    return result


class Real(Runs):
    """Matches the messages of scenarios, and counts them."""

    def __init__(self, each: int, seeds: Sequence[int], matchings: Sequence[Matching]) -> None:
        super().__init__(seeds, of_figure12=_OF_FIGURE12, more=(LEARNED,), coarse=0.7, fine=1.09)
        self._each, self._matchings = each, matchings
        self._kept: dict[tuple[QosOptions, str], list[list[ChannelResult]]] = {}
        self.spent: dict[str, Spent] = {}
        self.messages = 0
        taken = [self._alone(channel) for channel in range(len(matchings))]
        #: What nearly all messages of each channel take at most, and what all of them do
        self.processing = [float(np.quantile(each, _AT_MOST)) for each in taken]
        self.longest = [float(each.max()) for each in taken]

    def once(self, options: QosOptions, policy: str, seed: int) -> list[ChannelResult]:
        """The outcome of the channels' messages, on virtual clocks."""
        return self._run(options, policy, seed, run_virtual, 1)

    def all(self, options: QosOptions, policy: str) -> list[list[ChannelResult]]:
        """The same for each seed; of figures that have the same scenario, it is run once."""
        if (options, policy) not in self._kept:
            self._kept[options, policy] = super().all(options, policy)
        return self._kept[options, policy]

    def rate(self, options: QosOptions) -> float:
        """Messages a second of a scenario, with our own processing times."""
        return in_own_times(options, self.processing).rate

    def on_threads(self, options: QosOptions, policy: str, seed: int) -> list[ChannelResult]:
        """The outcome of the channels' messages on the wall clock, with `_STRETCH` times the work."""
        return self._run(options, policy, seed, run_threads, _STRETCH)

    def on_dds(self, options: QosOptions, seed: int) -> list[ChannelResult]:
        """The same with a subscriber of CycloneDDS, which matches messages whole; UnavailableError."""
        from tagmatch_bench.qos.dds import run_dds

        return self._run(options, IGNORANT, seed, run_dds, _STRETCH)

    def _run(
        self, options: QosOptions, policy: str, seed: int, run: Callable[[Driven], None], stretch: int
    ) -> list[ChannelResult]:
        times = [stretch * each for each in self.processing]
        own = replace(in_own_times(options, times), messages=self._each, seed=seed)
        messages = arrivals(own.flows, own.messages / own.rate, seed, poisson=bool(own.poisson))
        slower = options.processing1 / _TABLE2.processing1, options.processing2 / _TABLE2.processing2
        channels = Channels(own.flows, self._matchings, [times_of(stretch * each) for each in slower], self.longest)
        driven = Driven(messages, channels, BROKERS[policy], own.cores)
        run(driven)
        results = count_results(messages, own.flows, driven.ends)
        self.messages += len(driven.ends)
        if run is run_virtual:
            spent = self.spent.setdefault(policy, Spent())
            spent.putting += driven.spent.putting
            spent.taking += driven.spent.taking
            spent.messages += driven.spent.messages
        return results

    def _alone(self, channel: int) -> F64Array:
        """Seconds that messages of a channel take that come one by one, each of them whole, as in §6.1."""
        second = NANOSECONDS  # they come one a second
        messages = Messages(
            np.arange(_SAMPLES, dtype=np.int64) * second,
            np.full(_SAMPLES, channel, np.int64),
            np.full(_SAMPLES, EXACT, np.int64),
        )
        channels = Channels(_TABLE2.flows, self._matchings, [times_of(1)] * 2, [0.0] * 2)
        driven = Driven(messages, channels, BROKERS[IGNORANT], 1)
        run_virtual(driven)
        taken: F64Array = (driven.ends - messages.arrival) / NANOSECONDS
        return taken


def _table1(result: Result, seed: int) -> None:
    """Measure one message alone, phase by phase."""
    for seconds, share, subscriptions, at, _ in table1(result):
        matching = Matching(subscriptions, 1, _EVENTS, seed)
        whole = matching.h_seconds + matching.part_seconds
        seconds.add("H and C phases", at, whole * 1e3)
        share.add("H and C phases", at, 100 * matching.h_seconds / whole)


def _threads(real: Real, result: Result) -> None:
    """Table 2 with threads on the wall clock, and the same on virtual clocks; two workers get twice the messages."""
    for name, poisson in ARRIVALS.items():
        title = f"Table 2, all times × {_STRETCH}, threads on the wall clock, {name}"
        panel = result.panel(title, "workers", FAIL, log=False)
        for clock, once in (("", real.on_threads), (", virtual clocks", real.once)):
            for policy in _ON_THREADS:
                for workers in (1, 2):
                    options = replace(_TABLE2.faster(workers), poisson=poisson, cores=workers)
                    runs = [once(options, policy, seed) for seed in real.seeds]
                    rows = {channel: (f"{policy}, {channel}{clock}", str(workers)) for channel in CHANNELS}
                    add_failures(panel, rows, runs)


def _dds(real: Real, result: Result) -> None:
    """Table 2 with one thread that matches, which takes messages from CycloneDDS or from our order."""
    for name, poisson in ARRIVALS.items():
        options = replace(_TABLE2, poisson=poisson)
        title = f"Table 2, all times × {_STRETCH}, one thread on the wall clock, and CycloneDDS, {name}"
        panel = result.panel(title, "channel", FAIL, log=False)
        try:
            of_dds = [real.on_dds(options, seed) for seed in real.seeds]
        except UnavailableError as error:
            result.unavailable["CycloneDDS"] = str(error)
        else:
            add_failures(panel, {channel: ("CycloneDDS", channel) for channel in CHANNELS}, of_dds)
        for policy in _ON_THREADS:
            runs = [real.on_threads(options, policy, seed) for seed in real.seeds]
            add_failures(panel, {channel: (policy, channel) for channel in CHANNELS}, runs)
