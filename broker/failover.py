"""One client's connections to several services that answer alike: when one is gone, the next is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from tagmatch.broker.connection import Connection, MessageStream
from tagmatch.model.errors import InvalidValueError, UnavailableError

T = TypeVar("T")

#: Actions that change nothing, and are repeated
_ASKING = {"info", "explain", "contains", "stats"}


class Services:
    """As a `Connection`, to the first of several services that answers; it is left when it is gone."""

    def __init__(self, all_of_them: Sequence[Connection]) -> None:
        self._all, self._turn, self._lock = all_of_them, 0, threading.Lock()

    @property
    def url(self) -> str:
        """Of the service that is asked now."""
        return self._current.url

    @property
    def _current(self) -> Connection:
        return self._all[self._turn % len(self._all)]

    def _leave(self, turn: int) -> None:
        """Ask the next one from now on, if no other thread has seen that this one is gone."""
        with self._lock:
            self._turn += turn == self._turn

    def _once(self, work: Callable[[Connection], T]) -> T:
        turn = self._turn
        try:
            return work(self._current)
        except UnavailableError:
            self._leave(turn)
            raise

    def asked(self, work: Callable[[], T]) -> T:
        """What work gives that only asks: it is repeated as often as there are other services."""
        for _ in self._all[1:]:
            turn = self._turn
            try:
                return work()
            except UnavailableError:
                self._leave(turn)
        return work()

    def one(self, what: str) -> NoReturn:
        """Reject a call about data that differs from service to service."""
        raise InvalidValueError(
            f"{what} belong to one service, and this connection has {len(self._all)}; connect to one address, such as "
            "that of a balancer that keeps each token with its service"
        )

    def act(self, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """See `Connection`; what may have been changed before the service was gone is not repeated."""

        def work() -> dict[str, Any]:
            return self._once(lambda each: each.act(name, body))

        return self.asked(work) if name in _ASKING else work()

    def put(self, command: Mapping[str, Any], table: pa.Table, most_rows: int) -> dict[str, Any]:
        """See `Connection`; it is not repeated."""
        return self._once(lambda each: each.put(command, table, most_rows))

    def get(self, name: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """See `Connection`."""
        return self.asked(lambda: self._once(lambda each: each.get(name)))

    def open_stream(self, schema: pa.Schema, command: Mapping[str, Any]) -> MessageStream:
        """See `Connection`."""
        turn = self._turn
        stream = self._once(lambda each: each.open_stream(schema, command))
        stream.gone = partial(self._leave, turn)
        return stream

    def close(self) -> None:
        """End the connections."""
        for each in self._all:
            each.close()
