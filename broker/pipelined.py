"""Single messages over one stream, many on their way at once.

Messages that gather while others are sent go together, a row each, in one batch, and so do their answers: to send one
costs the interpreter as much as a hundred.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.broker.connection import MessageStream
from tagmatch.broker.reply import Reply, give
from tagmatch.model.errors import ClosedError, Overloaded, TagMatchError, UnavailableError

#: What such a stream has
SCHEMA = pa.schema([("tags", pa.list_(pa.string()))])
_MOST_ROWS = 4096
# Messages do not wait for others where there are so many, or for longer
_ENOUGH = 512
_PATIENCE_S = 0.001


class _Sent:
    """A stream, and the futures of the messages that are on it, in order."""

    def __init__(self, stream: MessageStream) -> None:
        self.stream = stream
        self.futures: deque[Reply] = deque()
        self.has_ended = False


class Pipelined:
    """Asks single messages.

    Parameters
    ----------
    open_stream : callable
        Begins a stream with columns as `SCHEMA`.
    finish : callable
        `list` or `set`: what keys are given as.
    most_rows : int
        Messages of one batch.
    most : int
        Messages that are on their way at once.
    """

    def __init__(
        self, open_stream: Callable[[], MessageStream], finish: Callable[..., Any], most_rows: int, most: int
    ) -> None:
        self._open, self._finish, self._most = open_stream, finish, most
        self._most_rows = min(most_rows, _MOST_ROWS)
        self._lock = threading.Lock()
        self._some, self._room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._tags: list[list[str]] = []
        self._futures: list[Reply] = []
        self._in_flight = self._waiting = 0
        self._sleeps = self._gathers = self._closed = False
        self._last_sent = 0.0
        self._sent: _Sent | None = None
        self._sender: threading.Thread | None = None
        self._receivers: list[threading.Thread] = []

    def submit(self, tags: list[str], timeout: float | None) -> Reply:
        """The keys of one message, in the future.

        Raises
        ------
        ClosedError
        Overloaded
            As many are on their way as may be, for longer than `timeout` seconds.
        """
        future = Reply()
        with self._lock:
            if self._in_flight >= self._most:
                self._wait(timeout)
            if self._closed:
                raise ClosedError("this connection is closed; connect again")
            self._in_flight += 1
            self._tags.append(tags)
            self._futures.append(future)
            if self._sleeps or (self._gathers and len(self._tags) == _ENOUGH):
                self._sleeps = False
                self._some.notify()
            elif self._sender is None:
                self._sender = threading.Thread(target=self._send_all, name="tagmatch-send", daemon=True)
                self._sender.start()
        return future

    def _wait(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        self._waiting += 1
        try:
            while self._in_flight >= self._most and not self._closed:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise Overloaded(f"{self._most:,} messages are on their way to the service; try again later")
                self._room.wait(left)
        finally:
            self._waiting -= 1

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        """Send what gathers; the body of a thread, which alone writes."""
        while True:
            with self._lock:
                while not (self._tags or self._closed or (self._sent is not None and self._sent.stream.is_draining)):
                    self._sleeps = True
                    self._some.wait()
                self._sleeps = False
                self._gather()
                tags, futures = self._tags[: self._most_rows], self._futures[: self._most_rows]
                del self._tags[: self._most_rows], self._futures[: self._most_rows]
                if not tags and self._closed:
                    break
            if self._sent is not None and self._sent.stream.is_draining:
                self._retire(self._sent)
            if tags:
                self._send(tags, futures)
        if self._sent is not None:
            self._retire(self._sent)

    def _gather(self) -> None:
        """Let more messages come while answers are awaited: few large batches take less of the processors than many.

        A message that is alone goes at once; others wait for the answers to those before them, at most so long.
        """
        until = self._last_sent + _PATIENCE_S
        while (
            self._sent is not None
            and self._sent.futures
            and len(self._tags) < _ENOUGH
            and not self._closed
            and (left := until - time.monotonic()) > 0
        ):
            self._gathers = True
            self._some.wait(left)
        self._gathers = False

    def _send(self, tags: list[list[str]], futures: list[Reply]) -> None:
        try:
            batch = _batch(tags)
            sent = self._stream_for(futures)
        except Exception as error:
            self._give_error(futures, _known(error))
            return
        try:
            self._last_sent = time.monotonic()
            sent.stream.write(batch)
        except Exception as error:
            self._fail(sent, _known(error))

    def _stream_for(self, futures: list[Reply]) -> _Sent:
        """The stream on which these go."""
        while True:
            if self._sent is None:
                self._sent = sent = _Sent(self._open())
                receiver = threading.Thread(target=self._receive, args=[sent], name="tagmatch-receive", daemon=True)
                self._receivers = [*(each for each in self._receivers if each.is_alive()), receiver]
                receiver.start()
            sent = self._sent
            with self._lock:
                if not sent.has_ended:
                    sent.futures.extend(futures)
                    return sent
            self._sent = None

    def _retire(self, sent: _Sent) -> None:
        """End a stream whose last answers are still to come."""
        try:
            sent.stream.done_writing()
        except Exception as error:
            self._fail(sent, _known(error))
        self._sent = None

    # -- receiving ---------------------------------------------------------------------------------------------------

    def _receive(self, sent: _Sent) -> None:
        """Give answers to futures; the body of a thread."""
        try:
            while True:
                batch = sent.stream.read()
                if batch is not None:
                    self._answer(sent, batch)
                elif sent.stream.is_draining and not sent.has_ended:
                    with self._lock:
                        sent.has_ended = True  # no more messages on this one
                        self._sleeps = False
                        self._some.notify()
                else:
                    break
            error: TagMatchError = UnavailableError("the service has ended the stream; ask again")
        except Exception as found:
            error = _known(found)
        self._fail(sent, error)
        sent.stream.close()

    def _answer(self, sent: _Sent, batch: pa.RecordBatch) -> None:
        if (refused := sent.stream.refused) is not None:
            with self._lock:
                futures = [sent.futures.popleft() for _ in range(len(batch))]
            self._give_error(futures, refused)
            return
        column, finish = batch.column("keys"), self._finish
        offsets, values = column.offsets.to_numpy().tolist(), column.values
        keys = values.to_numpy().tolist() if pa.types.is_uint64(values.type) else values.to_pylist()
        with self._lock:
            popleft = sent.futures.popleft
            futures = [popleft() for _ in range(len(batch))]
            if self._gathers and not sent.futures:
                self._some.notify()
        if finish is list:
            give(futures, lambda place: keys[offsets[place] : offsets[place + 1]])
        else:
            give(futures, lambda place: set(keys[offsets[place] : offsets[place + 1]]))
        self._leave(len(futures))

    def _leave(self, count: int) -> None:
        with self._lock:
            self._in_flight -= count
            if self._waiting or self._closed:
                self._room.notify_all()

    def _fail(self, sent: _Sent, error: TagMatchError) -> None:
        """Give an error to all that are on a stream, which is over."""
        with self._lock:
            sent.has_ended = True
            futures = list(sent.futures)
            sent.futures.clear()
        if isinstance(error, UnavailableError) and futures:
            error = UnavailableError(f"{error} ({len(futures)} messages were on their way; ask them again)")
        self._give_error(futures, error)

    def _give_error(self, futures: list[Reply], error: TagMatchError) -> None:
        for future in futures:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)
        self._leave(len(futures))

    def is_at_work(self) -> bool:
        """Whether the calling thread is one of those that `close` waits for, as in the callback of a future."""
        return threading.current_thread() in (self._sender, *self._receivers)

    def close(self, *, drain: bool) -> None:
        """Wait for all answers, or without `drain` give up; ends the threads."""
        with self._lock:
            self._closed = True
            left = [] if drain else self._futures
            if not drain:
                self._tags, self._futures = [], []
            self._sleeps = False
            self._some.notify()
            self._room.notify_all()
        for future in left:
            future.cancel()
        self._leave(len(left))
        if self._sender is not None:
            self._sender.join()
        if drain:
            with self._lock:
                while self._in_flight:
                    self._room.wait()
        for receiver in self._receivers:
            receiver.join(None if drain else 1.0)


def _batch(rows: list[list[str]]) -> pa.RecordBatch:
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, rows), np.int32, len(rows)), out=offsets[1:])
    tags = pa.ListArray.from_arrays(pa.array(offsets), pa.array(list(chain.from_iterable(rows)), pa.string()))
    return pa.RecordBatch.from_arrays([tags], schema=SCHEMA)


def _known(error: Exception) -> TagMatchError:
    return error if isinstance(error, TagMatchError) else TagMatchError(f"a message could not be sent: {error}")
