"""The order `dfgs`: Deadline-aware Fine-Grained Scheduling with Smart Dispatch, as published.

Z. Wang, Y. Zhang, X. Chang, X. Mi, Y. Wang, K. Wang, H. Yang, "Pub/Sub on Stream: A Multi-Core Based Message Broker
with QoS Support", DEBS 2012, §5.2 and §5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tagmatch.pipeline.channels.waiting import Class, Entry, Turn, packet_of
from tagmatch.pipeline.rules.deadlines import goes_behind

_goes_behind = goes_behind.py_func


class Dfgs:
    """A queue of tasks for each thread, which has a way for every channel.

    A message is a block of one task; a call with many is a block of as many tasks as it has packets.

    Parameters
    ----------
    classes : sequence of Class
    threads : int
        Threads that take.
    limit : int
        Messages of a task at most.
    """

    #: Of the threads, only the one that it goes to may take what comes
    by_thread = True

    def __init__(self, classes: Sequence[Class], threads: int, limit: int) -> None:
        self._classes = classes
        self._limit = limit
        # Each task with the seconds that it was expected to take when it came
        self._queues: list[list[tuple[Entry, float]]] = [[] for _ in range(threads)]
        self._busy = [-inf] * threads

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def put(self, entries: Sequence[Entry], now: float) -> str | None:
        """Smart Dispatch (Algorithm 4): the first thread takes a block whose queue has room for it in time."""
        tasks = [(entry, entry.of.cost.seconds(entry.count)) for entry in entries]
        block = sum(seconds for _, seconds in tasks)
        for worker, queue in enumerate(self._queues):
            place = self._place(worker, entries[0], block, now)
            if place is not None:
                queue[place:place] = tasks
                return None
        if block > entries[0].of.due:  # it would be late for any thread, and had it come at once
            entries[0].of.cost.doubt()
        return "deserted"

    def take(self, worker: int, now: float) -> Turn | None:
        """What a thread, which is done with what it had, is to do next; `None` if it is to wait."""
        queue = self._queues[worker]
        self._busy[worker] = now
        dropped = []
        while queue:
            entry, seconds = queue.pop(0)
            if entry.over:
                continue
            if now > entry.lifespan:
                dropped.append(entry)
                continue
            self._busy[worker] = now + seconds
            return Turn([entry], dropped)
        return Turn([], dropped) if dropped else None

    def ready_in(self, worker: int, now: float) -> float:  # noqa: ARG002 - as `Order`
        """Seconds until a thread may find something, if nothing more comes; infinite if it will not."""
        return -inf if self._queues[worker] else inf

    def clear(self) -> list[Entry]:
        """Forget all that waits, and return it."""
        left = [entry for queue in self._queues for entry, _ in queue]
        for queue in self._queues:
            queue.clear()
        return left

    def packet(self, of: Class, limit: int) -> int:
        """Messages that a packet of a call should have, `limit` at most."""
        return packet_of(of, self._classes, min(limit, self._limit))

    def _place(self, worker: int, entry: Entry, block: float, now: float) -> int | None:
        """Algorithm 3: where in a thread's queue a block goes; `None` where it would be late."""
        end = max(now, self._busy[worker])
        place, before = 0, end
        for i, (other, seconds) in enumerate(self._queues[worker], start=1):
            end += seconds
            if _goes_behind(end, block, other.due, other.of is entry.of):
                place, before = i, end
        return place if before + block <= entry.due else None
