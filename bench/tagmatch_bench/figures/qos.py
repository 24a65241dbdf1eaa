"""`tagmatch-bench qos`: the measurements of "Pub/Sub on Stream", for any system and for a simulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np

from tagmatch import Channel
from tagmatch_bench.figures import published
from tagmatch_bench.figures.figure import PARTS
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.results import Mean, Panel, Result, Row, Target
from tagmatch_bench.qos.kernels import EXACT, Messages
from tagmatch_bench.qos.simulator import (
    CHANNELS,
    LATENESS,
    POLICIES,
    SCENARIOS,
    ChannelResult,
    Flow,
    QosOptions,
    run,
    simulate,
    work_of,
)

#: Rates that are tried go down from a little over what the cores can do, in coarse steps, then up again in fine ones
_OVER, _FINE_STEPS = 1.05, 4
#: Rates under this share of what the cores can do are not tried
_LEAST = 1e-3


@dataclass
class MostMessages:
    """Searches among rates, as factors of a scenario's.

    It comes from above, as failures need not grow with the rate if messages are periodic: the result is the most,
    though there may be lower rates at which more fail. Rates that were tried are not simulated again.
    """

    fails: Callable[[float], dict[str, float]]
    capacity: float
    coarse: float = 0.92
    fine: float = 1.02

    def __post_init__(self) -> None:
        self.fails = cache(self.fails)

    def most(self, good: Callable[[dict[str, float]], bool]) -> float:
        """Return the greatest factor that was tried at which failures are good, to a fine step; 0 without one."""
        factor = _OVER * self.capacity
        while not good(self.fails(factor)):
            factor *= self.coarse
            if factor < _LEAST * self.capacity:
                return 0.0
        for step in range(_FINE_STEPS - 1, 0, -1):
            if good(self.fails(factor * self.fine**step)):
                return factor * self.fine**step
        return factor


IGNORANT, DFGS, SMART, BOTH, HEAD_WAITS = tuple(POLICIES)[:5]
EDF, EDF_BATCHES = tuple(POLICIES)[5:]
#: By name, whether messages come as a Poisson process
ARRIVALS = {"periodic": 0, "Poisson": 1}

FAIL, RATE, _TIMES = "% fail", "messages/s", "times"
_ALL = "all"
THREE = (IGNORANT, BOTH, EDF)
FIVE = (IGNORANT, DFGS, SMART, BOTH, EDF)
#: Of Figure 12, and which share of a task's time a batch takes once: half, which is chosen
OF_FIGURE12 = {IGNORANT: 0.0, BOTH: 0.0, HEAD_WAITS: 0.0, EDF: 0.0, EDF_BATCHES: 0.5}
CORES = (1, 2, 3, 4, 5, 6, 7)
_AHEAD_OF_IGNORANT, _AHEAD_OF_DFGS = Target(10), Target(1.5)
#: "Near-linear": 85 % of seven times as much
_NEAR_LINEAR = Target(6)


@dataclass
class Runs(ABC):
    """Runs scenarios, once for each seed; others are of Figure 12's search."""

    seeds: Sequence[int]
    of_figure12: Mapping[str, float] = field(default_factory=lambda: OF_FIGURE12)
    more: Sequence[str] = ()  # brokers that are shown besides the paper's and EDF
    coarse: float = 0.92
    fine: float = 1.02

    @abstractmethod
    def once(self, options: QosOptions, policy: str, seed: int) -> list[ChannelResult]:
        """The outcome of the channels' messages."""

    def all(self, options: QosOptions, policy: str) -> list[list[ChannelResult]]:
        """The same for each seed."""
        return [self.once(options, policy, seed) for seed in self.seeds]

    def rate(self, options: QosOptions) -> float:
        """Messages a second of a scenario."""
        return options.rate


def percent_failed(results: Iterable[ChannelResult]) -> dict[str, float]:
    """Percent of each channel's messages that fail, and of all."""
    results = list(results)
    failed = {each.name: 100 * each.failed for each in results}
    failures = sum(each.late + each.dropped for each in results)
    return failed | {_ALL: 100 * failures / max(1, sum(each.offered for each in results))}


