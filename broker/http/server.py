"""The server of HTTP: its addresses, the connections, and their end; `App` answers their requests."""

from __future__ import annotations

import asyncio
import resource
import ssl
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import uvloop

from tagmatch.broker.http.app import App
from tagmatch.broker.http.connection import LINGER_S, Connection
from tagmatch.broker.wire import in_url
from tagmatch.model.errors import TagMatchError

if TYPE_CHECKING:
    from tagmatch.broker.service import Service

_BACKLOG = 512
#: Seconds within which a client has to encrypt, as it counts as a connection only then
HANDSHAKE_S = 10.0
# Seconds between looks whether all connections are closed
_CLOSED_S = 0.01


class HttpServer:
    """Listens from its construction on, with an event loop in its own thread."""

    def __init__(self, service: Service) -> None:
        server = service.config.server
        self._loop = uvloop.new_event_loop()
        self.app = App(service, self._loop)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 4 * server.max_connections
        if files != resource.RLIM_INFINITY:
            most = max(1, min(most, files // 4))  # gRPC and the index need files, too
        self.connection = partial(Connection, self.app, most)
        address = server.host, service.config.http_port
        context = _context(server.tls_cert, server.tls_key, server.client_ca)
        # Not in this thread, where a loop of the caller's may run
        self._thread = threading.Thread(target=self._loop.run_forever, name="tagmatch-http-calls", daemon=True)
        self._thread.start()

        async def listen() -> asyncio.AbstractServer:
            in_time = None if context is None else HANDSHAKE_S
            return await self._loop.create_server(
                self.connection, *address, ssl=context, backlog=_BACKLOG, ssl_handshake_timeout=in_time
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
        """End all calls, and listen no more; clients have some time to read the answers that were sent."""

        async def end() -> None:
            self._looking.cancel()
            self._server.close()
            connections, tasks = self.app.connections, [*self.app.tasks]
            for each in [*connections]:
                each.end()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            until = time.monotonic() + LINGER_S
            while connections and time.monotonic() < until:
                await asyncio.sleep(_CLOSED_S)
            for each in [*connections]:
                each.transport.abort()
            await asyncio.sleep(0)
            # Texts that threads wait for: none comes any more, which these are told
            if rest := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(rest, timeout=LINGER_S)

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
