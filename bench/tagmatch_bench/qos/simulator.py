"""Simulates a broker with some cores that gets messages of some channels, and counts what becomes of each message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tagmatch.model.errors import InvalidValueError
from tagmatch_bench.qos.kernels import DROPPED, EXACT, LOST, Messages, Work, run_dfgs, run_edf, run_fifo
from tagmatch_bench.qos.options import NANOSECONDS, Flow

if TYPE_CHECKING:
    from tagmatch.model.arrays import BoolArray, F64Array, I64Array
    from tagmatch_bench.qos.options import QosOptions

#: Bounds of the lateness histogram, in deadlines: an answer's time after its deadline; before it, less than 0
LATENESS = (-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a broker does with messages.

    Attributes
    ----------
    order : "fifo", "edf" or "dfgs"
        The QoS-ignorant broker, the earliest deadline first, or queues of tasks by core.
    fine, smart : bool
        Of `dfgs`: whether tasks go where Algorithm 3 has them, else messages are indivisible and go to the end; and
        whether Algorithm 4 looks for a core, else cores take turns.
    keep_head : bool
        Of `dfgs`: whether the head that tasks go behind is the first task that waits, not the one that runs.
    most : int
        Of `edf`: messages of a batch at most.
    """

    order: Literal["fifo", "edf", "dfgs"]
    fine: bool = True
    smart: bool = True
    keep_head: bool = False
    most: int = 1


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
    """What became of a channel's messages.

    Attributes
    ----------
    name : str
    offered, in_time, late, dropped : int
        Messages that came; each of them is one of the other three. Dropped are deserted ones, too.
    lateness : tuple of int
        Answers by how late they were: up to the first bound of `LATENESS`, up to the next, ..., above the last.
    """

    name: str
    offered: int
    in_time: int
    late: int
    dropped: int
    lateness: tuple[int, ...]

    @property
    def failed(self) -> float:
        """Share of the messages that were not answered in time; 0 of none."""
        return (self.late + self.dropped) / self.offered if self.offered else 0.0


def simulate(options: QosOptions, policy: Policy) -> list[ChannelResult]:
    """Simulate the messages of a scenario.

    Parameters
    ----------
    options : QosOptions
    policy : Policy
        One of `POLICIES`, or another.

    Returns
    -------
    list of ChannelResult
        One for each channel.

    Examples
    --------
    >>> from tagmatch_bench.qos import POLICIES, QosOptions, simulate
    >>> first, second = simulate(QosOptions(messages=1000), POLICIES["EDF"])
    >>> first.offered == first.in_time + first.late + first.dropped
    True
    """
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
    """Make tables of what channels ask for, of which a message is one task if it is `indivisible`."""
    tasks = [(sum(flow.tasks),) if indivisible else flow.tasks for flow in flows]
    deadlines = _nanoseconds([flow.channel.due for flow in flows])
    # A message's tasks share out its latency budget
    longer = np.repeat([1 + flow.channel.budget / flow.processing for flow in flows], [*map(len, tasks)])
    # No batch may take so long that a message of any channel that comes meanwhile is late
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
    """Return when each message is answered, in nanoseconds; `kernels.DROPPED` for one that is not.

    Parameters
    ----------
    messages : Messages
    work : Work
    cores : int
    policy : Policy
    ways : bool array of shape (channels, cores), optional
        Of `dfgs`: whether a core has a way for a channel; by default all have one for each.

    Raises
    ------
    InvalidValueError
        `ways` has another shape.
    """
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
    """Count what became of each channel's messages.

    Raises
    ------
    RuntimeError
        A message was neither answered nor dropped.
    """
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
