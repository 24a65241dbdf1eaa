"""A gateway to a server of NATS: tags as headers, notifications by key.

The server does not acknowledge single messages. At least once, a notification counts as sent when the server has
given back a mark, a message of the gateway to itself, that was published after it over the same connection. (`flush` of
nats-py does not do: its ping goes out before what still waits to be written, it returns at once where the connection
has just ended, and an answer to it that comes too late ends the client's reading.) What comes in comes at most once.

Each connection has a separate client object: any error of the server closes one of nats-py for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import re
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from typing import Any

from tagmatch.broker.config import NatsOptions
from tagmatch.broker.gateway import Gateway, KeyNotification, NoConnection, Unsent
from tagmatch.broker.hub import Hub
from tagmatch.broker.incoming import EXPIRES_IN, ID_HEADER, GatewayMessage, id_and_end
from tagmatch.broker.sessions import Sessions
from tagmatch.broker.wire import in_url
from tagmatch.model.errors import InvalidValueError, TagMatchError

try:
    from nats.aio.client import Client
    from nats.errors import Error as NatsError
    from nats.errors import SlowConsumerError
except ImportError:
    raise TagMatchError("the NATS gateway needs nats-py; install it with: pip install 'tagmatch[nats]'") from None

_LOG = logging.getLogger("tagmatch.gateways")
#: What a header cannot carry within its value
_CONTROLS = re.compile("[\\x00-\\x1f\\x7f]")
#: Bytes of the line that names the subject, and of the numbers in it
_MOST_LINE, _NUMBERS = 4096, 32
#: Between signs of life of the server; and bytes that go to it in a second at least
_PING_S, _SLOWEST = 10, 100_000
#: Within which a client is closed: after a handshake of TLS that fails, nats-py would wait for ever
_CLOSE_S = 1.0
_REFUSED = re.compile(r'permissions violation for (publish|subscription) to "(.*)"', re.IGNORECASE)


class _Client(Client):
    """A client whose reading does not end by a message that cannot be read; headers of messages stay bytes."""

    def __init__(self, unreadable: Callable[[str, bytes, bytes, Exception], None]) -> None:
        super().__init__()
        self._unreadable = unreadable

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Go on without encryption only if none is wanted: else nats-py would where the server does not ask for it."""
        if initial_connection and "tls" in self.options:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise NatsError("the server offers no TLS; give it a certificate, or set tls = false for the gateway")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_headers(self, headers: Any) -> Any:
        return bytes(headers) if headers else None

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except Exception as error:
            self._unreadable(subject.decode(errors="backslashreplace"), data, headers, error)


