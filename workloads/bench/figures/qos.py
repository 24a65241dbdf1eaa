"""`tagmatch-bench qos`: Table 1 and Figures 6 to 12 of "Pub/Sub on Stream" in the simulator, channel by channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tagmatch.model.channels import Channel
from tagmatch.workloads.bench.figures import published_qos as published
from tagmatch.workloads.bench.figures.qos_most import MostMessages
from tagmatch.workloads.bench.harness.confidence import Mean
from tagmatch.workloads.bench.harness.results import Row, Target
from tagmatch.workloads.qos.channels import Flow
from tagmatch.workloads.qos.kernels import EXACT, Messages
from tagmatch.workloads.qos.options import CHANNELS, SCENARIOS, QosOptions
from tagmatch.workloads.qos.simulator import LATENESS, POLICIES, ChannelResult, run, simulate, work_of

if TYPE_CHECKING:
    from tagmatch.workloads.bench.harness.bench import Bench
    from tagmatch.workloads.bench.harness.results import Panel, Result

PARTS = ("table1", "table2", "figure6", "figure7", "figure8", "figure9", "figure10", "figure11", "figure12")

IGNORANT, DFGS, SMART, BOTH, HEAD_WAITS = tuple(POLICIES)[:5]
EDF, EDF_BATCHES = tuple(POLICIES)[5:]
#: By name, whether messages come as a Poisson process
ARRIVALS = {"periodic": 0, "Poisson": 1}

_FAIL, _RATE, _TIMES = "% fail", "messages/s", "times"
_ALL = "all"
_THREE = (IGNORANT, BOTH, EDF)
_FIVE = (IGNORANT, DFGS, SMART, BOTH, EDF)
#: Of Figure 12. A batch takes half of a task's time once, which is chosen
_OF_FIGURE12 = {IGNORANT: 0.0, BOTH: 0.0, HEAD_WAITS: 0.0, EDF: 0.0, EDF_BATCHES: 0.5}
_CORES = (1, 2, 3, 4, 5, 6, 7)
_AHEAD_OF_IGNORANT, _AHEAD_OF_DFGS = Target(10), Target(1.5)
#: "Near-linear": 85 % of seven times as much
_NEAR_LINEAR = Target(6)


@dataclass(frozen=True, slots=True)
class QosSizes:
    """How much is simulated, and what is wanted; see the command's help."""

    messages: int = 20_000
    seeds: int = 10
    parts: tuple[str, ...] = PARTS


def qos(bench: Bench, sizes: QosSizes) -> Result:
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
        means of {sizes.seeds} seeds with about {sizes.messages:,} messages each. Of its lines the paper prints few
        values; those stand beside.""",
        messages=sizes.messages,
        seeds=sizes.seeds,
        parts=sizes.parts,
    )
    simulation = Simulation(sizes.messages, range(bench.options.seed, bench.options.seed + sizes.seeds))
    table2, figure8 = SCENARIOS["table2"], SCENARIOS["figure8"]
    figure11 = SCENARIOS["figure11"]
    times, rate = "channel 2's processing time, × Table 2's", "channel 2's rate, × Table 2's"
    few, many, slow = (0.25, 0.5, 1, 1.25, 1.5, 2), (0.5, 1, 2, 4, 6, 8, 9, 10, 11), (0.5, 1, 2, 3, 4, 5, 6)
    failing = partial(_failures, simulation, result)
    works: dict[str, Callable[[], object]] = {
        "table1": partial(_table1, result),
        "table2": partial(_table2, simulation, result),
        "figure6": partial(
            failing, "Figure 6, 1 core", times, (0.25, 0.5, 1, 1.5, 2, 3, 4), partial(_slower, table2), _THREE
        ),
        "figure7": partial(failing, "Figure 7, 1 core", rate, few, partial(_oftener, table2), _THREE),
        "figure8": partial(failing, "Figure 8, 7 cores", rate, many, partial(_oftener, figure8), _THREE),
        "figure9": partial(failing, "Figure 9, 7 cores", rate, many, partial(_oftener, figure8), _FIVE),
        "figure10": partial(failing, "Figure 10", "cores", _CORES, partial(_with_cores, SCENARIOS["figure10"]), _THREE),
        "figure11": partial(
            failing, "Figure 11, 7 cores, channel 2 takes twice as long", rate, slow, partial(_oftener, figure11), _FIVE
        ),
        "figure12": partial(_figure12, simulation, result),
    }
    for part in PARTS:
        if part in sizes.parts:
            with bench.doing(f"qos: simulating {part}"):
                works[part]()
    result.add("messages simulated, each of them answered or dropped", simulation.messages, "messages")
    return result


class Simulation:
    """Simulates a scenario once for each seed, and counts messages."""

    def __init__(self, each: int, seeds: Sequence[int]) -> None:
        self._each = each
        self.seeds = seeds
        self.messages = 0

    def once(self, options: QosOptions, policy: str, seed: int) -> list[ChannelResult]:
        """What becomes of the channels' messages."""
        results = simulate(replace(options, messages=self._each, seed=seed), POLICIES[policy])
        self.messages += sum(each.offered for each in results)
        return results

    def all(self, options: QosOptions, policy: str) -> list[list[ChannelResult]]:
        """The same for each seed."""
        return [self.once(options, policy, seed) for seed in self.seeds]


