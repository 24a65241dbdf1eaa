"""The brokers that are driven with real work: our own orders, and those of the paper that are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tagmatch.pipeline.run.orders import ORDERS

if TYPE_CHECKING:
    from tagmatch.pipeline.run.orders import NewOrder, Order
    from tagmatch.pipeline.run.waiting import Class, Entry, Turn


class InTurn:
    """Workers get messages in turn, round robin; each has an order of its own.

    Parameters
    ----------
    of : callable
        Makes a worker's order.
    classes : sequence of Class
    threads, limit : int
        As all orders take them.
    """

    by_thread = True

    def __init__(self, of: NewOrder, classes: Sequence[Class], threads: int, limit: int) -> None:
        self._orders: list[Order] = [of(classes, 1, limit) for _ in range(threads)]
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._orders))

    def put(self, entries: Sequence[Entry], now: float) -> str | None:
        """Have a message wait for the worker whose turn it is."""
        order = self._orders[self._next]
        self._next = (self._next + 1) % len(self._orders)
        return order.put(entries, now)

    def take(self, worker: int, now: float) -> Turn | None:
        """What a worker is to do next."""
        return self._orders[worker].take(0, now)

    def ready_in(self, worker: int, now: float) -> float:
        """Seconds until a worker may find something."""
        return self._orders[worker].ready_in(0, now)

    def packet(self, of: Class, limit: int) -> int:
        """Messages that a packet should have."""
        return self._orders[0].packet(of, limit)

    def clear(self) -> list[Entry]:
        """Forget all that waits, and return it."""
        return [entry for order in self._orders for entry in order.clear()]


@dataclass(frozen=True, slots=True)
class Broker:
    """How messages wait.

    Attributes
    ----------
    order : callable
        Makes the order.
    whole : bool
        Whether a message is indivisible, one task.
    one_line : bool
        Whether messages of all channels are as those of one: none goes before one that came earlier.
    """

    order: NewOrder
    whole: bool = False
    one_line: bool = False


#: By the names that the simulator has for them, and `FIFO`, where all workers take from one queue
BROKERS: Mapping[str, Broker] = {
    "QoS-ignorant": Broker(partial(InTurn, ORDERS["fifo"]), whole=True),
    "FIFO": Broker(ORDERS["fifo"], whole=True),
    "DFGS": Broker(partial(InTurn, ORDERS["dfgs"])),
    "Smart Dispatch": Broker(ORDERS["dfgs"], whole=True, one_line=True),
    "DFGS + Smart Dispatch": Broker(ORDERS["dfgs"]),
    "EDF": Broker(ORDERS["edf"]),
}
