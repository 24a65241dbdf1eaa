"""Simulates a broker with some cores that gets messages of some channels, and counts the outcome of each message."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from tagmatch import Channel, InvalidTypeError, InvalidValueError
from tagmatch.model.arrays import BoolArray, F64Array, I64Array
from tagmatch.workloads.numbers import check_numbers, number
from tagmatch_bench.qos.kernels import DROPPED, EXACT, LOST, Messages, Work, run_dfgs, run_edf, run_fifo

#: All times of the simulator are whole nanoseconds, so that sums are exact
NANOSECONDS = 1_000_000_000

_LONGEST = 86_400.0
_MOST_PARTS = 1000


@dataclass(frozen=True, slots=True)
class Flow:
    """A channel's messages in the simulator: how often they come, and what each takes.

    A message is an H phase and `parts` SubC phases, one after the other. Where messages share a batch, each phase takes
    `shared` of its time once and the rest for each message: a + b·n.
    """

    channel: Channel
    period: float  # seconds between two messages, in the mean
    processing: float  # seconds that a message takes on one core
    h_share: float = 0.0  # share of that time in the H phase; without one, 0
    parts: int = 1  # SubC phases, all as long, which share the rest
    shared: float = 0.0  # share of the time that a batch takes once, for any number of messages

    def __post_init__(self) -> None:
        if self.channel.deadline is None:
            raise InvalidValueError(f"channel {self.channel.name!r}: the simulator needs its deadline")
        for name in ("period", "processing"):
            _check_seconds(self.channel, name, getattr(self, name))
        for name in ("h_share", "shared"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise InvalidValueError(
                    f"channel {self.channel.name!r}: {name} must be a share from 0 to less than 1, not {value!r}"
                )
        if not 1 <= self.parts <= _MOST_PARTS:
            raise InvalidValueError(
                f"channel {self.channel.name!r}: parts must be from 1 to {_MOST_PARTS}, not {self.parts!r}"
            )

    @property
    def tasks(self) -> tuple[int, ...]:
        """Nanoseconds of each task of a message: the H phase, if it has one, and each SubC phase."""
        whole = max(1, round(self.processing * NANOSECONDS))
        first = round(whole * self.h_share)
        ends = [first + (whole - first) * part // self.parts for part in range(self.parts + 1)]
        parts = [max(1, after - before) for before, after in pairwise(ends)]
        return (first, *parts) if first else tuple(parts)


def _check_seconds(channel: Channel, what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidTypeError(f"channel {channel.name!r}: {what} must be a number of seconds, not {value!r}")
    if not (math.isfinite(value) and 1 / NANOSECONDS <= value <= _LONGEST):
        raise InvalidValueError(
            f"channel {channel.name!r}: {what} must be from 1e-09 to {_LONGEST:,.0f} seconds, not {value!r}"
        )


#: Names of the paper's two channels
CHANNELS = ("channel 1", "channel 2")

_LEAST, _MOST = 1e-9, 86_400.0


@dataclass(frozen=True, slots=True)
class QosOptions:
    """Two channels of messages and the cores that match them; each option's meaning and source is its `text`."""

    # Table 2 has longer processing times than Table 1: §6.1 takes the longest of each channel for all its messages

    seed: int = number(1, 0, 2**63 - 1, "Arrivals with different seeds share their statistics only.")
    messages: int = number(20_000, 2, 10_000_000, "Messages of both channels, about (paper §6.1).")
    poisson: int = number(0, 0, 1, "0 for one message a period (paper §6.1), 1 for a Poisson process (chosen).")
    cores: int = number(1, 1, 256, "Cores that match (paper §6.2: 1, §6.3: 7).")
    period1: float = number(0.000_21, _LEAST, _MOST, "Seconds between messages of channel 1 (paper Table 2).")
    period2: float = number(0.0025, _LEAST, _MOST, "Seconds between messages of channel 2 (paper Table 2).")
    processing1: float = number(0.000_07, _LEAST, _MOST, "Seconds a message of channel 1 takes (paper Table 2).")
    processing2: float = number(0.0013, _LEAST, _MOST, "Seconds a message of channel 2 takes (paper Table 2).")
    deadline1: float = number(0.0005, _LEAST, _MOST, "Deadline of channel 1 in seconds (paper Table 2).")
    deadline2: float = number(0.006, _LEAST, _MOST, "Deadline of channel 2 in seconds (paper Table 2).")
    h_share1: float = number(0.14, 0, 0.99, "Share of the H phase, channel 1 (paper Table 1, 60,000 subscriptions).")
    h_share2: float = number(0.03, 0, 0.99, "Share of the H phase, channel 2 (paper Table 1, 600,000 subscriptions).")
    parts1: int = number(1, 1, 1000, "SubC phases of channel 1 (chosen; the paper has several, and says not how many).")
    parts2: int = number(10, 1, 1000, "SubC phases of channel 2 (chosen; each is then as long as two messages of 1).")
    shared: float = number(0.0, 0, 0.99, "Share of a task's time that a batch takes once (chosen; the paper has none).")
    error: float = number(
        0.0, 0, 0.99, "How far a message's time may be from the expected time, as a share (paper §6.1: exact)."
    )

    def __post_init__(self) -> None:
        check_numbers(self)
        for what in (1, 2):
            processing, deadline = getattr(self, f"processing{what}"), getattr(self, f"deadline{what}")
            if processing > deadline:
                raise InvalidValueError(
                    f"processing{what} must be at most deadline{what}, {deadline:g}, or no message of channel {what} "
                    f"can be in time; it is {processing:g}"
                )

    @property
    def flows(self) -> tuple[Flow, Flow]:
        """Both channels' messages. Where batches pay, a message may wait for them as long as its deadline lets it."""
        return self._flow(1), self._flow(2)

    @property
    def utilisation(self) -> float:
        """Cores that the messages keep busy."""
        return sum(flow.processing / flow.period for flow in self.flows)

    @property
    def rate(self) -> float:
        """Messages a second."""
        return sum(1 / flow.period for flow in self.flows)

    def faster(self, factor: float) -> QosOptions:
        """The same, with both channels' messages this many times as often."""
        return replace(self, period1=self.period1 / factor, period2=self.period2 / factor)

    def _flow(self, what: int) -> Flow:
        deadline, processing = getattr(self, f"deadline{what}"), getattr(self, f"processing{what}")
        budget = deadline - processing if self.shared else 0.0
        return Flow(
            Channel(CHANNELS[what - 1], deadline, latency_budget=budget),
            getattr(self, f"period{what}"),
            processing,
            getattr(self, f"h_share{what}"),
            getattr(self, f"parts{what}"),
            self.shared,
        )


