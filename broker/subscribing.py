"""Subscribers of a service: their sessions, what publishes to them, and the gateways; over Flight, streams of both."""

from __future__ import annotations

import logging
import pkgutil
import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.broker import flight as wire
from tagmatch.broker.access import ClientCall, Memory
from tagmatch.broker.exchange import DRAINING, check_schema
from tagmatch.broker.flight import IncomingStream, OutgoingStream, told
from tagmatch.broker.hub import Hub, Published
from tagmatch.broker.outbox import KEY_TYPES, schema_of
from tagmatch.broker.sessions import Connection, Sessions
from tagmatch.broker.wire import JsonOptions, error_text, write_json
from tagmatch.model.errors import InvalidValueError, SessionError
from tagmatch.model.options import KeyType

if TYPE_CHECKING:
    from tagmatch.broker.gateways.gateway import Gateway
    from tagmatch.broker.service import Service

_LOG = logging.getLogger("tagmatch.subscribers")
# Seconds between looks whether the service ends, and for which gateways may go on sending then
_LOOK_S = 0.2
# Of notifications that go together
_MOST_BYTES = 4 << 20
#: Columns of what a subscriber sends: the offset up to which it has everything, keys to follow, keys no longer
ACKNOWLEDGE, FOLLOW, UNFOLLOW = "acknowledge", "follow", "unfollow"


@dataclass(frozen=True, slots=True)
class NotifyOptions(JsonOptions):
    """What a subscriber asks for, as `Sessions.connect` takes it."""

    session: str = ""
    keys: list | None = None  # type: ignore[type-arg]
    every_key: bool = False
    guarantee: str = "at_most_once"
    when_full: str | None = None
    linger: int | float | None = None


@dataclass(frozen=True, slots=True)
class PublishOptions(JsonOptions):
    """How messages are published."""

    channel: str | None = None  # The channel that they are of


class Subscribers:
    """Sessions, hub and gateways of one service."""

    def __init__(self, service: Service) -> None:
        config = service.config
        self._service, self._config = service, config
        self.key_type: KeyType = "string" if service.has_string_keys else "integer"
        self.sessions = Sessions(self.key_type, config.sessions)
        channels = [each.name for each in config.channel]
        self.hub = Hub(service.index, self.sessions, config.hub, channels)
        self.gateways: list[Gateway] = []
        self._quiet = threading.Event()
        self._ending: threading.Thread | None = None
        service.exchanges["notify"] = ("read", _notify)
        service.puts["publish"] = ("write", _publish)
        service.on_drain.append(self._begin_to_end)
        service.metrics.watch_subscribers(self.stats)

    def start(self) -> None:
        """Begin to connect gateways; TagMatchError if one lacks its package or a file."""
        for _, _, options in self._config.gateways:
            kind: type[Gateway] = pkgutil.resolve_name(options.gateway)
            gateway = kind(self._service.index, self.hub, self.sessions, options)
            self.gateways.append(gateway)
            gateway.start()

    @property
    def is_ready(self) -> bool:
        """Whether all gateways that are required have connections, or have had them until just now."""
        return all(gateway.is_ready for gateway in self.gateways)

    @property
    def conditions(self) -> dict[str, str]:
        """Of each gateway, by its session, whether it is connected, in words."""
        return {gateway.options.session: gateway.condition for gateway in self.gateways}

    @property
    def is_quiet(self) -> bool:
        """Whether the service ends, and no new notifications come."""
        return self._quiet.is_set()

    def _begin_to_end(self) -> None:
        self._ending = threading.Thread(target=self._end, name="tagmatch-subscribers-end", daemon=True)
        self._ending.start()

    def _end(self) -> None:
        seconds = self._config.server.drain_seconds
        for gateway in self.gateways:
            if not gateway.stop(seconds):
                _LOG.warning("a gateway has not sent everything in time")
        if not self.hub.close(timeout=seconds):
            _LOG.warning("messages were dropped, as they were not matched in time")
        self._quiet.set()

    def end(self, timeout: float) -> None:
        """Wait so long for gateways and for what is published, and end all sessions."""
        if self._ending is not None:
            self._ending.join(timeout)
        self.sessions.close()

    def stats(self) -> dict[str, dict[str, int]]:
        """Figures of `sessions`, the `hub`, and each gateway by its session."""
        gateways = {gateway.options.session: gateway.stats() for gateway in self.gateways}
        return {"sessions": self.sessions.stats(), "hub": self.hub.stats(), **gateways}


