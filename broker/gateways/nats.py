"""A gateway to a server of NATS: tags as headers, notifications by key.

The server does not acknowledge single messages. At least once, a notification counts as sent when the server has
given back a mark, a message of the gateway to itself, that was published after it over the same connection. (`flush` of
nats-py does not do: its ping goes out before what still waits to be written, it returns at once where the connection
has just ended, and an answer to it that comes too late ends the client's reading.) What comes in comes at most once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from tagmatch.broker.gateways.gateway import Gateway, Outgoing, Unsent, as_level
from tagmatch.broker.gateways.incoming import Incoming
from tagmatch.broker.gateways.options import NatsOptions
from tagmatch.broker.hub import Hub
from tagmatch.broker.sessions import Sessions
from tagmatch.model.errors import TagMatchError

try:
    import nats
    from nats.errors import BadSubjectError, MaxPayloadError
    from nats.errors import Error as NatsError
except ImportError:
    raise TagMatchError("the NATS gateway needs nats-py; install it with: pip install 'tagmatch[nats]'") from None

_LOG = logging.getLogger("tagmatch.gateways")
#: What a subject cannot have within a token
_SEPARATORS = ".*> \t\r\n\0"
#: Headers: of a message, and of a notification
_ID, _EXPIRES_IN = "id", "expires-in"
#: As with MQTT, whose intervals have 32 bits
_LONGEST_S = 2.0**32


class NatsGateway(Gateway):
    """A gateway to NATS; see `Gateway`.

    Examples
    --------
    >>> gateway = NatsGateway(tm, hub, sessions, NatsOptions(messages="in.>", notifications="out"))  # doctest: +SKIP
    >>> gateway.start()  # doctest: +SKIP
    """

    options: NatsOptions

    def __init__(self, index: Any, hub: Hub, sessions: Sessions, options: NatsOptions) -> None:
        super().__init__(index, hub, sessions, options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tagmatch-nats", daemon=True)
        self._client: Any = None
        self._lost = 0  # connections
        self._inbox_of_marks = ""
        self._marks: dict[bytes, asyncio.Future[None]] = {}
        self._numbers = itertools.count()
        self._subscriptions: list[Any] = []
        self._connecting: Future[None] | None = None

    # -- the connection ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Have the loop run this, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _start(self) -> None:
        self._thread.start()
        self._connecting = asyncio.run_coroutine_threadsafe(self._connect(), self._loop)

    async def _connect(self) -> None:
        options, delay = self.options, self.options.retry_first
        security: dict[str, Any] = {}
        if options.username is not None:
            security |= {"user": options.username, "password": options.password}
        if options.tls:
            security["tls"] = ssl.create_default_context(cafile=options.tls_ca)
        while True:
            try:
                client = await nats.connect(
                    f"nats://{options.host}:{options.port}",
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=options.retry_first,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_reconnected,
                    allow_reconnect=True,
                    connect_timeout=options.flush_timeout,
                    ping_interval=30,
                    **security,
                )
                break
            except (TimeoutError, OSError, NatsError) as error:
                _LOG.warning("NATS: no connection yet: %s", error)
                await asyncio.sleep(delay)
                delay = min(2 * delay, options.retry_most)
        self._client = client
        self._inbox_of_marks = client.new_inbox()
        await client.subscribe(self._inbox_of_marks, cb=self._on_mark)
        for subject, act in ((options.messages, self._on_message), (options.control, self._on_request)):
            if subject:
                self._subscriptions.append(await client.subscribe(subject, options.queue, cb=act))
        try:
            await self._server_has_all(0)
        except Unsent as error:
            _LOG.warning("NATS: subscribing: %s", error)
        if not self._lost:  # else `_on_reconnected` says so
            self._is_connected(True)

    async def _on_error(self, error: Exception) -> None:
        _LOG.warning("NATS: %s", error)

    async def _on_disconnected(self) -> None:
        self._lost += 1
        self._is_connected(False)
        for mark in self._marks.values():
            if not mark.done():
                mark.set_exception(Unsent("the connection was lost"))

    async def _on_reconnected(self) -> None:
        self._is_connected(True)

    def _end_receiving(self) -> None:
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
        if self._client is not None and self._connected.is_set():
            self._do(self._drain_subscriptions())

    async def _drain_subscriptions(self) -> None:
        for subscription in self._subscriptions:
            with contextlib.suppress(NatsError, asyncio.TimeoutError):
                await asyncio.wait_for(subscription.drain(), self.options.flush_timeout)

    def _end(self) -> None:
        if not self._thread.is_alive():
            return
        if self._client is not None:
            self._do(self._end_client())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_client(self) -> None:
        if self._client.is_connected:
            with contextlib.suppress(Unsent):
                await self._server_has_all(self._lost)
        with contextlib.suppress(NatsError, OSError):
            await self._client.close()

    # -- messages ----------------------------------------------------------------------------------------------------

    async def _on_message(self, message: Any) -> None:
        headers = message.headers or {}
        expires = None
        if (text := headers.get(_EXPIRES_IN)) is not None:
            try:
                seconds = min(max(float(text), 0.0), _LONGEST_S)
                expires = self._sessions.now() + int(seconds * 1e6)
            except ValueError:
                self.refuse(f"header {_EXPIRES_IN!r} must be seconds, not {text[:60]!r}")
                return
        id_ = headers.get(_ID)
        came = Incoming(list(headers.items()), message.data, None if id_ is None else id_.encode(), expires)
        self.receive(came, may_drop=True)

    async def _on_request(self, message: Any) -> None:
        # In a thread of its own, as it may write to the disk
        answer = await self._loop.run_in_executor(None, self.requests.answer, message.data)
        if message.reply:
            with contextlib.suppress(NatsError):
                await message.respond(answer)

    # -- notifications -----------------------------------------------------------------------------------------------

    def _send(self, outgoing: Sequence[Outgoing]) -> None:
        self._do(self._send_and_flush(outgoing))

    async def _send_and_flush(self, outgoing: Sequence[Outgoing]) -> None:
        client, lost = self._client, self._lost  # before anything is published, for which this may have to wait
        if not (self._connected.is_set() and client.is_connected):
            raise Unsent("there is no connection")
        for each in outgoing:
            subject = f"{self.options.notifications}.{as_level(each.key, _SEPARATORS)}"
            try:
                await client.publish(subject, each.payload, headers=_headers(each))
            except (MaxPayloadError, BadSubjectError) as error:
                self._cannot_send(error)
            except (TimeoutError, NatsError, OSError) as error:
                raise Unsent(str(error)) from None
        await self._server_has_all(lost)

    async def _server_has_all(self, lost: int) -> None:
        """Wait until the server has what was published since so many connections were lost, over one connection.

        Raises
        ------
        Unsent
            It is not known that it has.
        """
        mark = asyncio.get_running_loop().create_future()
        number = b"%d" % next(self._numbers)
        self._marks[number] = mark
        try:
            await self._client.publish(self._inbox_of_marks, number)
            await asyncio.wait_for(mark, self.options.flush_timeout)
        except (TimeoutError, NatsError, OSError) as error:
            why = str(error) or (
                f"no message to {self._inbox_of_marks} came back within {self.options.flush_timeout} s; "
                "the gateway's user must be allowed to publish and to subscribe to _INBOX.>"
            )
            raise Unsent(why) from None
        finally:
            del self._marks[number]
        # What waits is published again over a new connection, the mark, too; what went to the old one is not
        if self._lost != lost:
            raise Unsent("the connection was lost")

    async def _on_mark(self, message: Any) -> None:
        mark = self._marks.get(message.data)
        if mark is not None and not mark.done():
            mark.set_result(None)


def _headers(each: Outgoing) -> dict[str, str] | None:
    headers = {}
    if each.id is not None:
        headers[_ID] = each.id.decode(errors="replace")
    if each.seconds_left is not None:
        headers[_EXPIRES_IN] = f"{max(each.seconds_left, 0.001):.3f}"
    if each.redelivered:
        headers["redelivered"] = "true"
    return headers or None
