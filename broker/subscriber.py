"""A subscriber of a service that is elsewhere: an iterator of its notifications."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Generic, NamedTuple, Self, TypeVar

import pyarrow as pa

from tagmatch.broker.connection import Connection
from tagmatch.model.columns import KEY_CHECKS, shown
from tagmatch.model.errors import ClosedError, InvalidTypeError, TagMatchError
from tagmatch.model.options import KeyType

K = TypeVar("K", int, str)

#: What a subscriber sends, in columns: the offset up to which it has everything, keys to follow, keys no longer
_COLUMNS = ("acknowledge", "follow", "unfollow")


def listed_keys(keys: Iterable[K]) -> list[K]:
    """Keys as a list.

    Raises
    ------
    InvalidTypeError
        It is one string, whose characters would be taken for keys, or not iterable.
    """
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise InvalidTypeError(f"keys must be an iterable of keys, not {shown(keys)}; give a list, also of one key")
    return list(keys)


class Notification(NamedTuple, Generic[K]):
    """What a message was, for one subscriber.

    Attributes
    ----------
    offset : int
        Its number in the session, from 1 on. A number that is missing is of a notification that was dropped, or has
        expired.
    redelivered : bool
        It was handed over before, to an earlier connection.
    id : bytes, optional
        What its publisher calls the message.
    payload : bytes, optional
    keys : list of int or str
        Those that the session follows and that the message matched.
    expires : datetime, optional
    """

    offset: int
    redelivered: bool
    id: bytes | None
    payload: bytes | None
    keys: list[K]
    expires: datetime | None


class Subscriber(Generic[K]):
    """A connection to a session; `RemoteTagMatch.subscriber` makes it.

    Iteration waits for notifications and ends when the service does, or when another thread closes this. It continues
    at the next notification: all iterators of a subscriber, and `batches`, hand over each one once between them. One
    thread may take notifications while others acknowledge and follow.

    Raises
    ------
    SlowSubscriberError, SessionError, AccessError, UnavailableError
        By iteration: why the service has ended it. Connect again to go on; what was not acknowledged comes again.
    """

    def __init__(self, connection: Connection, key_type: KeyType, command: dict[str, Any]) -> None:
        kind = pa.large_string() if key_type == "string" else pa.uint64()
        self._schema = pa.schema(zip(_COLUMNS, (pa.int64(), kind, kind), strict=True))
        self._key_type = key_type
        self._stream = connection.open_stream(self._schema, {"command": "notify", **command})
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._last, self._closed, self._has_ended = 0, False, False
        # The last batch, the number of its rows that were handed over, and its rows one by one, once one is asked for
        self._batch: pa.RecordBatch | None = None
        self._place = 0
        self._rows: Iterator[tuple[Any, ...]] | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Notifications in batches, as columns `offset`, `redelivered`, `id`, `payload`, `keys` and `expires`."""
        while (batch := self._next_batch()) is not None:
            yield batch

    def __iter__(self) -> Iterator[Notification[K]]:
        while (row := self._next_row()) is not None:
            yield row

    def _next_batch(self) -> pa.RecordBatch | None:
        """The rest of the last batch, else the next batch; `None` at the end."""
        with self._reading:
            if (came := self._came()) is None:
                return None
            rest = came.slice(self._place)
            self._place, self._last = len(came), rest["offset"][-1].as_py()
            return rest

    def _next_row(self) -> Notification[K] | None:
        with self._reading:
            if (came := self._came()) is None:
                return None
            if self._rows is None:
                self._rows = zip(*(column.to_pylist() for column in came.columns), strict=True)
            row = Notification(*next(self._rows))
            self._place, self._last = self._place + 1, row.offset
            return row

    def _came(self) -> pa.RecordBatch | None:
        """The last batch, if some of it was not handed over, else the next one; `None` at the end."""
        while self._batch is None or self._place == len(self._batch):
            if self._closed or self._has_ended:
                return None
            self._batch, self._place, self._rows = self._stream.read(), 0, None
            self._has_ended = self._batch is None
        return self._batch

    def acknowledge(self, offset: int | None = None) -> None:
        """Say that all notifications up to this offset, default: the last one that was handed over, are done with.

        Iteration hands over single notifications, `batches` batches. Those that have come from the service, but were
        not handed over, are not acknowledged.

        The service finds out whether that can be, so that errors come by iteration.
        """
        self._send(0, [self._last if offset is None else offset])

    def follow(self, keys: Iterable[K]) -> None:
        """Follow more keys, soon; errors as for `acknowledge`."""
        self._send(1, self._checked(keys))

    def unfollow(self, keys: Iterable[K]) -> None:
        """Follow some keys no longer, soon; errors as for `acknowledge`."""
        self._send(2, self._checked(keys))

    def _checked(self, keys: Iterable[K]) -> list[K]:
        listed = listed_keys(keys)
        KEY_CHECKS[self._key_type].many(listed, "keys")
        return listed

    def _send(self, place: int, values: list[Any]) -> None:
        columns = [
            pa.array(values if number == place else [None] * len(values), field.type)
            for number, field in enumerate(self._schema)
        ]
        with self._lock:
            if self._closed:
                raise ClosedError("this subscriber is closed; connect again")
            self._stream.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """End the connection; the session goes on as long as it lingers."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        # The service ends the stream then, and with it what another thread reads: it cannot be closed meanwhile
        with contextlib.suppress(TagMatchError):
            self._stream.done_writing()
        with self._reading:
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