_TABLE2 = QosOptions()
_SEVEN = replace(_TABLE2, cores=7, period1=0.000_042)
#: `table2` is the baseline of Figures 6, 7 and 12; `figure8` that of Figures 8 and 9 (§6.3); in `figure11` a message of
#: channel 2 takes twice as long; `figure10` is §6.4's
SCENARIOS: Mapping[str, QosOptions] = {
    "table2": _TABLE2,
    "figure8": _SEVEN,
    "figure10": replace(_TABLE2, period1=0.000_07, period2=0.001_666),
    "figure11": replace(_SEVEN, processing2=2 * _TABLE2.processing2),
}


def in_own_times(options: QosOptions, processing: Sequence[float]) -> QosOptions:
    """Return a scenario where messages take other times than in Table 2, in the ratios that it has to Table 2's."""
    first, second = processing[0] / _TABLE2.processing1, processing[1] / _TABLE2.processing2
    return replace(
        options,
        period1=options.period1 * first,
        processing1=options.processing1 * first,
        deadline1=options.deadline1 * first,
        period2=options.period2 * second,
        processing2=options.processing2 * second,
        deadline2=options.deadline2 * second,
    )


#: Bounds of the lateness histogram, in deadlines: an answer's time after its deadline; before it, less than 0
LATENESS = (-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a broker does with messages."""

    # the QoS-ignorant broker, the earliest deadline first, or queues of tasks by core
    order: Literal["fifo", "edf", "dfgs"]
    # of `dfgs`: whether tasks go where Algorithm 3 has them, else messages are indivisible and go to the end; and
    # whether Algorithm 4 looks for a core, else cores take turns
    fine: bool = True
    smart: bool = True
    # of `dfgs`: whether the head that tasks go behind is the first task that waits, not the one that runs
    keep_head: bool = False
    most: int = 1  # of `edf`: messages of a batch at most


#: Policies by name; *QoS-ignorant*, *DFGS + Smart Dispatch* and its two halves are the paper's
POLICIES: Mapping[str, Policy] = {
    "QoS-ignorant": Policy("fifo"),
    "DFGS": Policy("dfgs", smart=False),
    "Smart Dispatch": Policy("dfgs", fine=False),
    "DFGS + Smart Dispatch": Policy("dfgs"),
    "DFGS + Smart Dispatch, head waits": Policy("dfgs", keep_head=True),
    "EDF": Policy("edf"),
    "EDF, batches": Policy("edf", most=256),
}


@dataclass(frozen=True, slots=True)
class ChannelResult:
    """The outcome of a channel's messages."""

    name: str
    offered: int  # messages that came; each of them is one of the other three. Dropped are deserted ones, too
    in_time: int
    late: int
    dropped: int
    # answers by how late they were: up to the first bound of `LATENESS`, up to the next, ..., above the last
    lateness: tuple[int, ...]

    @property
    def failed(self) -> float:
        """Share of the messages that were not answered in time; 0 of none."""
        return (self.late + self.dropped) / self.offered if self.offered else 0.0


def simulate(options: QosOptions, policy: Policy) -> list[ChannelResult]:
    """Simulate the messages of a scenario."""
    flows = options.flows
    seconds = options.messages / options.rate
    messages = arrivals(flows, seconds, options.seed, poisson=bool(options.poisson), error=options.error)
    whole = policy.order == "dfgs" and not policy.fine
    ends = run(messages, work_of(flows, indivisible=whole), options.cores, policy)
    return count_results(messages, flows, ends)


def arrivals(flows: Sequence[Flow], seconds: float, seed: int, *, poisson: bool, error: float = 0.0) -> Messages:
    """Draw all channels' messages within some seconds: one a period from a random time on, or Poisson processes."""
    random = np.random.default_rng(seed)
    times, channels = [], []
    for channel, flow in enumerate(flows):
        if poisson:
            # As many as a Poisson process has in that time; where each of them is, is uniform
            at: F64Array = np.sort(random.uniform(0.0, seconds, random.poisson(seconds / flow.period)))
        else:
            first, most = random.random() * flow.period, int(seconds / flow.period) + 1
            periodic = first + np.arange(most, dtype=np.float64) * flow.period
            at = periodic[periodic < seconds]
        times.append(np.round(at * NANOSECONDS).astype(np.int64))
        channels.append(np.full(len(at), channel, np.int64))
    time, channel_of = np.concatenate(times), np.concatenate(channels)
    order = np.argsort(time, kind="stable")
    pace = np.full(len(order), EXACT, np.int64)
    if error:
        pace = np.round(EXACT * random.uniform(1 - error, 1 + error, len(order))).astype(np.int64)
    return Messages(time[order], channel_of[order], pace)


def work_of(flows: Sequence[Flow], *, indivisible: bool = False) -> Work:
    """Make tables of the channels' options; a message is one task if it is `indivisible`."""
    tasks = [(sum(flow.tasks),) if indivisible else flow.tasks for flow in flows]
    deadlines = _nanoseconds([flow.channel.due for flow in flows])
    # A message's tasks share out its latency budget
    longer = np.repeat([1 + flow.channel.budget / flow.processing for flow in flows], [*map(len, tasks)])
    # No batch may take so long that a message of any channel that comes during it is late
    tightest = min(int(deadline) - sum(each) for deadline, each in zip(deadlines, tasks, strict=True))
    alone = np.array([task for each in tasks for task in each], np.int64)
    shares = np.repeat([1 - flow.shared for flow in flows], [*map(len, tasks)])
    return Work(
        deadlines,
        _nanoseconds([flow.channel.expires for flow in flows]),
        np.array([flow.channel.priority for flow in flows], np.int64),
        np.cumsum([0, *map(len, tasks)]).astype(np.int64),
        np.repeat(np.arange(len(flows)), [*map(len, tasks)]).astype(np.int64),
        alone,
        np.maximum(1, np.round(alone * shares).astype(np.int64)),
        np.minimum(tightest, np.round(alone * longer).astype(np.int64)),
        np.concatenate([np.cumsum(each[::-1])[::-1] for each in tasks]).astype(np.int64),
    )


def run(messages: Messages, work: Work, cores: int, policy: Policy, ways: BoolArray | None = None) -> I64Array:
    """Return when each message is answered, in nanoseconds; `kernels.DROPPED` for one that is not."""
    ends = np.full(len(messages.arrival), LOST, np.int64)
    if policy.order == "fifo":
        run_fifo(messages, work, cores, ends)
    elif policy.order == "edf":
        run_edf(messages, work, cores, policy.most, ends)
    else:
        shape = (len(work.deadline), cores)
        ways = np.ones(shape, np.bool_) if ways is None else ways
        if ways.shape != shape:
            raise InvalidValueError(f"ways must have a row for each channel and a column for each core, {shape}")
        run_dfgs(messages, work, ways, policy.fine, policy.smart, policy.keep_head, ends)
    return ends


def count_results(messages: Messages, flows: Sequence[Flow], ends: I64Array) -> list[ChannelResult]:
    """Count the outcomes of each channel's messages."""
    results = []
    for channel, flow in enumerate(flows):
        own = messages.channel == channel
        answered = own & (ends > messages.arrival)
        offered, dropped = int(np.count_nonzero(own)), int(np.count_nonzero(own & (ends == DROPPED)))
        deadline = round(flow.channel.due * NANOSECONDS)
        late_by = ends[answered] - messages.arrival[answered] - deadline
        late = int(np.count_nonzero(late_by > 0))
        if lost := offered - len(late_by) - dropped:
            raise RuntimeError(f"{flow.channel.name}: the simulator lost {lost} of {offered} messages")
        places = np.searchsorted(np.array(LATENESS) * deadline, late_by, side="left")
        lateness = np.bincount(places, minlength=len(LATENESS) + 1)
        results.append(
            ChannelResult(flow.channel.name, offered, len(late_by) - late, late, dropped, tuple(lateness.tolist()))
        )
    return results


def _nanoseconds(seconds: Sequence[float]) -> I64Array:
    return np.array([round(each * NANOSECONDS) for each in seconds], np.int64)