def figures(runs: Runs, result: Result) -> dict[str, Callable[[], object]]:
    """What adds each part to a result, by name; without Table 1."""
    table2, figure8 = SCENARIOS["table2"], SCENARIOS["figure8"]
    figure11 = SCENARIOS["figure11"]
    times, rate = "channel 2's processing time, × Table 2's", "channel 2's rate, × Table 2's"
    few, many, slow = (0.25, 0.5, 1, 1.25, 1.5, 2), (0.5, 1, 2, 4, 6, 8, 9, 10, 11), (0.5, 1, 2, 3, 4, 5, 6)
    failing = partial(_failures, runs, result)

    def oftener(options: QosOptions) -> Callable[[float], QosOptions]:
        return lambda times: replace(options, period2=options.period2 / times)

    return {
        "table2": partial(_table2, runs, result),
        "figure6": partial(
            failing,
            "Figure 6, 1 core",
            times,
            (0.25, 0.5, 1, 1.5, 2, 3, 4),
            lambda times: replace(table2, processing2=table2.processing2 * times),
            THREE,
        ),
        "figure7": partial(failing, "Figure 7, 1 core", rate, few, oftener(table2), THREE),
        "figure8": partial(failing, "Figure 8, 7 cores", rate, many, oftener(figure8), THREE),
        "figure9": partial(failing, "Figure 9, 7 cores", rate, many, oftener(figure8), FIVE),
        "figure10": partial(
            failing, "Figure 10", "cores", CORES, lambda cores: replace(SCENARIOS["figure10"], cores=int(cores)), THREE
        ),
        "figure11": partial(
            failing, "Figure 11, 7 cores, channel 2 takes twice as long", rate, slow, oftener(figure11), FIVE
        ),
        "figure12": partial(_figure12, runs, result),
    }


def _table2(runs: Runs, result: Result) -> None:
    """Simulate Table 2 as it is: what fails, and how late answers are."""
    bounds = [f"{bound:+g}" for bound in LATENESS]
    places = [f"to {bounds[0]}", *(f"to {bound}" for bound in bounds[1:]), f"over {bounds[-1]}"]
    for arrivals, poisson in ARRIVALS.items():
        options = replace(SCENARIOS["table2"], poisson=poisson)
        failed = result.panel(f"Table 2, 1 core, {arrivals}", "channel", FAIL, log=False)
        late = result.panel(
            f"Table 2, 1 core, {arrivals}: answers by lateness",
            "deadlines after the deadline",
            "% of messages",
            log=False,
        )
        for policy in (*THREE, *runs.more):
            each_seed = runs.all(options, policy)
            add_failures(failed, {channel: (policy, channel) for channel in (*CHANNELS, _ALL)}, each_seed)
            for channel, name in enumerate(CHANNELS):
                counts = np.array([each[channel].lateness for each in each_seed])
                offered = np.array([each[channel].offered for each in each_seed])
                for place, shares in zip(places, (100 * counts / np.maximum(offered, 1)[:, None]).T, strict=True):
                    late.rows.append(Mean(tuple(shares.tolist())).row(f"{policy}, {name}", late.unit, place))


def _failures(
    runs: Runs,
    result: Result,
    title: str,
    x_label: str,
    places: Sequence[float],
    scenario: Callable[[float], QosOptions],
    policies: Sequence[str],
) -> None:
    """Simulate what fails at each place of a figure, with periodic messages and with Poisson's."""
    for arrivals, poisson in ARRIVALS.items():
        panel = result.panel(f"{title}, {arrivals}", x_label, FAIL, "lines", log=False, log_x=x_label != "cores")
        if title == "Figure 10":
            panel.published += published.QOS_FIGURE10
        widest = 0.0
        for policy in (*policies, *runs.more):
            for at in places:
                each_seed = runs.all(replace(scenario(at), poisson=poisson), policy)
                rows = {channel: (f"{policy}, {channel}", at) for channel in (*CHANNELS, _ALL)}
                widest = max(widest, add_failures(panel, rows, each_seed))
        what = f"{title}, {arrivals}: half of the widest 95 % confidence interval"
        result.add(what, widest, "percentage points")


