"""What an order of channels is, and which there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from tagmatch.model import channels
from tagmatch.pipeline.channels.dfgs import Dfgs
from tagmatch.pipeline.channels.lines import Edf, Fifo
from tagmatch.pipeline.channels.waiting import Class, Entry, Turn


class Order(Protocol):
    """What waits of all channels. All methods are called with one lock held, and wait for nothing.

    `now` is of the clock that entries have their times of; the orders themselves ask no clock.
    """

    @property
    def by_thread(self) -> bool:
        """Whether what comes is for one certain thread."""

    def __len__(self) -> int:
        """Entries that wait."""

    def put(self, entries: Sequence[Entry], now: float, /) -> str | None:
        """Have a message, or the packets of a call, wait; returns what becomes of it instead, if it may not."""

    def take(self, worker: int, now: float, /) -> Turn | None:
        """What a thread, which is done with what it had, is to do next; `None` if it is to wait."""

    def ready_in(self, worker: int, now: float, /) -> float:
        """Seconds until a thread may find something, if nothing more comes; infinite if it will not."""

    def packet(self, of: Class, limit: int, /) -> int:
        """Messages that a packet of a call should have, `limit` at most."""

    def clear(self) -> list[Entry]:
        """Forget all that waits, and return it."""


#: Makes an order for some channels, some threads, and tasks of at most so many messages
NewOrder: TypeAlias = Callable[[Sequence[Class], int, int], Order]

ORDERS: Mapping[channels.Order, NewOrder] = {"fifo": Fifo, "edf": Edf, "dfgs": Dfgs}
