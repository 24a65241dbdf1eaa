"""The server of HTTP: its addresses, the connections, and their end; `App` answers their requests."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import threading
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from tagmatch.broker.access import FIRST_S
from tagmatch.broker.http.app import App
from tagmatch.broker.wire import in_url
from tagmatch.model.errors import TagMatchError

try:
    import uvloop
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    from uvicorn.server import ServerState
except ImportError:
    raise TagMatchError(
        "HTTP needs uvicorn, httptools, uvloop and websockets; install them with: pip install 'tagmatch[serve]'"
    ) from None

if TYPE_CHECKING:
    from tagmatch.broker.service import Service

# Seconds for which a connection may be without requests
_IDLE_S = 75.0
_BACKLOG = 512
# Bytes of a body that is read before its request is looked at
_BRIEF = 16_384


class _Protocol(HttpToolsProtocol):
    """A connection: one beyond those that there may be is closed, and one that is silent where headers are due."""

    _due: asyncio.TimerHandle | None = None
    _is_awaited = True  # Whether more has to come in time: the headers, and of a brief request its body
    _is_brief = False  # Whether the request has a body of few bytes
    _held: tuple[RequestResponseCycle, Any] | None = None  # One that is not answered until it has come
    most: int

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.most:
            transport.abort()
            return
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_come()
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.parser is not None:  # which the end of the connection takes away
            super().data_received(data)
        if not self._is_awaited:
            self._have_come()
        elif self._due is None and not self.transport.is_closing():
            self._await_headers()

    def on_message_begin(self) -> None:
        self._is_awaited = True
        super().on_message_begin()
        self.scope["state"]["transport"] = self.transport

    def on_headers_complete(self) -> None:
        length = dict(self.headers).get(b"content-length", b"")
        self._is_brief = length.isdigit() and int(length) <= _BRIEF and not self.expect_100_continue
        self._is_awaited = self._is_brief
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_awaited = False
        super().on_message_complete()
        if (held := self._held) is not None:
            self._held = None
            self._at_once(*held)

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # also if answers wait that the client does not read

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begin with a request: with a brief one when all of it has come, as it can mostly be answered at once."""
        cycle.scope["state"]["whole"] = partial(_write_whole, cycle)
        if not cycle.more_body or not self._is_brief:
            super()._start_asgi_task(cycle, app)
        else:
            self._held = cycle, app

    def _at_once(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Answer in the callback that has read the request; what then still waits goes on as a task."""
        context, answering = copy_context(), cycle.run_asgi(app)
        try:
            awaited = context.run(answering.send, None)
        except StopIteration:
            return
        task = self.loop.create_task(_rest(answering, awaited), context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _await_headers(self) -> None:
        self._due = self.loop.call_later(FIRST_S, self.transport.abort)

    def _have_come(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class _Socket(WebSocketsSansIOProtocol):
    """A WebSocket, whose calls know its transport."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {"transport": transport}


class _Awaited:
    """Goes on with a coroutine that awaits something."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
        self._coroutine, self._awaited = coroutine, awaited

    def __await__(self) -> Generator[Any, Any, None]:
        step, awaited = self._coroutine.send, self._awaited
        while True:
            try:
                given, step = (yield awaited), self._coroutine.send
            except BaseException as error:
                given, step = error, self._coroutine.throw
            try:
                awaited = step(given)
            except StopIteration:
                return


async def _rest(coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _Awaited(coroutine, awaited)


def _write_whole(cycle: RequestResponseCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
    """Write a whole answer, if its client reads: what `send` would, by one call, and without a look at our headers."""
    if cycle.disconnected or cycle.flow.write_paused:
        return False
    parts = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in headers)]
    parts += [b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body]
    cycle.transport.write(b"".join(parts))
    cycle.response_started = cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


class HttpServer:
    """Listens from its construction on, with an event loop in its own thread."""

    def __init__(self, service: Service) -> None:
        server = service.config.server
        self._loop = uvloop.new_event_loop()
        self.app = App(service, self._loop)
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the service logs what its calls come to
        config = Config(
            self.app,
            http=_Protocol,
            ws=_Socket,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_IDLE_S,  # type: ignore[arg-type]
            ws_max_size=server.max_message_bytes,
        )
        config.load()
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        _Protocol.most = 4 * server.max_connections
        if files != resource.RLIM_INFINITY:
            _Protocol.most = max(1, min(_Protocol.most, files // 4))  # gRPC and the index need files, too
        self._state = ServerState()
        address = server.host, service.config.http_port
        context = _context(server.tls_cert, server.tls_key, server.client_ca)
        # Not in this thread, where a loop of the caller's may run
        self._thread = threading.Thread(target=self._loop.run_forever, name="tagmatch-http-calls", daemon=True)
        self._thread.start()

        async def listen() -> asyncio.AbstractServer:
            return await self._loop.create_server(
                lambda: _Protocol(config, self._state, {}, self._loop), *address, ssl=context, backlog=_BACKLOG
            )

        try:
            self._server = asyncio.run_coroutine_threadsafe(listen(), self._loop).result()
        except (OSError, OverflowError) as error:
            self._end_loop()
            where = f"{address[0]}:{address[1]}"
            reason = getattr(error, "strerror", None) or error
            raise TagMatchError(f"{where}: cannot listen for HTTP: {reason}; see [http] port") from None
        self.port = self._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"{'http' if context is None else 'https'}://{in_url(server.host)}:{self.port}"
        self._looking = asyncio.run_coroutine_threadsafe(self.app.look_after(), self._loop)

    def stop(self) -> None:
        """End all calls, and listen no more."""

        async def end() -> None:
            self._looking.cancel()
            self._server.close()
            for connection in [*self._state.connections]:
                connection.transport.close()
            tasks = [*self._state.tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self.app.close()
        self._loop.close()


def _context(cert: str | None, key: str | None, client_ca: str | None) -> ssl.SSLContext | None:
    """What encrypts, with the files that gRPC has, too."""
    if cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