def add_failures(panel: Panel, rows: Mapping[str, tuple[str, str | float]], runs: list[list[ChannelResult]]) -> float:
    """Add the mean over the seeds of what fails of each channel; returns half of the widest confidence interval."""
    failed = [percent_failed(each) for each in runs]
    widest = 0.0
    for channel, (what, at) in rows.items():
        mean = Mean(tuple(each[channel] for each in failed))
        panel.rows.append(mean.row(what, panel.unit, at))
        widest = max(widest, mean.half_width)
    return widest


def _figure12(runs: Runs, result: Result) -> None:
    """Find the greatest rate at which less than 1 % of messages fail: on each channel, and of all, as published."""
    for arrivals, poisson in ARRIVALS.items():
        titles = {
            True: f"Figure 12, {arrivals}: under 1 % fail on each channel",
            False: f"Figure 12, {arrivals}: under 1 % of all fail",
        }
        panels = {each: result.panel(titles[each], "cores", RATE, "lines", log_x=False) for each in titles}
        rates: dict[tuple[str, int], Mean] = {}
        for policy, shared in runs.of_figure12.items():
            for cores in CORES:
                options = replace(SCENARIOS["table2"], poisson=poisson, cores=cores, shared=shared)
                found = [_most(runs, options, policy, seed) for seed in runs.seeds]
                for each_channel, panel in panels.items():
                    mean = Mean(tuple(rate[each_channel] for rate in found))
                    panel.rows.append(mean.row(policy, RATE, cores))
                    if each_channel:
                        rates[policy, cores] = mean
        _targets(runs, result, arrivals, rates)
    result.add(
        "Figure 12, paper: its QoS-aware system against QoS-ignorant, at least", published.QOS_FIGURE12_AT_LEAST, _TIMES
    )


def _most(runs: Runs, options: QosOptions, policy: str, seed: int) -> dict[bool, float]:
    """Most messages a second under 1 % failures: on each channel, and of all."""

    def fails(factor: float) -> dict[str, float]:
        return percent_failed(runs.once(options.faster(factor), policy, seed))

    capacity = options.cores / options.utilisation / (1 - options.shared)
    search = MostMessages(fails, capacity, coarse=runs.coarse, fine=runs.fine)
    each = runs.rate(options) * search.most(lambda failed: max(failed.values()) < 1)
    return {True: each, False: runs.rate(options) * search.most(lambda failed: failed[_ALL] < 1)}


def _targets(runs: Runs, result: Result, arrivals: str, rates: dict[tuple[str, int], Mean]) -> None:
    last = CORES[-1]
    ahead = f"{{}} against {{}}, {last} cores"
    compared: list[tuple[str, tuple[str, int], tuple[str, int], Target | None]] = [
        (f"{EDF} against {IGNORANT}, 1 core", (EDF, 1), (IGNORANT, 1), _AHEAD_OF_IGNORANT),
        (f"{BOTH} against {IGNORANT}, 1 core", (BOTH, 1), (IGNORANT, 1), None),
        (ahead.format(EDF, BOTH), (EDF, last), (BOTH, last), _AHEAD_OF_DFGS),
        (ahead.format(EDF, HEAD_WAITS), (EDF, last), (HEAD_WAITS, last), _AHEAD_OF_DFGS),
        (ahead.format(EDF_BATCHES, BOTH), (EDF_BATCHES, last), (BOTH, last), _AHEAD_OF_DFGS),
        (f"{EDF}, {last} cores against 1", (EDF, last), (EDF, 1), _NEAR_LINEAR),
        (f"{BOTH}, {last} cores against 1", (BOTH, last), (BOTH, 1), None),
    ]
    table2 = SCENARIOS["table2"]
    if rates[BOTH, last].mean:
        busy = last * runs.rate(table2) / table2.utilisation / rates[BOTH, last].mean
        result.add(f"Figure 12, {arrivals}: all of {last} cores busy all the time against {BOTH}", busy, _TIMES)
    for what, one, other, target in compared:
        # On a machine that is busy otherwise, messages fail at each rate
        if one in rates and other in rates and all(rates[other].values):
            ratio = rates[one].over(rates[other])
            what = f"Figure 12, {arrivals}, each channel: {what}"
            result.add(what, ratio.mean, _TIMES, target)
            result.add(f"{what}, 95 % confidence, from", ratio.mean - ratio.half_width, _TIMES, target)
            result.add(f"{what}, 95 % confidence, to", ratio.mean + ratio.half_width, _TIMES)


