"""The queue between what reads events and what matches them: full, it drops what comes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tagmatch_bench.broker.wire import joined

if TYPE_CHECKING:
    from tagmatch_bench.broker.wire import Events


class InputQueue:
    """Events that wait. Any number of threads may offer some and take some.

    Parameters
    ----------
    most : int
        Events that wait at most.

    Attributes
    ----------
    offered, dropped, taken : int
        Events that have come, those of them for which there was no room, and those that were taken.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._parts: list[Events] = []
        self._waiting = self.offered = self.dropped = self.taken = 0

    def is_done(self, count: int) -> bool:
        """Whether no event waits, and that number of them was taken."""
        with self._lock:
            return self._waiting == 0 and self.taken == count

    def offer(self, events: Events) -> None:
        """Have as many of the events wait as there is room for, the first ones; others are dropped."""
        count = len(events.numbers)
        with self._lock:
            taken = min(count, self._most - self._waiting)
            self.offered += count
            self.dropped += count - taken
            if taken:
                self._parts.append(events.part(0, taken))
                self._waiting += taken

    def take(self) -> Events | None:
        """All events that wait, in the order in which they came; `None` if there are none."""
        with self._lock:
            parts, self._parts, self._waiting = self._parts, [], 0
            self.taken += sum(len(part.numbers) for part in parts)
        return joined(parts) if parts else None
