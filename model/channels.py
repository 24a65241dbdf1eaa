"""Channels: messages with the same quality of service, as publishers name it, and the orders that keep it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from tagmatch.model.errors import InvalidTypeError, InvalidValueError

#: In which order messages of channels are matched
Order = Literal["fifo", "edf", "dfgs"]

_SHORTEST = 1e-9
_LONGEST = 86_400.0
_HIGHEST = 1_000_000
# How many of each are a second
_UNITS = {"us": 1e6, "ms": 1e3, "s": 1.0, "min": 1 / 60, "h": 1 / 3600}
_DURATION = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})")
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Channel:
    """Messages with the same quality of service: how soon they must be answered, and which go first.

    Durations are seconds or `timedelta`; they are kept as seconds.

    Attributes
    ----------
    name : str
        Not empty, of at most 100 characters that can be printed, none of them a colon.
    deadline : float or timedelta, optional
        From the moment that a message is handed in until its answer is late; at most a day. `None`: it is never late,
        and goes behind all that can be.
    priority : int
        Which message goes first where deadlines are equal: that of the higher priority. With `edf`, what was let in is
        also protected from what comes later with an earlier deadline and a lower priority: that is refused where both
        could not be in time.
    latency_budget : float or timedelta
        How long a message may wait for others, to be matched with them (LATENCY_BUDGET of DDS). 0: it never waits
        while a thread is free.
    expiry : float or timedelta, optional
        From the moment that a message is handed in until nobody wants the answer: then it is not matched at all
        (LIFESPAN of DDS). At least the deadline. `None`: the deadline, in the orders that drop what is late.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        A value is of the wrong type or out of range; the message names it.

    Examples
    --------
    >>> from datetime import timedelta
    >>> from tagmatch import Channel
    >>> alarm = Channel("alarm", deadline=timedelta(milliseconds=5), priority=1)
    >>> alarm.deadline, alarm.expires
    (0.005, 0.005)
    """

    name: str
    deadline: float | timedelta | None = None
    priority: int = 0
    latency_budget: float | timedelta = 0.0
    expiry: float | timedelta | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidTypeError(f"the name of a channel must be a string, not {self.name!r}")
        if not self.name:
            raise InvalidValueError("the name of a channel must not be empty")
        if len(self.name) > _LONGEST_NAME or ":" in self.name or not self.name.isprintable():
            raise InvalidValueError(
                f"the name of a channel must be at most {_LONGEST_NAME} characters that can be printed, and no colon, "
                f"not {self.name!r}"
            )
        for what, least in (("deadline", _SHORTEST), ("latency_budget", 0.0), ("expiry", _SHORTEST)):
            if getattr(self, what) is not None or what == "latency_budget":
                object.__setattr__(self, what, self._seconds(what, least))
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise InvalidTypeError(f"channel {self.name!r}: priority must be an integer, not {self.priority!r}")
        if not -_HIGHEST <= self.priority <= _HIGHEST:
            raise InvalidValueError(
                f"channel {self.name!r}: priority must be from {-_HIGHEST} to {_HIGHEST}, not {self.priority}"
            )
        if self.budget >= self.due:
            raise InvalidValueError(
                f"channel {self.name!r}: latency_budget must be less than the deadline, {self.deadline:g} seconds, not "
                f"{self.latency_budget:g}"
            )
        if self.expiry is not None and self.deadline is not None and self.expires < self.due:
            raise InvalidValueError(
                f"channel {self.name!r}: expiry must be at least the deadline, {self.deadline:g} seconds, not "
                f"{self.expiry:g}"
            )

    @property
    def due(self) -> float:
        """Seconds until an answer is late; infinite if it never is."""
        return _plain(self.deadline)

    @property
    def budget(self) -> float:
        """Seconds that a message may wait for others."""
        return _plain(self.latency_budget)

    @property
    def expires(self) -> float:
        """Seconds until nobody wants the answer: until it is late, where there is no expiry."""
        return _plain(self.deadline if self.expiry is None else self.expiry)

    def _seconds(self, what: str, least: float) -> float:
        value = getattr(self, what)
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidTypeError(
                f"channel {self.name!r}: {what} must be a number of seconds or a timedelta, not {value!r}"
            )
        if not (math.isfinite(value) and least <= value <= _LONGEST):
            raise InvalidValueError(
                f"channel {self.name!r}: {what} must be from {least:g} to {_LONGEST:,.0f} seconds, not {value!r}"
            )
        return float(value)


def channel_of(text: str) -> Channel:
    """The channel that `NAME[:DEADLINE[:PRIORITY]]` says.

    Raises
    ------
    InvalidValueError
        It cannot be read; the message says what is expected.

    Examples
    --------
    >>> channel_of("alarm:5ms:1")
    Channel(name='alarm', deadline=0.005, priority=1, latency_budget=0.0, expiry=None)
    """
    name, *rest = text.split(":")
    if len(rest) > 2:
        raise InvalidValueError(f"a channel must be NAME:DEADLINE:PRIORITY, such as alarm:5ms:1, not {text[:60]!r}")
    deadline = seconds_of(rest[0], f"channel {name!r}: deadline") if rest and rest[0] else None
    try:
        priority = int(rest[1]) if len(rest) > 1 else 0
    except ValueError:
        raise InvalidValueError(f"channel {name!r}: priority must be an integer, not {rest[1][:60]!r}") from None
    return Channel(name, deadline, priority)


def seconds_of(text: str, what: str) -> float:
    """The seconds that a text such as `5ms` or `0.5s` says; InvalidValueError, whose message begins with `what`.

    Examples
    --------
    >>> seconds_of("250us", "deadline"), seconds_of("2min", "deadline")
    (0.00025, 120.0)
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidValueError(
            f"{what} must be a number and one of {', '.join(_UNITS)}, such as 5ms, not {text[:60]!r}"
        )
    return float(found[1]) / _UNITS[found[2]]


def of_channel(name: object, names: Sequence[str]) -> str:
    """The name of a channel, if there is one of that name; InvalidValueError."""
    if isinstance(name, str) and name in names:
        return name
    known = ", ".join(map(repr, names)) if names else "none: give some as `channels` when the index is opened"
    raise InvalidValueError(f"there is no channel {name!r}; there is {known}")


def checked_channels(channels: object) -> tuple[Channel, ...]:
    """Channels as an option gives them; InvalidTypeError, InvalidValueError."""
    if isinstance(channels, str | Channel) or not isinstance(channels, Iterable):
        raise InvalidTypeError(f"channels must be several Channel, as a list, not {channels!r}")
    found = tuple(channels)
    names = set()
    for channel in found:
        if not isinstance(channel, Channel):
            raise InvalidTypeError(f"channels must be several Channel, as a list; one is {channel!r}")
        if channel.name in names:
            raise InvalidValueError(f"channels must have different names; two are {channel.name!r}")
        names.add(channel.name)
    return found


def _plain(seconds: float | timedelta | None) -> float:
    """Seconds as they are kept, infinite if there are none."""
    if isinstance(seconds, timedelta):
        return seconds.total_seconds()
    return math.inf if seconds is None else seconds