def percent_failed(results: Iterable[ChannelResult]) -> dict[str, float]:
    """Percent of each channel's messages that fail, and of all."""
    results = list(results)
    failed = {each.name: 100 * each.failed for each in results}
    failures = sum(each.late + each.dropped for each in results)
    return failed | {_ALL: 100 * failures / max(1, sum(each.offered for each in results))}


# -- scenarios of the figures ------------------------------------------------------------------------------------------


def _slower(options: QosOptions, times: float) -> QosOptions:
    return replace(options, processing2=options.processing2 * times)


def _oftener(options: QosOptions, times: float) -> QosOptions:
    return replace(options, period2=options.period2 / times)


def _with_cores(options: QosOptions, cores: float) -> QosOptions:
    return replace(options, cores=int(cores))


# -- tables and figures ------------------------------------------------------------------------------------------------


def _table1(result: Result) -> None:
    """Simulate one message alone, with Table 1's times, and how these are shared out to tasks."""
    time = result.panel("Table 1: a message alone", "subscriptions", "ms", log=False)
    share = result.panel("Table 1: share of the H phase", "subscriptions", "%", log=False)
    alone = Messages(*(np.array([value], np.int64) for value in (0, 0, EXACT)))
    for subscriptions, (milliseconds, h_share) in published.TABLE1.items():
        at = f"{subscriptions:,}"
        flow = Flow(Channel(at, 1.0), 1.0, milliseconds / 1e3, h_share / 100, parts=10)
        for name in _THREE:
            time.add(name, at, run(alone, work_of([flow]), 1, POLICIES[name])[0] / 1e6)
        share.add("simulated", at, 100 * flow.tasks[0] / sum(flow.tasks))
        time.published.append(Row("a message", milliseconds, "ms", x=at))
        share.published.append(Row("H phase", h_share, "%", x=at))


def _table2(simulation: Simulation, result: Result) -> None:
    """Simulate Table 2 as it is: what fails, and how late answers are."""
    bounds = [f"{bound:+g}" for bound in LATENESS]
    places = [f"to {bounds[0]}", *(f"to {bound}" for bound in bounds[1:]), f"over {bounds[-1]}"]
    for arrivals, poisson in ARRIVALS.items():
        options = replace(SCENARIOS["table2"], poisson=poisson)
        failed = result.panel(f"Table 2, 1 core, {arrivals}", "channel", _FAIL, log=False)
        late = result.panel(
            f"Table 2, 1 core, {arrivals}: answers by lateness",
            "deadlines after the deadline",
            "% of messages",
            log=False,
        )
        for policy in _THREE:
            runs = simulation.all(options, policy)
            _add_failures(failed, {channel: (policy, channel) for channel in (*CHANNELS, _ALL)}, runs)
            for channel, name in enumerate(CHANNELS):
                counts = np.array([each[channel].lateness for each in runs])
                offered = np.array([each[channel].offered for each in runs])
                for place, shares in zip(places, (100 * counts / np.maximum(offered, 1)[:, None]).T, strict=True):
                    late.rows.append(Mean(tuple(shares.tolist())).row(f"{policy}, {name}", late.unit, place))


def _failures(
    simulation: Simulation,
    result: Result,
    title: str,
    x_label: str,
    places: Sequence[float],
    scenario: Callable[[float], QosOptions],
    policies: Sequence[str],
) -> None:
    """Simulate what fails at each place of a figure, with periodic messages and with Poisson's."""
    for arrivals, poisson in ARRIVALS.items():
        panel = result.panel(f"{title}, {arrivals}", x_label, _FAIL, "lines", log=False, log_x=x_label != "cores")
        if title == "Figure 10":
            panel.published += published.FIGURE10
        widest = 0.0
        for policy in policies:
            for at in places:
                runs = simulation.all(replace(scenario(at), poisson=poisson), policy)
                rows = {channel: (f"{policy}, {channel}", at) for channel in (*CHANNELS, _ALL)}
                widest = max(widest, _add_failures(panel, rows, runs))
        what = f"{title}, {arrivals}: half of the widest 95 % confidence interval"
        result.add(what, widest, "percentage points")


