"""Options, checked once on entry and passed on as frozen dataclasses.

Channels: messages with the same quality of service, as publishers name it, and the orders that keep it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Literal, TypedDict, cast, get_args

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.names import Attribute

#: In which order messages of channels are matched
Order = Literal["fifo", "edf", "dfgs"]


class Wanted(Enum):
    """What a call wants to know of each message."""

    keys = "keys"  # Its keys, one for each set that has the key
    unique = "unique"  # Its keys, ascending and each once
    counts = "counts"  # How many `keys` there are
    unique_counts = "unique_counts"  # How many `unique` there are
    exists = "exists"  # Whether there is any
    sets = "sets"  # Ids of the sets that it satisfies, from which others make the answer
    highlights = "highlights"  # Its keys, each with what its set asks for

    @property
    def is_number(self) -> bool:
        """Whether an answer is one number, for which no keys need be made."""
        return self in (Wanted.counts, Wanted.exists)


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
        Which message goes first at equal deadlines: that of the higher priority. With `edf`, an admitted message is
        also protected from a later one with an earlier deadline and a lower priority: the later one is refused if both
        could not be in time.
    latency_budget : float or timedelta
        How long a message may wait for others, to be matched with them (LATENCY_BUDGET of DDS). 0: it never waits
        while a thread is free.
    expiry : float or timedelta, optional
        From the moment that a message is handed in until its answer is useless: then it is not matched at all
        (LIFESPAN of DDS). At least the deadline. `None`: the deadline, in the orders that drop late messages.

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
        """Seconds until the answer is useless: the expiry, or else the deadline."""
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
    """The channel that `NAME[:DEADLINE[:PRIORITY]]` says."""
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
    """The seconds that a text such as `5ms` or `0.5s` says; InvalidValueError, whose message begins with `what`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidValueError(
            f"{what} must be a number and one of {', '.join(_UNITS)}, such as 5ms, not {text[:60]!r}"
        )
    return float(found[1]) / _UNITS[found[2]]


def of_channel(name: object, names: Sequence[str]) -> str:
    """The name of an existing channel; InvalidValueError for another one."""
    if isinstance(name, str) and name in names:
        return name
    known = f"known: {', '.join(map(repr, names))}" if names else "give some as `channels` when the index is opened"
    raise InvalidValueError(f"unknown channel {name!r}; {known}")


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
    """Seconds as they are kept; infinite for `None`."""
    if isinstance(seconds, timedelta):
        return seconds.total_seconds()
    return math.inf if seconds is None else seconds


Layout = Literal["rarest", "balanced"]
KeyType = Literal["integer", "string"]
Device = Literal["auto", "cpu", "cuda"]
Placement = Literal["auto", "replicate", "split"]
#: What a staged change outlasts when its call returns: the machine's end, the program's, or neither
Durability = Literal["fsync", "os", "none"]
#: A removal of a set or key that is neither stored nor staged changes nothing, or is an error
Missing = Literal["ignore", "error"]
#: Whether an index answers questions by key
KeyIndex = Literal["indexed", "unindexed"]
#: Engines whose documents are taken as subscriptions
Source = Literal["elasticsearch", "vespa", "rules"]

