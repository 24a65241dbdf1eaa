"""What is simulated: channels of messages, and every number, with where it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.options import Channel
from tagmatch.workloads.numbers import check_numbers, number

#: All times of the simulator are whole nanoseconds, so that sums are exact
NANOSECONDS = 1_000_000_000

_LONGEST = 86_400.0
_MOST_PARTS = 1000


@dataclass(frozen=True, slots=True)
class Flow:
    """A channel's messages in the simulator: how often they come, and what each takes.

    A message is an H phase and `parts` SubC phases, one after the other. Where messages share a batch, each phase takes
    `shared` of its time once and the rest for each message: a + b·n.

    Attributes
    ----------
    channel : Channel
    period : float
        Seconds between two messages, in the mean.
    processing : float
        Seconds that a message takes on one core.
    h_share : float
        Share of that time in the H phase; without one, 0.
    parts : int
        SubC phases, all as long, which share the rest.
    shared : float
        Share of the time that a batch takes once, whatever number of messages it has.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        A value is of the wrong type or out of range; the message names it.
    """

    channel: Channel
    period: float
    processing: float
    h_share: float = 0.0
    parts: int = 1
    shared: float = 0.0

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
        """Nanoseconds of each task of a message: the H phase, where there is one, and each SubC phase."""
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
    """Two channels of messages and the cores that match them; each option's meaning and source is its `text`.

    The paper's Table 2 sets other processing times than Table 1 measures, 0.07 and 1.3 ms where that has 0.15 and 0.81:
    §6.1 takes the longest of each channel for all its messages. The figures are those of Table 2, and so is this.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        An option is of the wrong type or out of range; the message names it.

    Examples
    --------
    >>> from tagmatch_bench.qos import QosOptions
    >>> options = QosOptions(period2=0.005)
    >>> [round(flow.processing / flow.period, 3) for flow in options.flows]
    [0.333, 0.26]
    """

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
        0.0, 0, 0.99, "How far a message's time may be from what is expected, as a share (paper §6.1: exact)."
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
    """Return a scenario where messages take other times than in Table 2, in the ratios that it has to Table 2's.

    Parameters
    ----------
    options : QosOptions
    processing : sequence of float
        Seconds that a message of each channel takes where Table 2 has its own.

    Examples
    --------
    >>> from tagmatch_bench.qos.options import SCENARIOS, in_own_times
    >>> options = in_own_times(SCENARIOS["table2"], [0.0007, 0.013])
    >>> round(options.period1, 6), round(options.deadline2, 6)
    (0.0021, 0.06)
    """
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
