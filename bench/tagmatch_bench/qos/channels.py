"""The messages of channels: how often they come, and what a broker has to do for one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.options import Channel

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