MAX_THREADS = 1024
MAX_PARTITION_SIZE = 2**32 - 1
#: The manifest, which is written anew for each snapshot, names all that are kept
MAX_KEPT_SNAPSHOTS = 10_000


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """How stored sets are grouped and ordered; saved with a snapshot."""

    layout: Layout = "rarest"  # `rarest` groups sets by their rarest tag; `balanced` is the paper's Algorithm 1
    # Most sets in a partition of the `balanced` layout (`MAX_P` of Algorithm 1); `rarest` has no use for it
    max_partition_size: int = 200_000
    # What is declared of attributes: of each its name, its type and its analyzer, as `tagmatch.model.where.declared`
    # has them; and whether other attributes and values of other types are errors
    attributes: tuple[Attribute, ...] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        check_one_of("layout", self.layout, get_args(Layout))
        check_integer("max_partition_size", self.max_partition_size, 1, MAX_PARTITION_SIZE)


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """How CUDA devices are used, if the machine has any.

    Attributes
    ----------
    devices : tuple of int, optional
        Numbers of the devices; `None`: all.
    placement : {"auto", "replicate", "split"}
        Of several devices: `replicate` gives each all tables, and they take packets of queries in turn; `split` gives
        each some of the sets, and every query goes to all. `auto` splits only what does not fit.
    fewest_queries : int, optional
        Packets of fewer queries are matched on the CPU, which is faster for few. `None`: a number that is measured when
        an index is opened or consolidated; 0 leaves the CPU nothing.
    streams : int
        Packets that one device has at once, each on its own stream (§3.3.2).

    Examples
    --------
    >>> from tagmatch import CudaOptions
    >>> options = CudaOptions(devices=(0, 1), placement="split")  # TagMatch(cuda=options)
    >>> options.streams
    10
    >>> CudaOptions(devices=(0, 0))
    Traceback (most recent call last):
    tagmatch.InvalidValueError: devices must name each CUDA device once, not (0, 0)
    """

    devices: tuple[int, ...] | None = None
    placement: Placement = "auto"
    fewest_queries: int | None = None
    streams: int = 10

    def __post_init__(self) -> None:
        if self.devices is not None:
            if not isinstance(self.devices, tuple) or not self.devices:
                raise InvalidTypeError(f"devices must be a tuple of numbers of CUDA devices, not {self.devices!r}")
            for number in self.devices:
                check_integer("a CUDA device", number, 0, 1023)
            if len(set(self.devices)) < len(self.devices):
                raise InvalidValueError(f"devices must name each CUDA device once, not {self.devices!r}")
        check_one_of("placement", self.placement, get_args(Placement))
        if self.fewest_queries is not None:
            check_integer("fewest_queries", self.fewest_queries, 0, 2**40)
        check_integer("streams", self.streams, 1, 1024)


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How queries go through the stages, and how many at once; chosen anew each time an index is opened.

    Attributes
    ----------
    max_queries : int
        Submitted queries that threads are answering at once; more wait outside, or are refused.
    max_result_bytes : int
        Bytes of answers waiting for later stages; with more, no more matching is begun.
    packet_queries : int
        Queries that go through the stages together, at most.
    hand_over_queries : int
        A packet of fewer queries stays with one thread through all stages: handing it on would take longer than
        answering it.
    queued_packets : int, optional
        Packets that wait before a stage, at most; default: two for each of its threads.
    preprocess_threads, subset_match_threads, key_lookup_threads, merge_threads : int, optional
        Threads of each stage; default: the `threads` of the index.

    Examples
    --------
    >>> from tagmatch import PipelineOptions, TagMatch
    >>> with TagMatch(pipeline=PipelineOptions(max_queries=1000)) as tm:
    ...     tm.submit(["cat"]).result()
    []
    """

    max_queries: int = 1 << 17
    max_result_bytes: int = 1 << 29
    packet_queries: int = 8192
    hand_over_queries: int = 1024
    queued_packets: int | None = None
    preprocess_threads: int | None = None
    subset_match_threads: int | None = None
    key_lookup_threads: int | None = None
    merge_threads: int | None = None

    def __post_init__(self) -> None:
        check_integer("max_queries", self.max_queries, 1, 2**40)
        check_integer("max_result_bytes", self.max_result_bytes, 1, 2**60)
        check_integer("packet_queries", self.packet_queries, 1, 2**20)
        check_integer("hand_over_queries", self.hand_over_queries, 0, 2**40)
        if self.queued_packets is not None:
            check_integer("queued_packets", self.queued_packets, 1, 2**20)
        for name in ("preprocess_threads", "subset_match_threads", "key_lookup_threads", "merge_threads"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_THREADS)


@dataclass(frozen=True, slots=True)
class MatchOptions:
    """How queries are answered; chosen anew each time an index is opened."""

    # Verify every signature match on the tags themselves. `False` gives the `balanced` layout the paper's probabilistic
    # answers; `rarest` compares tags in any case and stays exact.
    exact: bool = True
    device: Device = "auto"  # Where the subset match runs
    threads: int = 1  # Threads that build and match
    batch_size: int = 256  # Queries that are matched together against one partition of the `balanced` layout (§3.3)
    # Seconds after which a waiting batch is matched although it is not full and all threads are busy; `None`: never
    flush_timeout: float | None = 0.1
    # Seconds after which it is looked, again and again, whether there is a newer snapshot to answer from; `None`: never
    auto_reload: float | None = None
    plane: bool = False  # Areas are on the plane, not on the sphere
    # How queries that are asked one by one go through the stages
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    cuda: CudaOptions = field(default_factory=CudaOptions)  # How CUDA devices are used
    channels: tuple[Channel, ...] = ()  # Classes of messages that queries may be of; none: there are no deadlines
    order: Order = "fifo"  # In which order messages of channels are matched

    def __post_init__(self) -> None:
        if not isinstance(self.exact, bool):
            raise InvalidTypeError(f"exact must be True or False, not {self.exact!r}")
        if not isinstance(self.plane, bool):
            raise InvalidTypeError(f"plane must be True or False, not {self.plane!r}")
        check_one_of("device", self.device, get_args(Device))
        if not isinstance(self.pipeline, PipelineOptions):
            raise InvalidTypeError(f"pipeline must be PipelineOptions, not {self.pipeline!r}")
        if not isinstance(self.cuda, CudaOptions):
            raise InvalidTypeError(f"cuda must be CudaOptions, not {self.cuda!r}")
        object.__setattr__(self, "channels", checked_channels(self.channels))
        check_one_of("order", self.order, get_args(Order))
        check_integer("threads", self.threads, 1, MAX_THREADS)
        check_integer("batch_size", self.batch_size, 1, 2**20)
        check_seconds("flush_timeout", self.flush_timeout)
        if self.flush_timeout is not None and not self.flush_timeout >= 0:
            raise InvalidValueError(f"flush_timeout must be zero or more seconds, not {self.flush_timeout!r}")
        check_seconds("auto_reload", self.auto_reload)
        if self.auto_reload is not None and not self.auto_reload > 0:
            raise InvalidValueError(f"auto_reload must be more than zero seconds, not {self.auto_reload!r}")


@dataclass(frozen=True, slots=True)
class StagingOptions:
    """How changes are staged and saved; chosen anew each time an index is opened."""

    # What staged changes of an index in a folder outlast when their call returns. `fsync`: the end of the machine, as
    # the disk has them, which takes as long as the disk does. `os`: the end of the program, as the operating system has
    # them, which takes microseconds. `none`: neither; they are in memory only, and not logged. `None`: `fsync` for
    # calls with many changes, `os` for single ones, as a program that makes many of these need not wait for each.
    durability: Durability | None = None
    # How many earlier snapshots the index keeps besides the current one, from the next save on; they can
    # be opened by their numbers. `None`: as many as the index says, which are none at first.
    keep_snapshots: int | None = None
    # Columns of data that keys may have, besides those of the index: a schema of Arrow, or names and types
    data: object = None
    # More types of attributes, in the same way, and analyzers by the names of attributes
    attributes: object = None
    analyzers: object = None
    strict: bool | None = None  # Whether other attributes are errors; `None`: as the index says, `False` at first
    keys: KeyIndex = "indexed"  # `unindexed` refuses what needs a directory of keys, which is made when first needed

    def __post_init__(self) -> None:
        if self.durability is not None:
            check_one_of("durability", self.durability, get_args(Durability))
        if self.keep_snapshots is not None:
            check_integer("keep_snapshots", self.keep_snapshots, 0, MAX_KEPT_SNAPSHOTS)
        if self.strict not in (None, True, False):
            raise InvalidTypeError(f"strict must be True or False, not {self.strict!r}")
        check_one_of("keys", self.keys, get_args(KeyIndex))

    @property
    def of_single(self) -> Durability:
        """What holds for calls with one change."""
        return self.durability or "os"

    @property
    def of_many(self) -> Durability:
        """What holds for calls with many changes."""
        return self.durability or "fsync"


class _UsualOptions(TypedDict, total=False):
    durability: Durability | None
    keep_snapshots: int | None
    data: Any
    attributes: Any
    analyzers: Mapping[str, Any] | None
    strict: bool | None
    keys: KeyIndex
    exact: bool
    device: Device
    threads: int | None
    batch_size: int
    flush_timeout: float | None
    auto_reload: float | None
    plane: bool
    pipeline: PipelineOptions | None
    cuda: CudaOptions | None
    channels: Iterable[Channel]
    order: Order


class NewOptions(_UsualOptions, total=False):
    """Keyword arguments of `TagMatch`, for type checkers."""

    layout: Layout
    max_partition_size: int


class OpenOptions(_UsualOptions, total=False):
    """Keyword arguments of `TagMatch.open`, for type checkers."""

    layout: Layout | None
    max_partition_size: int | None


def check_snapshot_number(number: object) -> None:
    """See that this can be the number of a snapshot; InvalidTypeError, InvalidValueError."""
    check_integer("snapshot", number, 0, 2**63)


def available_threads() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MAX_THREADS)
    return min(os.cpu_count() or 1, MAX_THREADS)


def check_one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """See that an option has one of these strings; InvalidTypeError, InvalidValueError."""
    if not isinstance(value, str):
        raise InvalidTypeError(f"{name} must be a string, not {value!r}")
    if value not in allowed:
        raise InvalidValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def check_seconds(name: str, value: object) -> None:
    """See that an option is a number of seconds, or `None`; InvalidTypeError."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise InvalidTypeError(f"{name} must be seconds or None, not {value!r}")


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """See that an option is an integer of this range; InvalidTypeError, InvalidValueError."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise InvalidTypeError(f"{name} must be an integer, not {value!r}")
    if not low <= cast(int, value) <= high:
        raise InvalidValueError(f"{name} must be from {low} to {high}, not {value!r}")


#: The defaults, which signatures and command lines take from here
LAYOUT_DEFAULTS = LayoutOptions()
MATCH_DEFAULTS = MatchOptions()
STAGING_DEFAULTS = StagingOptions()