class NatsGateway(Gateway):
    """A gateway to NATS; see `Gateway`."""

    options: NatsOptions

    def __init__(self, index: Any, hub: Hub, sessions: Sessions, options: NatsOptions) -> None:
        super().__init__(index, hub, sessions, options)
        # Of the present connection, which runs in the thread that keeps the gateway connected.
        # The loop is `None` as soon as it ends; what others begin there, they begin under the lock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_stays = threading.Lock()
        self._connection_ends: asyncio.Task[Any] | None = None
        self._client: Any = None
        self._inbox_of_marks = ""
        self._marks: dict[bytes, asyncio.Future[None]] = {}
        self._numbers = itertools.count()
        self._subscriptions: list[Any] = []
        # What the server complains of: at last, and subjects that the gateway may not publish to
        self._complaint: Exception | None = None
        self._forbidden: dict[str, str] = {}

    def _do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What a coroutine returns, in the loop of the present connection; Unsent if that ends before."""
        try:
            with self._loop_stays:
                if self._loop is None:
                    raise RuntimeError
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            return future.result()
        except (RuntimeError, CancelledError):
            coroutine.close()
            raise Unsent("the connection was lost", is_suspect=True) from None

    def _run_connection(self) -> None:
        try:
            asyncio.run(self._until_it_ends())
        except asyncio.CancelledError:
            raise NoConnection("the gateway ends") from None

    async def _until_it_ends(self) -> None:
        try:
            await self._connection()
        finally:
            with self._loop_stays:
                self._loop = None
            await asyncio.sleep(0)  # what others have asked for becomes tasks, which the loop's end cancels

    async def _connection(self) -> None:
        options, client, closed = self.options, _Client(self._on_unreadable), asyncio.Event()
        self._loop, self._connection_ends = asyncio.get_running_loop(), asyncio.current_task()
        if self._ended.is_set():
            return
        security: dict[str, Any] = {}
        if options.username is not None:
            security |= {"user": options.username, "password": options.password}
        if (context := options.tls_context) is not None:
            security["tls"] = context
        self._complaint = None
        self._subscriptions.clear()
        reason = "the connection was lost"

        async def on_closed() -> None:
            closed.set()

        try:
            await client.connect(
                f"nats://{in_url(options.host)}:{options.port}",
                allow_reconnect=False,
                # Else the client tries a server that cannot be reached for two minutes, in its own intervals
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=self._on_error,
                closed_cb=on_closed,
                connect_timeout=math.ceil(options.flush_timeout),
                ping_interval=_PING_S,
                **security,
            )
            self._client = client
            await self._subscribe(client)
            self._is_connected(True)
            await closed.wait()
        except (TimeoutError, OSError, NatsError, NoConnection, Unsent) as error:
            reason = str(error) or type(error).__name__
        finally:
            self._is_connected(False)
            for mark in self._marks.values():
                if not mark.done():
                    mark.set_exception(Unsent("the connection was lost", is_suspect=True))
            with contextlib.suppress(Exception):
                await asyncio.wait_for(client.close(), _CLOSE_S)
        raise NoConnection(self._complaint or reason)

    async def _subscribe(self, client: Client) -> None:
        self._inbox_of_marks = client.new_inbox()
        await client.subscribe(self._inbox_of_marks, cb=self._on_mark)
        for subject, act in ((self.options.messages, self._on_message), (self.options.control, self._on_request)):
            if subject:
                self._subscriptions.append(await client.subscribe(subject, self.options.queue, cb=act))
        await self._server_has_all(client, 0)
        if self._complaint is not None:  # else it would be connected, and hear nothing
            raise NoConnection(self._complaint)

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            self.counts.add(received=1, dropped=1)
            return
        found = _REFUSED.search(str(error))
        if found is not None and found[1].lower() == "publish":
            self._forbidden[found[2].lower()] = str(error)
            return
        self._complaint = error
        fields = {"gateway": self.options.session, "reason": str(error) or type(error).__name__}
        _LOG.warning("the server complains", extra={"fields": fields})

    def _end_receiving(self) -> None:
        if self._connected.is_set():
            with contextlib.suppress(Unsent):
                self._do(self._drain_subscriptions())

    async def _drain_subscriptions(self) -> None:
        for subscription in self._subscriptions:
            with contextlib.suppress(NatsError, asyncio.TimeoutError):
                await asyncio.wait_for(subscription.drain(), self.options.flush_timeout)

    def _end(self) -> None:
        if self._connected.is_set():
            with contextlib.suppress(Unsent):
                self._do(self._server_has_all(self._client, 0))
        with self._loop_stays:
            if self._loop is not None and self._connection_ends is not None:
                self._loop.call_soon_threadsafe(self._connection_ends.cancel)

    async def _on_message(self, message: Any) -> None:
        if message.subject == self._inbox_of_marks:  # `messages` take everything
            return
        try:
            came = self._incoming(message)
        except Exception as error:  # an error of this message alone
            self._on_unreadable(message.subject, message.data, message.headers or b"", error)
        else:
            self.receive(came, may_drop=True)

    def _incoming(self, message: Any) -> GatewayMessage:
        headers = _read_headers(message.headers or b"")
        own, until = id_and_end(headers, self.sessions.steady())
        return GatewayMessage(headers, message.data, own, until, None, message.subject)

    def _on_unreadable(self, subject: str, data: bytes, headers: bytes, error: Exception) -> None:
        """Refuse a message that cannot even be read."""
        raw = (("headers", bytes(headers or b"").decode(errors="backslashreplace")),)
        self._handing_over.refuse(GatewayMessage(raw, bytes(data), topic=subject), error)

    async def _on_request(self, message: Any) -> None:
        # In another thread, as it may write to the disk
        answer = await asyncio.to_thread(self.requests.answer, message.data)
        if message.reply and self._may_answer_to(message.reply):
            with contextlib.suppress(NatsError):
                await message.respond(answer)

    def why_unsendable(self, outgoing: KeyNotification) -> str | None:
        """Why the broker would not take it, as far as its limits are known."""
        line = len(outgoing.topic.encode()) + _NUMBERS
        if line > _MOST_LINE:
            return f"its subject has {line - _NUMBERS:,} bytes, more than {_MOST_LINE - _NUMBERS:,}"
        size, most = len(outgoing.payload) + _size_of(_headers(outgoing)), self._client.max_payload
        return f"it has {size:,} bytes with its headers, and the server takes {most:,}" if size > most else None

    def send(self, outgoing: Sequence[KeyNotification]) -> list[tuple[KeyNotification, str]]:
        """Send these, and wait until the broker has them."""
        found: list[tuple[KeyNotification, str]] = self._do(self._send_and_flush(outgoing))
        return found

    async def _send_and_flush(self, outgoing: Sequence[KeyNotification]) -> list[tuple[KeyNotification, str]]:
        client = self._client
        if not (self._connected.is_set() and client.is_connected):
            raise Unsent("there is no connection")
        self._forbidden.clear()
        refused = []
        for each in outgoing:
            try:
                await client.publish(each.topic, each.payload, headers=_headers(each))
            except (TimeoutError, NatsError, OSError) as error:
                if client.is_connected:  # it is of this one alone
                    refused.append((each, f"{type(error).__name__}: {error}"))
                else:
                    raise Unsent(str(error) or type(error).__name__, is_suspect=True) from None
        await self._server_has_all(client, sum(len(each.payload) for each in outgoing))
        self._has_gone_on = True
        if self._forbidden:
            refused += [(each, why) for each in outgoing if (why := self._forbidden.get(each.topic.lower()))]
        return refused

    async def _server_has_all(self, client: Client, nbytes: int) -> None:
        """Wait until the server has everything that this client has published, `nbytes` among it."""
        mark = asyncio.get_running_loop().create_future()
        number = b"%d" % next(self._numbers)
        self._marks[number] = mark
        try:
            await client.publish(self._inbox_of_marks, number)
            await asyncio.wait_for(mark, self.options.flush_timeout + nbytes / _SLOWEST)
        except (TimeoutError, NatsError, OSError) as error:
            if not client.is_connected:
                raise Unsent(str(error) or "the connection was lost", is_suspect=True) from None
            why = str(error) or (
                f"no message to {self._inbox_of_marks} came back within {self.options.flush_timeout} s; "
                "the gateway's user must be allowed to publish and to subscribe to _INBOX.>"
            )
            raise Unsent(why) from None
        finally:
            del self._marks[number]

    async def _on_mark(self, message: Any) -> None:
        mark = self._marks.get(message.data)
        if mark is not None and not mark.done():
            mark.set_result(None)


def _read_headers(raw: bytes) -> list[tuple[str, str]]:
    """Names and values of headers, which must be UTF-8; names may repeat."""
    try:
        _, *lines = raw.decode().split("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"its headers are no UTF-8: {error}") from None
    pairs = (line.partition(":") for line in lines)
    return [(name.strip(), value.strip()) for name, colon, value in pairs if colon]


def _headers(each: KeyNotification) -> dict[str, str] | None:
    headers = {}
    if each.id is not None:
        headers[ID_HEADER] = _CONTROLS.sub("\ufffd", each.id.decode(errors="replace"))
    if each.content_type is not None:
        headers["content-type"] = each.content_type
    if each.seconds_left is not None:
        headers[EXPIRES_IN] = f"{max(each.seconds_left, 0.001):.3f}"
    if each.redelivered:
        headers["redelivered"] = "true"
    return headers or None


def _size_of(headers: dict[str, str] | None) -> int:
    if not headers:
        return 0
    lines = sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items())
    return len(b"NATS/1.0\r\n\r\n") + lines
