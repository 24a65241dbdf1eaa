"""Options, checked once where they enter and passed on as frozen dataclasses."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypedDict, cast, get_args

from tagmatch.model.channels import Channel, Order, checked_channels
from tagmatch.model.errors import InvalidTypeError, InvalidValueError

Layout = Literal["rarest", "balanced"]
KeyType = Literal["integer", "string"]
Device = Literal["auto", "cpu", "cuda"]
Placement = Literal["auto", "replicate", "split"]
#: What a staged change outlasts when its call returns: the machine's end, the program's, or neither
Durability = Literal["fsync", "os", "none"]
#: What becomes of a removal of what is neither stored nor staged: it changes nothing, or is an error
Missing = Literal["ignore", "error"]

MAX_THREADS = 1024
MAX_PARTITION_SIZE = 2**32 - 1
#: The manifest, which is written anew for each snapshot, names all that are kept
MAX_KEPT_SNAPSHOTS = 10_000


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """How stored sets are grouped and ordered; saved with a snapshot.

    Attributes
    ----------
    layout : {"rarest", "balanced"}
        `rarest` groups sets by their rarest tag; `balanced` is the paper's Algorithm 1.
    max_partition_size : int
        Most sets in a partition of the `balanced` layout (`MAX_P` of Algorithm 1); `rarest` has no use for it.
    """

    layout: Layout = "rarest"
    max_partition_size: int = 200_000

    def __post_init__(self) -> None:
        check_one_of("layout", self.layout, get_args(Layout))
        check_integer("max_partition_size", self.max_partition_size, 1, MAX_PARTITION_SIZE)


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """How CUDA devices are used, where they are.

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
        Packets that one device has at once, each on a stream of its own (§3.3.2).

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
    """How queries are answered; chosen anew each time an index is opened.

    Attributes
    ----------
    exact : bool
        Verify every signature match on the tags themselves. `False` gives the `balanced` layout the paper's
        probabilistic answers; `rarest` compares tags in any case and stays exact.
    device : {"auto", "cpu", "cuda"}
        Where the subset match runs.
    threads : int
        Threads that build and match.
    batch_size : int
        Queries that are matched together against one partition of the `balanced` layout (§3.3).
    flush_timeout : float or None
        Seconds after which a waiting batch is matched although it is not full and all threads are busy; `None`: never.
    auto_reload : float or None
        Seconds after which it is looked, again and again, whether there is a newer snapshot to answer from; `None`:
        never.
    plane : bool
        Areas are on the plane, not on the sphere.
    pipeline : PipelineOptions
        How queries that are asked one by one go through the stages.
    cuda : CudaOptions
        How CUDA devices are used.
    channels : tuple of Channel
        Classes of messages that queries may be of; none: there are no deadlines.
    order : {"fifo", "edf", "dfgs"}
        In which order messages of channels are matched.
    """

    exact: bool = True
    device: Device = "auto"
    threads: int = 1
    batch_size: int = 256
    flush_timeout: float | None = 0.1
    auto_reload: float | None = None
    plane: bool = False
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    cuda: CudaOptions = field(default_factory=CudaOptions)
    channels: tuple[Channel, ...] = ()
    order: Order = "fifo"

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
    """How changes are staged and saved; chosen anew each time an index is opened.

    Attributes
    ----------
    durability : {"fsync", "os", "none"}, optional
        What staged changes of an index in a folder outlast when their call returns. `fsync`: the end of the machine, as
        the disk has them, which takes as long as the disk does. `os`: the end of the program, as the operating system
        has them, which takes microseconds. `none`: neither; they are in memory only, and not logged. `None`: `fsync`
        for calls with many changes, `os` for single ones, as a program that makes many of these need not wait for each.
    keep_snapshots : int, optional
        How many earlier snapshots stay in the index beside the current one, from the next one on that is saved; they
        can be opened by their numbers. `None`: as many as the index says, which are none at first.
    """

    durability: Durability | None = None
    keep_snapshots: int | None = None

    def __post_init__(self) -> None:
        if self.durability is not None:
            check_one_of("durability", self.durability, get_args(Durability))
        if self.keep_snapshots is not None:
            check_integer("keep_snapshots", self.keep_snapshots, 0, MAX_KEPT_SNAPSHOTS)

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
