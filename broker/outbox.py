"""The outbox of one subscriber: notifications that wait for it, as many as there is room for.

A notification says what a message was, and which keys of a subscriber it matched. Notifications stay in the columns in
which they come. Each that is offered gets a number, its offset; what a subscriber does not get, as it was dropped or
has expired, is a number that it misses.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.broker.config import Guarantee, WhenFull
from tagmatch.model.arrays import I64Array
from tagmatch.model.clock import LATEST, now_us, steady_us
from tagmatch.model.errors import InvalidValueError, SessionError, SlowSubscriberError
from tagmatch.model.options import KeyType
from tagmatch.model.tables import NEVER

#: Bytes that a notification takes in addition to its payload, its id and its keys
FIXED_BYTES = 32

KEY_TYPES: dict[KeyType, pa.DataType] = {"integer": pa.uint64(), "string": pa.large_string()}


def schema_of(key_type: KeyType) -> pa.Schema:
    """Columns of notifications as a subscriber gets them."""
    return pa.schema(
        {
            "offset": pa.int64(),
            "redelivered": pa.bool_(),
            "id": pa.binary(),
            "payload": pa.large_binary(),
            "keys": pa.list_(KEY_TYPES[key_type]),
            "expires": pa.timestamp("us", "UTC"),
        }
    )


#: What an outbox knows of a notification: its number, its bytes, and when it expires: at microseconds
#: since 1970 if the publisher gave a time of day, at microseconds of `steady_us` if it gave a duration; the other one
#: is `NEVER`, or both.
_MARKS = np.dtype([(name, np.int64) for name in ("offset", "size", "expires", "until")])


@dataclass(frozen=True, slots=True)
class Notifications:
    """Some notifications, in order."""

    content: pa.RecordBatch  # Columns `id`, `payload`, `keys`
    marks: Any  # An array of `_MARKS`
    held: int  # Bytes of memory that stay in use as long as any of these notifications does

    def __len__(self) -> int:
        return len(self.marks)

    def part(self, begin: int, end: int) -> Notifications:
        """Those from `begin` to before `end`, in the same memory."""
        return Notifications(self.content.slice(begin, end - begin), self.marks[begin:end], self.held)

    def where(self, wanted: Any) -> Notifications:
        """Those for which the array of bools is true, in their own memory."""
        return _in_own_memory(self.content.take(pa.array(np.flatnonzero(wanted))), self.marks[wanted])


def _in_own_memory(content: pa.RecordBatch, marks: Any) -> Notifications:
    return Notifications(content, marks, content.get_total_buffer_size() + marks.nbytes)


def joined(parts: Sequence[Notifications]) -> Notifications:
    """Several as one, in its own memory if there are two or more."""
    if len(parts) == 1:
        return parts[0]
    content = pa.concat_batches([part.content for part in parts])
    # As bytes, since NumPy looks at each field of each array that it joins
    marks = np.frombuffer(b"".join([part.marks.tobytes() for part in parts]), _MARKS)
    return _in_own_memory(content, marks)


def notifications_of(
    ids: pa.Array, payloads: pa.Array, keys: pa.ListArray, expires: I64Array, until: I64Array
) -> Notifications:
    """New notifications, which no outbox has numbered yet."""
    marks = np.zeros(len(ids), _MARKS)
    marks["expires"], marks["until"] = expires, until
    values, lists = keys.flatten(), lengths_of(keys)
    if pa.types.is_large_string(values.type):
        ends = np.cumsum(lists)
        totals = np.concatenate([[0], np.cumsum(lengths_of(values))])
        of_keys = totals[ends] - totals[ends - lists]
    else:
        of_keys = 8 * lists
    marks["size"] = FIXED_BYTES + lengths_of(ids) + lengths_of(payloads) + of_keys
    return _in_own_memory(pa.RecordBatch.from_arrays([ids, payloads, keys], ["id", "payload", "keys"]), marks)


def lengths_of(array: pa.Array) -> I64Array:
    """Of lists, or of strings in bytes; 0 for nulls."""
    lengths = pc.list_value_length(array) if pa.types.is_list(array.type) else pc.binary_length(array)
    found: I64Array = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


#: Memory that may stay in use for others' notifications, in addition to as much as an outbox itself has
_SHARED_BYTES = 1 << 20


class Outbox:
    """A bounded queue of notifications, for one connection at a time. All methods may be called from many threads.

    Always, `offered = delivered + dropped + expired + waiting`.
    """

    def __init__(
        self,
        guarantee: Guarantee,
        when_full: WhenFull,
        max_notifications: int,
        max_bytes: int,
        now: Callable[[], int] = now_us,
        steady: Callable[[], int] = steady_us,
    ) -> None:
        self.guarantee, self.when_full = guarantee, when_full
        self._most, self._most_bytes = max_notifications, max_bytes
        self._now, self._steady = now, steady
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting, self._in_flight = _Parts(), _Parts()
        self._offered = 0
        self._counts = Counter(delivered=0, dropped=0, expired=0, redelivered=0)
        # The greatest offset that was handed over, and that when the connection began
        self._handed_over = self._handed_over_before = 0
        self._connection, self.is_connected = 0, False
        self._is_slow = self._is_closed = False

    def offer(self, new: Notifications) -> int:
        """Queue notifications, as many as there is room for; how many were offered, 0 if the session has ended.

        Of several for which there is no room, the first ones stay, unless `when_full` is `drop_oldest`: then the last
        ones do, except those that alone are larger than an outbox. What is in flight is not dropped.
        """
        with self._lock:
            if self._is_closed:
                return 0
            marks = new.marks.copy()
            marks["offset"] = np.arange(self._offered + 1, self._offered + 1 + len(new))
            new = Notifications(new.content, marks, new.held)
            self._offered += len(new)
            fitting = self._fitting(new)
            if fitting < len(new):
                self._expire()
                fitting = self._fitting(new)
            if fitting == len(new):
                self._waiting.append(new)
            elif self.when_full == "drop_oldest":
                most, most_bytes = self._most - self._in_flight.count, self._most_bytes - self._in_flight.nbytes
                possible = marks["size"] <= most_bytes
                self._waiting.append(new if possible.all() else new.where(possible))
                gone = self._waiting.drop_first(self._waiting.count - most, self._waiting.nbytes - most_bytes)
                self._counts["dropped"] += gone + int(len(new) - possible.sum())
            else:
                self._waiting.append(new.part(0, fitting))
                self._counts["dropped"] += len(new) - fitting
                self._is_slow = self.when_full == "disconnect" and self.is_connected
            self._waiting.compact()
            self._changed.notify_all()
            return len(new)

    def _fitting(self, new: Notifications) -> int:
        """How many, from the first on, there is room for."""
        room = self._most - self._waiting.count - self._in_flight.count
        room_bytes = self._most_bytes - self._waiting.nbytes - self._in_flight.nbytes
        return min(max(room, 0), int(np.searchsorted(np.cumsum(new.marks["size"]), room_bytes, "right")))

    def _expire(self) -> None:
        self._counts["expired"] += self._waiting.drop_expired(self._now(), self._steady())

    def connect(self) -> int:
        """Begin a connection, and end the one before; notifications that were not acknowledged come again."""
        with self._lock:
            if self._is_closed:
                raise SessionError("this session has ended; connect again to begin another")
            self._connection += 1
            self.is_connected, self._is_slow = True, False
            self._handed_over_before = self._handed_over
            parts = [*self._in_flight.clear(), *self._waiting.clear()]
            for part in parts:
                self._waiting.append(part)
            self._changed.notify_all()
            return self._connection

    def is_present(self, connection: int) -> bool:
        """Whether this connection has not ended."""
        return connection == self._connection and self.is_connected and not self._is_closed

    def disconnect(self, connection: int) -> bool:
        """End a connection; whether it was the present one. A call of `take` that waits ends, with a SessionError."""
        with self._lock:
            if connection != self._connection or not self.is_connected:
                return False
            self._connection += 1
            self.is_connected = False
            self._changed.notify_all()
            return True

    def take(
        self, connection: int, most: int = 1_024, most_bytes: int = 1 << 22, timeout: float | None = None
    ) -> pa.RecordBatch | None:
        """The next notifications, in the order of their offsets, as `schema_of` has them; waits for some."""
        if most < 1:
            raise InvalidValueError(f"most must be 1 or more notifications, not {most}")
        with self._lock:
            if not self._changed.wait_for(lambda: self._has_some(connection), timeout):
                return None
            taken = self._waiting.take_first(most, most_bytes)
            offsets, until = np.ascontiguousarray(taken.marks["offset"]), taken.marks["until"]
            redelivered = offsets <= self._handed_over_before
            self._handed_over = max(self._handed_over, int(offsets[-1]))
            self._counts["redelivered"] += int(redelivered.sum())
            if self.guarantee == "at_most_once":
                self._counts["delivered"] += len(taken)
            else:
                self._in_flight.append(taken)
                self._in_flight.compact()
            # Time that is left becomes a time of day by both clocks; one that Python cannot show never comes
            times = np.where(until == NEVER, taken.marks["expires"], until - self._steady() + self._now())
        expires = pa.array(times, mask=times > LATEST).cast(pa.timestamp("us", "UTC"))
        columns = [pa.array(offsets), pa.array(redelivered), *taken.content.columns, expires]
        return pa.RecordBatch.from_arrays(columns, ["offset", "redelivered", *taken.content.schema.names, "expires"])

    def _has_some(self, connection: int) -> bool:
        if self._is_closed:
            raise SessionError("this session has ended; connect again to begin another")
        if not self.is_present(connection):
            raise SessionError("this connection has ended, or another one has taken its session over")
        if self._is_slow:
            count, nbytes = self._waiting.count + self._in_flight.count, self._waiting.nbytes + self._in_flight.nbytes
            raise SlowSubscriberError(
                f"the outbox of this session was full with {count} notifications of {nbytes} bytes, and "
                f"{self._counts['dropped']} were dropped so far; connect again to go on, and take or acknowledge "
                "notifications sooner"
            )
        self._expire()
        return self._waiting.count > 0

    def acknowledge(self, offset: int) -> None:
        """Let go of all notifications up to this offset, which were handed over."""
        with self._lock:
            if self.guarantee == "at_most_once":
                raise InvalidValueError("notifications that are delivered at most once are not acknowledged")
            if not 0 <= offset <= self._handed_over:
                raise InvalidValueError(
                    f"offset {offset} cannot be acknowledged: the last notification that was delivered is "
                    f"{self._handed_over}"
                )
            self._counts["delivered"] += self._in_flight.drop_up_to(offset) + self._waiting.drop_up_to(offset)

    def progress(self) -> tuple[int, int]:
        """The offset up to which nothing waits any more, and that of the last notification that was offered."""
        with self._lock:
            first = self._in_flight.first_offset or self._waiting.first_offset or self._offered + 1
            return first - 1, self._offered

    def close(self) -> None:
        """End the session: waiting notifications are dropped, and no more are taken."""
        with self._lock:
            self._is_closed, self.is_connected = True, False
            self._counts["dropped"] += sum(map(len, [*self._in_flight.clear(), *self._waiting.clear()]))
            self._changed.notify_all()

    def stats(self) -> dict[str, int]:
        """Counts of notifications, of one moment."""
        with self._lock:
            return {
                "offered": self._offered,
                **self._counts,
                "waiting": self._waiting.count + self._in_flight.count,
                "in_flight": self._in_flight.count,
                "bytes": self._waiting.nbytes + self._in_flight.nbytes,
            }


class _Parts:
    """Notifications in the order of their offsets, in parts of any length, with sums of all."""

    def __init__(self) -> None:
        self._parts: deque[Notifications] = deque()
        self.clear()

    def clear(self) -> list[Notifications]:
        parts = [*self._parts]
        self._parts.clear()
        self.count = self.nbytes = self._held = 0
        self._first_expiry = self._first_until = NEVER
        return parts

    @property
    def first_offset(self) -> int | None:
        return int(self._parts[0].marks["offset"][0]) if self._parts else None

    def append(self, part: Notifications) -> None:
        if len(part):
            self._parts.append(part)
            self._count(part, 1)
            self._first_expiry = min(self._first_expiry, int(part.marks["expires"].min()))
            self._first_until = min(self._first_until, int(part.marks["until"].min()))

    def _count(self, part: Notifications, sign: int) -> None:
        self.count += sign * len(part)
        self.nbytes += sign * int(part.marks["size"].sum())
        self._held += sign * part.held

    def _take(self, wanted: Callable[[Notifications], int]) -> list[Notifications]:
        """The first ones: of each part as many as are wanted, until that is not all of it."""
        taken: list[Notifications] = []
        while self._parts:
            part = self._parts[0]
            if count := wanted(part):
                self._parts.popleft()
                self._count(part, -1)
                taken.append(part.part(0, count))
            if count < len(part):
                if count:
                    self._parts.appendleft(rest := part.part(count, len(part)))
                    self._count(rest, 1)
                break
        return taken

    def take_first(self, most: int, most_bytes: int) -> Notifications:
        """The first ones: at least one, and no more than both allow."""
        left, left_bytes = most, most_bytes

        def fitting(part: Notifications) -> int:
            nonlocal left, left_bytes
            sizes = np.cumsum(part.marks["size"][:left])
            count = max(int(np.searchsorted(sizes, left_bytes, "right")), int(left == most))
            if count:
                left, left_bytes = left - count, left_bytes - int(sizes[count - 1])
            return count

        return joined(self._take(fitting))

    def drop_first(self, count: int, nbytes: int) -> int:
        """Drop as few as possible, from the first on, that have `count` rows and `nbytes` bytes; how many."""

        def surplus(part: Notifications) -> int:
            nonlocal count, nbytes
            sizes = np.cumsum(part.marks["size"])
            gone = min(max(count, int(np.searchsorted(sizes, nbytes, "left")) + 1 if nbytes > 0 else 0, 0), len(sizes))
            if gone:
                count, nbytes = count - gone, nbytes - int(sizes[gone - 1])
            return gone

        return sum(map(len, self._take(surplus)))

    def drop_up_to(self, offset: int) -> int:
        return sum(map(len, self._take(lambda part: int(np.searchsorted(part.marks["offset"], offset, "right")))))

    def drop_expired(self, now: int, steady: int) -> int:
        if now < self._first_expiry and steady < self._first_until:
            return 0
        before = self.count
        for part in self.clear():
            lasting = (part.marks["expires"] > now) & (part.marks["until"] > steady)
            self.append(part if lasting.all() else part.where(lasting))
        return before - self.count

    def compact(self) -> None:
        """Copy waiting notifications that keep others' memory in use: parts of batches that many sessions share."""
        if self._held > 4 * self.nbytes + _SHARED_BYTES:
            whole = joined(self.clear())
            self.append(whole.where(np.ones(len(whole), bool)))
