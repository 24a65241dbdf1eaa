"""The outbox of one subscriber: notifications that wait for it, as many as there is room for.

A notification says what a message was, and which keys of a subscriber it matched. Notifications stay in the columns in
which they come. Each that is offered gets a number, its offset; what a subscriber does not get, as it was dropped or
has expired, is a number that it misses.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.broker.config import Guarantee, WhenFull
from tagmatch.model.arrays import I64Array
from tagmatch.model.clock import now_us, steady_us
from tagmatch.model.errors import InvalidValueError, SessionError, SlowSubscriberError
from tagmatch.model.options import KeyType

#: A time, in microseconds, that never comes
NEVER = 2**63 - 1
#: Bytes that a notification takes beside its payload, its id and its keys
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


#: What an outbox knows of a notification: its number, bytes that it counts for, when it expires, whether it was handed
#: over before. It expires at microseconds since 1970 if the publisher gave a time of day, and at microseconds of
#: `steady_us` if it gave a duration; the other one is `NEVER`, or both.
_MARKS = np.dtype(
    [("offset", np.int64), ("size", np.int64), ("expires", np.int64), ("until", np.int64), ("redelivered", np.bool_)]
)


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
        """Those for which the array of bools is true, in memory of their own."""
        return _in_own_memory(self.content.take(pa.array(np.flatnonzero(wanted))), self.marks[wanted])

    def marked(self, name: str, value: object) -> Notifications:
        """The same with other marks of this name."""
        marks = self.marks.copy()
        marks[name] = value
        return Notifications(self.content, marks, self.held)

    def as_batch(self, now: int, steady: int) -> pa.RecordBatch:
        """The columns of `schema_of` for the subscriber; time that is left becomes a time of day by both clocks."""
        marks, until = self.marks, self.marks["until"]
        times = np.where(until == NEVER, marks["expires"], until - steady + now)
        expires = pa.array(times, mask=times == NEVER).cast(pa.timestamp("us", "UTC"))
        own = [pa.array(np.ascontiguousarray(marks[name])) for name in ("offset", "redelivered")]
        names = ["offset", "redelivered", *self.content.schema.names, "expires"]
        return pa.RecordBatch.from_arrays([*own, *self.content.columns, expires], names)


def _in_own_memory(content: pa.RecordBatch, marks: Any) -> Notifications:
    return Notifications(content, marks, content.get_total_buffer_size() + marks.nbytes)


def joined(parts: Sequence[Notifications]) -> Notifications:
    """Several as one, in memory of its own if there are two or more."""
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
    values, lists = keys.flatten(), _lengths(keys)
    if pa.types.is_large_string(values.type):
        ends = np.cumsum(lists)
        totals = np.concatenate([[0], np.cumsum(_lengths(values))])
        of_keys = totals[ends] - totals[ends - lists]
    else:
        of_keys = 8 * lists
    marks["size"] = FIXED_BYTES + _lengths(ids) + _lengths(payloads) + of_keys
    return _in_own_memory(pa.RecordBatch.from_arrays([ids, payloads, keys], ["id", "payload", "keys"]), marks)


def _lengths(array: pa.Array) -> I64Array:
    lengths = pc.list_value_length(array) if pa.types.is_list(array.type) else pc.binary_length(array)
    found: I64Array = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


#: Memory that may stay in use for others' notifications, beside as much again as an outbox has of its own
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
        self._waiting = _Parts()
        self._in_flight = _Parts()
        # Counts of notifications, but for those that wait
        self._offered = self._delivered = self._dropped = self._expired = self._redelivered = 0
        self._handed_over = 0  # the greatest offset
        self._connection, self._is_connected = 0, False
        self._is_slow = self._is_closed = False

    def offer(self, new: Notifications) -> int:
        """Have notifications wait, as many as there is room for; how many were offered, 0 where the session has ended.

        Of several for which there is no room, the first ones stay, unless `when_full` is `drop_oldest`: then the last
        ones do, except those that alone are larger than an outbox. What is in flight is not dropped.
        """
        with self._lock:
            if self._is_closed:
                return 0
            new = new.marked("offset", np.arange(self._offered + 1, self._offered + 1 + len(new)))
            self._offered += len(new)
            fitting = self._fitting(new)
            if fitting < len(new):
                self._expire()
                fitting = self._fitting(new)
            if fitting == len(new):
                self._waiting.append(new)
            elif self.when_full == "drop_oldest":
                self._replace_oldest(new)
            else:
                self._waiting.append(new.part(0, fitting))
                self._dropped += len(new) - fitting
                self._is_slow = self.when_full == "disconnect" and self._is_connected
            self._waiting.compact()
            self._changed.notify_all()
            return len(new)

    def _fitting(self, new: Notifications) -> int:
        """How many, from the first on, there is room for."""
        room = self._most - self._waiting.count - self._in_flight.count
        room_bytes = self._most_bytes - self._waiting.nbytes - self._in_flight.nbytes
        return min(max(room, 0), int(np.searchsorted(np.cumsum(new.marks["size"]), room_bytes, "right")))

    def _replace_oldest(self, new: Notifications) -> None:
        most, most_bytes = self._most - self._in_flight.count, self._most_bytes - self._in_flight.nbytes
        possible = new.marks["size"] <= most_bytes
        self._dropped += int(len(new) - possible.sum())
        self._waiting.append(new if possible.all() else new.where(possible))
        self._dropped += self._waiting.drop_first(self._waiting.count - most, self._waiting.nbytes - most_bytes)

    def _expire(self) -> None:
        """Let go of what waits and has expired by now."""
        self._expired += self._waiting.drop_expired(self._now(), self._steady())

    def connect(self) -> int:
        """Begin a connection, and end the one before; what was handed over and not acknowledged is delivered again."""
        with self._lock:
            if self._is_closed:
                raise SessionError("this session has ended; connect again to begin another")
            self._connection += 1
            self._is_connected, self._is_slow = True, False
            if self._in_flight.count:
                self._waiting.put_before(self._in_flight.take_all().marked("redelivered", True))
            self._changed.notify_all()
            return self._connection

    def is_present(self, connection: int) -> bool:
        """Whether this connection has not ended."""
        return connection == self._connection and self._is_connected and not self._is_closed

    def disconnect(self, connection: int) -> bool:
        """End a connection; whether it was the present one. A call of `take` that waits ends, with a SessionError."""
        with self._lock:
            if connection != self._connection or not self._is_connected:
                return False
            self._connection += 1
            self._is_connected = False
            self._changed.notify_all()
            return True

    def take(
        self, connection: int, most: int = 1_024, most_bytes: int = 1 << 22, timeout: float | None = None
    ) -> pa.RecordBatch | None:
        """The next notifications, in the order of their offsets; waits until there are some."""
        if most < 1:
            raise InvalidValueError(f"most must be 1 or more notifications, not {most}")
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while True:
                self._check(connection)
                self._expire()
                if self._waiting.count:
                    return self._hand_over(most, most_bytes).as_batch(self._now(), self._steady())
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)

    def _check(self, connection: int) -> None:
        if self._is_closed:
            raise SessionError("this session has ended; connect again to begin another")
        if connection != self._connection or not self._is_connected:
            raise SessionError("this connection has ended, or another one has taken its session over")
        if self._is_slow:
            raise SlowSubscriberError(
                f"the outbox of this session was full with {self._waiting.count + self._in_flight.count} "
                f"notifications of {self._waiting.nbytes + self._in_flight.nbytes} bytes, and {self._dropped} were "
                "dropped so far; connect again to go on, and take or acknowledge notifications sooner"
            )

    def _hand_over(self, most: int, most_bytes: int) -> Notifications:
        taken = self._waiting.take_first(most, most_bytes)
        self._handed_over = max(self._handed_over, int(taken.marks["offset"][-1]))
        self._redelivered += int(taken.marks["redelivered"].sum())
        if self.guarantee == "at_most_once":
            self._delivered += len(taken)
        else:
            self._in_flight.append(taken)
            self._in_flight.compact()
        return taken

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
            self._delivered += self._in_flight.drop_up_to(offset) + self._waiting.drop_up_to(offset)

    def progress(self) -> tuple[int, int]:
        """The offset up to which nothing waits any more, and that of the last notification that was offered."""
        with self._lock:
            firsts = [parts.first_offset for parts in (self._in_flight, self._waiting) if parts.count]
            return min(firsts, default=self._offered + 1) - 1, self._offered

    def close(self) -> None:
        """End the session: what waits is dropped, and nothing is taken any more."""
        with self._lock:
            self._is_closed, self._is_connected = True, False
            for parts in (self._waiting, self._in_flight):
                self._dropped += parts.count
                parts.clear()
            self._changed.notify_all()

    @property
    def is_connected(self) -> bool:
        """Whether a connection has begun and not ended."""
        return self._is_connected

    def stats(self) -> dict[str, int]:
        """Counts of notifications, of one moment."""
        with self._lock:
            return {
                "offered": self._offered,
                "delivered": self._delivered,
                "dropped": self._dropped,
                "expired": self._expired,
                "waiting": self._waiting.count + self._in_flight.count,
                "in_flight": self._in_flight.count,
                "redelivered": self._redelivered,
                "bytes": self._waiting.nbytes + self._in_flight.nbytes,
            }


class _Parts:
    """Notifications in the order of their offsets, in parts of any length, with sums of all."""

    def __init__(self) -> None:
        self._parts: deque[Notifications] = deque()
        self.clear()

    def clear(self) -> None:
        self._parts.clear()
        self.count = self.nbytes = self._held = 0
        self._first_expiry = self._first_until = NEVER

    @property
    def first_offset(self) -> int:
        return int(self._parts[0].marks["offset"][0])

    def append(self, part: Notifications) -> None:
        if len(part):
            self._parts.append(part)
            self._count(part)

    def put_before(self, part: Notifications) -> None:
        self._parts.appendleft(part)
        self._count(part)

    def _count(self, part: Notifications) -> None:
        marks = part.marks
        self._change(part, 1)
        self._first_expiry = min(self._first_expiry, int(marks["expires"].min()))
        self._first_until = min(self._first_until, int(marks["until"].min()))

    def _change(self, part: Notifications, sign: int) -> None:
        self.count += sign * len(part)
        self.nbytes += sign * int(part.marks["size"].sum())
        self._held += sign * part.held

    def take_all(self) -> Notifications:
        whole = joined(self._parts)
        self.clear()
        return whole

    def _split_first(self, count: int) -> Notifications:
        """The first ones of the first part, which keeps the others."""
        part = self._parts.popleft()
        self._change(part, -1)
        if count < len(part):
            self.put_before(part.part(count, len(part)))
        return part.part(0, count)

    def take_first(self, most: int, most_bytes: int) -> Notifications:
        """The first ones: at least one, and no more than both allow."""
        taken: list[Notifications] = []
        while self.count and most > 0:
            first = self._parts[0]
            fitting = int(np.searchsorted(np.cumsum(first.marks["size"][:most]), most_bytes, "right"))
            if not fitting and taken:
                break
            taken.append(self._split_first(max(fitting, 1)))
            most, most_bytes = most - len(taken[-1]), most_bytes - int(taken[-1].marks["size"].sum())
            if fitting < len(first):
                break
        return joined(taken)

    def drop_first(self, count: int, nbytes: int) -> int:
        """Let go of as few as possible, from the first on, that are so many and so large; how many these were."""
        dropped = 0
        while (count > 0 or nbytes > 0) and self.count:
            sizes = np.cumsum(self._parts[0].marks["size"])
            enough = max(count, int(np.searchsorted(sizes, nbytes, "left")) + 1 if nbytes > 0 else 0)
            gone = len(self._split_first(min(enough, len(sizes))))
            count, nbytes, dropped = count - gone, nbytes - int(sizes[gone - 1]), dropped + gone
        return dropped

    def drop_up_to(self, offset: int) -> int:
        dropped = 0
        while self.count and self.first_offset <= offset:
            dropped += len(self._split_first(int(np.searchsorted(self._parts[0].marks["offset"], offset, "right"))))
        return dropped

    def drop_expired(self, now: int, steady: int) -> int:
        if now < self._first_expiry and steady < self._first_until:
            return 0
        parts, before = list(self._parts), self.count
        self.clear()
        for part in parts:
            lasting = (part.marks["expires"] > now) & (part.marks["until"] > steady)
            self.append(part if lasting.all() else part.where(lasting))
        return before - self.count

    def compact(self) -> None:
        """Copy what waits where it keeps much memory of others in use: parts of batches that many sessions share."""
        if self._held > 4 * self.nbytes + _SHARED_BYTES:
            whole = self.take_all()
            self.append(whole.where(np.ones(len(whole), bool)))
