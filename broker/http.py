"""HTTP next to the service: `/metrics` for Prometheus, `/livez` and `/readyz` for its operator.

No token is needed here, so strangers get little: few connections at once, and each for one request and a few seconds.
Another connection ends the oldest one.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tagmatch.broker.config import MetricsOptions
from tagmatch.broker.logs import LOG
from tagmatch.model.errors import TagMatchError

#: Connections at once, seconds that each may take from its first byte to its last, and bytes of a request
MAX_CONNECTIONS, MAX_SECONDS, MAX_REQUEST = 32, 5.0, 16_384
_LOOK_S = 0.25


class HttpEndpoint:
    """A small server in threads of its own.

    Parameters
    ----------
    options : MetricsOptions
    text : callable
        Gives the metrics.
    readiness : callable
        Gives whether the service is ready, and what it says of that.

    Raises
    ------
    TagMatchError
        The port cannot be had.
    """

    def __init__(
        self, options: MetricsOptions, text: Callable[[], bytes], readiness: Callable[[], tuple[bool, bytes]]
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            def setup(self) -> None:
                super().setup()
                self.rfile = _Bounded(self.rfile, MAX_REQUEST)  # type: ignore[assignment]

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._send(200, text(), "text/plain; version=0.0.4; charset=utf-8")
                elif path == "/livez":
                    self._send(200, b"alive\n")
                elif path == "/readyz":
                    ready, words = readiness()
                    self._send(200 if ready else 503, words)
                else:
                    self._send(404, b"there is /metrics, /livez and /readyz\n")

            def _send(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing: these are asked for all the time."""

        try:
            self._server = _Server((options.host, options.port), Handler)
        except (OSError, OverflowError) as error:
            raise TagMatchError(f"{options.host}:{options.port}: cannot listen for metrics: {error}") from None
        self.url = f"http://{options.host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=[_LOOK_S], name="tagmatch-http", daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


class _Bounded:
    """A request as it is read: after `most` bytes it ends."""

    def __init__(self, file: Any, most: int) -> None:
        self._file, self._left = file, most

    def readline(self, most: int) -> bytes:
        line: bytes = self._file.readline(min(most, self._left))
        self._left -= len(line)
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Server(ThreadingHTTPServer):
    """Has few connections at once, and ends each in time. A thread that reads or writes finds it ended."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[socket.socket, float] = {}  # and until when, the oldest first
        self._guard = threading.Lock()
        super().__init__(*arguments)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            time.sleep(_LOOK_S)  # no descriptor is free: the one that waits is asked for again and again
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._open[request] = time.monotonic() + MAX_SECONDS
            while len(self._open) > MAX_CONNECTIONS:
                self._end(next(iter(self._open)))
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._guard:
            for request in [request for request, until in self._open.items() if until <= now]:
                self._end(request)

    def _end(self, request: socket.socket) -> None:
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        if not isinstance(sys.exception(), OSError):  # else a client has gone, or was ended
            LOG.exception("HTTP has failed", extra={"fields": {"peer": client_address[0]}})
