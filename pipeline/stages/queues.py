"""In which order a stage takes the work that waits before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias


class Waiting(NamedTuple):
    """A piece of work, a packet or batches, and when it came, in seconds of `time.perf_counter`."""

    since: float
    work: Any


class WorkQueue(Protocol):
    """Work that waits. A stage calls all methods with its lock held, so that none may wait for anything."""

    def put(self, waiting: Waiting, /) -> None:
        """Add a piece of work."""

    def take(self) -> Waiting:
        """Remove and return the piece that is next; only called where there is one."""

    def __len__(self) -> int: ...


class Fifo(deque[Waiting]):
    """First in, first out."""

    put = deque.append
    take = deque.popleft


#: Makes the queue of a stage
QueuePolicy: TypeAlias = Callable[[], WorkQueue]