def _add_failures(panel: Panel, rows: Mapping[str, tuple[str, str | float]], runs: list[list[ChannelResult]]) -> float:
    """Add the mean over the seeds of what fails of each channel; returns half of the widest confidence interval."""
    failed = [percent_failed(each) for each in runs]
    widest = 0.0
    for channel, (what, at) in rows.items():
        mean = Mean(tuple(each[channel] for each in failed))
        panel.rows.append(mean.row(what, panel.unit, at))
        widest = max(widest, mean.half_width)
    return widest


def _figure12(simulation: Simulation, result: Result) -> None:
    """Simulate the most messages a second of which less than 1 % fail: on each channel, and of all, as published."""
    for arrivals, poisson in ARRIVALS.items():
        titles = {
            True: f"Figure 12, {arrivals}: under 1 % fail on each channel",
            False: f"Figure 12, {arrivals}: under 1 % of all fail",
        }
        panels = {each: result.panel(titles[each], "cores", _RATE, "lines", log_x=False) for each in titles}
        rates: dict[tuple[str, int], Mean] = {}
        for policy, shared in _OF_FIGURE12.items():
            for cores in _CORES:
                options = replace(SCENARIOS["table2"], poisson=poisson, cores=cores, shared=shared)
                found = [_most(simulation, options, policy, seed) for seed in simulation.seeds]
                for each_channel, panel in panels.items():
                    mean = Mean(tuple(rate[each_channel] for rate in found))
                    panel.rows.append(mean.row(policy, _RATE, cores))
                    if each_channel:
                        rates[policy, cores] = mean
        _targets(result, arrivals, rates)
    result.add(
        "Figure 12, paper: its QoS-aware system against QoS-ignorant, at least", published.FIGURE12_AT_LEAST, _TIMES
    )


def _most(simulation: Simulation, options: QosOptions, policy: str, seed: int) -> dict[bool, float]:
    """Most messages a second under 1 % failures: on each channel, and of all."""

    def fails(factor: float) -> dict[str, float]:
        return percent_failed(simulation.once(options.faster(factor), policy, seed))

    search = MostMessages(fails, options.cores / options.utilisation / (1 - options.shared))
    each = options.rate * search.most(lambda failed: max(failed.values()) < 1)
    return {True: each, False: options.rate * search.most(lambda failed: failed[_ALL] < 1)}


def _targets(result: Result, arrivals: str, rates: dict[tuple[str, int], Mean]) -> None:
    last = _CORES[-1]
    compared = [(f"{policy} against {IGNORANT}, 1 core", (policy, 1), (IGNORANT, 1)) for policy in (EDF, BOTH)]
    targets: list[Target | None] = [_AHEAD_OF_IGNORANT, None]
    for policy in (BOTH, HEAD_WAITS):
        compared.append((f"{EDF} against {policy}, {last} cores", (EDF, last), (policy, last)))
        targets.append(_AHEAD_OF_DFGS)
    compared.append((f"{EDF_BATCHES} against {BOTH}, {last} cores", (EDF_BATCHES, last), (BOTH, last)))
    targets.append(_AHEAD_OF_DFGS)
    for policy in (EDF, BOTH):
        compared.append((f"{policy}, {last} cores against 1", (policy, last), (policy, 1)))
        targets.append(_NEAR_LINEAR if policy == EDF else None)
    table2 = SCENARIOS["table2"]
    busy = last * table2.rate / table2.utilisation / rates[BOTH, last].mean
    result.add(f"Figure 12, {arrivals}: all of {last} cores busy all the time against {BOTH}", busy, _TIMES)
    for (what, one, other), target in zip(compared, targets, strict=True):
        ratio = rates[one].over(rates[other])
        what = f"Figure 12, {arrivals}, each channel: {what}"
        result.add(what, ratio.mean, _TIMES, target)
        result.add(f"{what}, 95 % confidence, from", ratio.mean - ratio.half_width, _TIMES, target)
        result.add(f"{what}, 95 % confidence, to", ratio.mean + ratio.half_width, _TIMES)
