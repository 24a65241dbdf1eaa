"""Calls of clients over gRPC: how they come and end."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from tagmatch.broker.access import FIRST_S, LOOK_S, UNREAD_S, Call, token_in
from tagmatch.broker.config import ServerOptions, read_file
from tagmatch.broker.wire import GONE_S, KEEPALIVE_S, GoneError, OutgoingStream, result, status_of, write_json
from tagmatch.model.errors import TagMatchError

# What it logs is for its developers; read once, when it is imported
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
try:
    import grpc
except ImportError:
    raise TagMatchError("the service needs grpcio; install it with: pip install 'tagmatch[serve]'") from None

#: Seconds until a connection must have begun as gRPC wants it, and for which it may be without calls
HANDSHAKE_S, IDLE_S = 10.0, 300.0

# Of a message, besides its Arrow data: the descriptor or ticket, and headers of columns
_BESIDE = 2 << 20
_IDENTITY = 1


class FlightCall(Call):
    """A call of gRPC: what the client sends, and how it is ended."""

    def __init__(self, context: Any, messages: Iterator[bytes], threads: ThreadPoolExecutor) -> None:
        given = str(dict(context.invocation_metadata()).get("authorization", ""))
        super().__init__(context.peer(), token_in(given))
        self._context, self._messages, self._threads = context, messages, threads
        self.until = time.monotonic() + FIRST_S
        if not context.add_callback(self.ended.set):
            self.ended.set()

    def __iter__(self) -> Iterator[bytes]:
        """All messages that come; GoneError if the client goes."""
        try:
            for message in self._messages:
                self.until = None
                yield message
        except grpc.RpcError:
            raise GoneError from None

    def only(self) -> bytes:
        """The one message of a call that has one; GoneError if the client goes."""
        return next(iter(self), b"")

    def begin(self, act: Callable[[], None]) -> None:
        """Call `act` in another thread."""
        self._threads.submit(act)

    def outgoing(self, schema: pa.Schema) -> OutgoingStream:
        """What makes messages of Flight of batches with this schema."""
        return OutgoingStream(schema)

    def result(self, found: Mapping[str, Any]) -> bytes:
        """An object as the result of an action, or of `DoPut`."""
        return result(write_json(found))

    def note(self, text: str) -> bytes:
        """The note, as metadata."""
        return write_json({"note": text})

    def end(self, error: BaseException) -> None:
        """End the call with an error at once, also while something is being sent."""
        code, line, _ = status_of(error)
        # `ServicerContext.cancel` does the same, but cannot say why; pyarrow takes its status for Ctrl-C
        self._context._rpc_event.call.cancel(grpc.StatusCode[code].value[0], line)


#: What answers a kind of call: gives the messages that are sent, and raises what it ends with
Method = Callable[[FlightCall], Generator[bytes]]


class Transport(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server of gRPC; `ended` is told of calls that it ends itself."""

    def __init__(
        self,
        server: ServerOptions,
        address: str,
        methods: Mapping[str, Method],
        calls: int,
        ended: Callable[[FlightCall, TagMatchError], None],
    ) -> None:
        self._threads, self._ended = ThreadPoolExecutor(2 * calls, "tagmatch-call"), ended
        self._methods = {
            path: grpc.stream_stream_rpc_method_handler(self._answering(method)) for path, method in methods.items()
        }
        self._calls: set[FlightCall] = set()
        self._lock, self._stopped = threading.Lock(), threading.Event()
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        connections = 4 * server.max_connections  # most of them without a call
        if files != resource.RLIM_INFINITY:
            connections = max(1, min(connections, files // 2))  # the index needs files, too
        options = {
            "grpc.max_receive_message_length": server.max_message_bytes + _BESIDE,
            "grpc.max_send_message_length": -1,
            "grpc.max_concurrent_streams": 2 * calls,
            "grpc.max_allowed_incoming_connections": connections,
            "grpc.so_reuseport": 0,
            # a few bytes could become as many as one likes
            "grpc.compression_enabled_algorithms_bitset": _IDENTITY,
            "grpc.keepalive_time_ms": int(KEEPALIVE_S * 1000),
            "grpc.keepalive_timeout_ms": int(GONE_S * 1000),
            "grpc.http2.ping_timeout_ms": int(GONE_S * 1000),
            "grpc.keepalive_permit_without_calls": 1,
            "grpc.http2.max_pings_without_data": 0,
            "grpc.http2.min_ping_interval_without_data_ms": int(KEEPALIVE_S * 500),  # clients ask, too
            "grpc.server_handshake_timeout_ms": int(HANDSHAKE_S * 1000),
            "grpc.max_connection_idle_ms": int(IDLE_S * 1000),
        }
        self._server = grpc.server(self._threads, [self], options=list(options.items()))
        try:
            self.port = self._listen(server, address)
        except RuntimeError:
            raise TagMatchError(f"{address}: cannot listen: {_why_not(server)}") from None
        self._server.start()
        threading.Thread(target=self._look_after, name="tagmatch-calls", daemon=True).start()

    def _listen(self, server: ServerOptions, address: str) -> int:
        if server.tls_cert is None:
            return int(self._server.add_insecure_port(address))
        files = {name: getattr(server, name) for name in ("tls_key", "tls_cert", "client_ca")}
        key, cert, root = (None if path is None else read_file(name, path) for name, path in files.items())
        credentials = grpc.ssl_server_credentials([(key, cert)], root, require_client_auth=root is not None)
        return int(self._server.add_secure_port(address, credentials))

    def service(self, details: Any) -> Any:
        """What answers a call, by its path; gRPC calls this."""
        return self._methods.get(details.method)

    def _answering(self, method: Method) -> Callable[[Iterator[bytes], Any], Iterator[bytes]]:
        def answer(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
            call = FlightCall(context, messages, self._threads)
            with self._lock:
                self._calls.add(call)
            try:
                with contextlib.closing(method(call)) as answers:
                    for message in answers:
                        call.until = time.monotonic() + UNREAD_S
                        yield message
                        call.until = None
            except GoneError:
                pass
            except Exception as error:
                code, details, headers = status_of(error)
                context.set_code(grpc.StatusCode[code])
                context.set_details(details)
                context.set_trailing_metadata(headers)
            finally:
                with self._lock:
                    self._calls.discard(call)

        return answer

    def _look_after(self) -> None:
        """End calls that wait for a client in vain; the body of a thread."""
        while not self._stopped.wait(LOOK_S):
            now = time.monotonic()
            with self._lock:
                waiting = [call for call in self._calls if call.until is not None]
            for call in waiting:
                try:
                    call.look(now)
                except TagMatchError as error:
                    call.until = None
                    self._ended(call, error)
                    call.end(error)

    def stop(self) -> None:
        """End all calls, and listen no more; returns at once."""
        self._stopped.set()
        self._server.stop(0)


def _why_not(server: ServerOptions) -> str:
    try:
        for family, kind, protocol, _, where in socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as attempt:
                attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                attempt.bind(where)
    except OSError as error:
        return error.strerror or str(error)
    return "its certificates cannot be used"