# -- notifications -----------------------------------------------------------------------------------------------------


def _notify(call: ClientCall, command: dict[str, Any], incoming: IncomingStream) -> Generator[bytes]:
    """Give a subscriber its notifications, until it ends the stream."""
    options: Any = NotifyOptions.of(command, "the descriptor")
    call.keep_to_rate(len(options.keys or ()))
    connection = call.service.subscribers.sessions.connect(
        options.session,
        call.user.name,
        keys=options.keys,
        every_key=options.every_key,
        guarantee=options.guarantee,
        when_full=options.when_full,
        linger=None if options.linger is None else float(options.linger),
    )
    return _Notifying(call, connection, incoming).run()


class _Notifying:
    def __init__(self, call: ClientCall, connection: Connection, incoming: IncomingStream) -> None:
        self._call, self._connection, self._incoming = call, connection, incoming
        self._has_ended = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> Generator[bytes]:
        self._call.rpc.check = self._check
        self._call.rpc.begin(self._read)
        try:
            self._outgoing = OutgoingStream(schema_of(self._call.service.subscribers.key_type))
            yield self._outgoing.begin()
            yield from self._give_all()
        except Exception as error:
            if self._has_ended.is_set() and isinstance(error, SessionError):
                if self._error is not None:
                    raise self._error from None
                return
            yield told(error_text(error))
            raise
        finally:
            self._connection.close()

    def _check(self) -> None:
        """See that the subscriber may still get notifications."""
        self._call.require()
        if not self._connection.is_present:
            raise SessionError("this connection has ended, or another one has taken its session over")

    def _give_all(self) -> Iterator[bytes]:
        service, asked = self._call.service, False
        most = service.config.server.max_batch_rows
        most_bytes = min(service.config.server.max_message_bytes, _MOST_BYTES)
        while True:
            self._call.require()
            taken = self._connection.take(most, most_bytes=most_bytes, timeout=_LOOK_S)
            if taken is not None:
                yield from self._outgoing.batch(taken)
            elif service.is_draining and service.subscribers.is_quiet and not asked:
                asked = True
                yield told(DRAINING)

    def _read(self) -> None:
        """Read what the subscriber sends; at the end, `take` is woken by the end of the connection."""
        try:
            for batch in self._incoming:
                self._obey(batch)
        except BaseException as error:  # the thread of the call raises it
            self._error = error
        self._has_ended.set()
        self._connection.close()

    def _obey(self, batch: pa.RecordBatch) -> None:
        kind = KEY_TYPES[self._call.service.subscribers.key_type]
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name not in (ACKNOWLEDGE, FOLLOW, UNFOLLOW):
                raise InvalidValueError(
                    f"a subscriber sends columns {ACKNOWLEDGE}, {FOLLOW} and {UNFOLLOW}, not {name[:60]!r}"
                )
            given = column.drop_null()
            if not len(given):
                continue
            if name == ACKNOWLEDGE:
                self._connection.acknowledge(pc.max(given.cast(pa.int64())).as_py())
                continue
            self._call.keep_to_rate(len(given))
            if name == FOLLOW:
                self._connection.follow(given.cast(kind))
            else:
                self._connection.unfollow(given.cast(kind))


# -- messages ----------------------------------------------------------------------------------------------------------


def _publish(call: ClientCall, command: dict[str, Any], incoming: IncomingStream) -> Generator[bytes]:
    """Have messages matched and subscribers notified; answer, as JSON, how many they were and how many matched."""
    options = PublishOptions.of(command, "the descriptor")
    check_schema(incoming.schema)
    hub = call.service.subscribers.hub
    waiting: deque[Future[Published]] = deque()
    counts = {"messages": 0, "matched": 0}

    def count(done: Future[Published]) -> None:
        published = done.result()
        counts["messages"] += published.messages
        counts["matched"] += published.matched

    for batch in incoming:
        call.keep_to_rate(len(batch))
        call.require()
        call.memory.wait_for(batch.nbytes)
        waiting.append(hub.publish(batch, channel=options.channel))
        waiting[-1].add_done_callback(partial(_give_back, call.memory, batch.nbytes))
        while waiting and waiting[0].done():
            count(waiting.popleft())
    for future in waiting:
        count(future)
    yield wire.result(write_json(counts))


def _give_back(memory: Memory, nbytes: int, _: object) -> None:
    memory.give_back(nbytes)