def qos(bench: Bench, *, messages: int = 20_000, seeds: int = 10, parts: tuple[str, ...] = PARTS["qos"]) -> Result:
    """Simulate all parts that are wanted."""
    result = bench.result(
        "qos",
        "Messages with deadlines, simulated",
        f"""Table 1 and Figures 6 to 12 of "Pub/Sub on Stream" (Wang et al., DEBS 2012) in an event-driven simulator,
        whose kernels have the published algorithms, and times in whole nanoseconds: nothing here is timed by a clock.
        Two channels have the paper's periods, processing times and deadlines (Table 2). A message of channel 1 is an
        H phase and one SubC phase, one of channel 2 an H phase and ten; the paper does not say how many it had. *Fail*
        are messages that are answered late, deserted or dropped, of each channel and of all together: channel 1 has
        nine of ten messages, so that all together hides channel 2. *QoS-ignorant* has cores take messages in turn,
        each of them whole. *DFGS* is Algorithm 3 with cores in turn, *Smart Dispatch* is Algorithm 4 with indivisible
        messages. What Algorithm 3 calls the head of a queue, behind which tasks go, is the running task, which is
        better for it; in *head waits* it is the first task that waits. *EDF* has one queue for all cores, takes the
        task of the message with the earliest deadline, and drops messages that are or would be late. *Periodic*
        messages come once a period from a random time on, as the paper's; *Poisson* are as many at random. Values are
        means of {seeds} seeds with about {messages:,} messages each. Of its lines the paper prints few
        values, which are shown too.""",
        messages=messages,
        seeds=seeds,
        parts=parts,
    )
    simulation = Simulation(messages, range(bench.options.seed, bench.options.seed + seeds))
    works: dict[str, Callable[[], object]] = {"table1": partial(_table1, result), **figures(simulation, result)}
    bench.do(works, parts, "qos: simulating")
    result.add("messages simulated, each of them answered or dropped", simulation.messages, "messages")
    return result


class Simulation(Runs):
    """Simulates scenarios, and counts messages."""

    def __init__(self, each: int, seeds: Sequence[int]) -> None:
        super().__init__(seeds)
        self._each = each
        self.messages = 0

    def once(self, options: QosOptions, policy: str, seed: int) -> list[ChannelResult]:
        """The outcome of the channels' messages."""
        results = simulate(replace(options, messages=self._each, seed=seed), POLICIES[policy])
        self.messages += sum(each.offered for each in results)
        return results


def table1(result: Result) -> Iterator[tuple[Panel, Panel, int, str, tuple[float, float]]]:
    """Table 1's panels of time and of the H phase's share, with each place and what the paper has there."""
    time = result.panel("Table 1: a message alone", "subscriptions", "ms", log=False)
    share = result.panel("Table 1: share of the H phase", "subscriptions", "%", log=False)
    for subscriptions, (milliseconds, h_share) in published.QOS_TABLE1.items():
        at = f"{subscriptions:,}"
        yield time, share, subscriptions, at, (milliseconds, h_share)
        time.published.append(Row("a message", milliseconds, "ms", x=at))
        share.published.append(Row("H phase", h_share, "%", x=at))


def _table1(result: Result) -> None:
    """Simulate one message alone, with Table 1's times, and how these are shared out to tasks."""
    alone = Messages(*(np.array([value], np.int64) for value in (0, 0, EXACT)))
    for time, share, _, at, (milliseconds, h_share) in table1(result):
        flow = Flow(Channel(at, 1.0), 1.0, milliseconds / 1e3, h_share / 100, parts=10)
        for name in THREE:
            time.add(name, at, run(alone, work_of([flow]), 1, POLICIES[name])[0] / 1e6)
        share.add("simulated", at, 100 * flow.tasks[0] / sum(flow.tasks))
