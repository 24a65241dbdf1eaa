"""HTTP beside the service: `/metrics` for Prometheus, `/livez` and `/readyz` for whoever looks after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tagmatch.broker.config import MetricsOptions
from tagmatch.model.errors import TagMatchError


class HttpEndpoint:
    """A small server in threads of its own.

    Parameters
    ----------
    options : MetricsOptions
    text : callable
        Gives the metrics.
    is_ready : callable

    Raises
    ------
    TagMatchError
        The port cannot be had.
    """

    def __init__(self, options: MetricsOptions, text: Callable[[], bytes], is_ready: Callable[[], bool]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._send(200, text(), "text/plain; version=0.0.4; charset=utf-8")
                elif path == "/livez":
                    self._send(200, b"alive\n")
                elif path == "/readyz":
                    ready = is_ready()
                    self._send(200 if ready else 503, b"ready\n" if ready else b"not ready\n")
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
            self._server = ThreadingHTTPServer((options.host, options.port), Handler)
        except (OSError, OverflowError) as error:
            raise TagMatchError(f"{options.host}:{options.port}: cannot listen for metrics: {error}") from None
        self._server.daemon_threads = True
        self.url = f"http://{options.host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="tagmatch-http", daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
