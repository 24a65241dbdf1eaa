"""A connection: its requests, which are answered one after the other, and the bytes of their answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from tagmatch.broker.access import ENDS, FIRST_S, UNREAD_S
from tagmatch.broker.http.bodies import PROBLEM, RefusedError, problem_of
from tagmatch.broker.http.call import HttpCall, Request, head_of
from tagmatch.broker.http.sockets import SocketCall
from tagmatch.broker.observe import LOG
from tagmatch.model.errors import TagMatchError, UnavailableError

if TYPE_CHECKING:
    from tagmatch.broker.http.app import App

#: Seconds for which a client may send bytes after the last answer
LINGER_S = 2.0
# Seconds that a connection may be without requests
_IDLE_S = 75.0
# Bytes of a body that is read before its request is looked at, of parts that wait to be read, and of all headers
_BRIEF, _MOST_UNREAD, _MOST_HEAD = 16_384, 65_536, 65_536
# What a request that waits for the answers to others takes besides its body, about
_EACH = 1_024


class Connection(asyncio.Protocol):
    """What a client has open; one beyond those that there may be is closed, or one that is silent where more is due."""

    def __init__(self, app: App, most: int) -> None:
        self.app, self._open, self._most = app, app.connections, most
        self._socket: SocketCall | None = None  # What it has become, if it is no HTTP any more
        self.peer = ""
        self.until: float | None = None  # When it is cut, unless the client sends the rest
        self._call: HttpCall | None = None  # The one that is answered
        self._after: deque[HttpCall] = deque()  # Those that came before its end
        self._coming: HttpCall | None = None  # The one whose body comes
        self._url, self._headers, self._head_bytes = b"", dict[bytes, bytes](), 0
        self._task: asyncio.Task[None] | None = None
        self.may_write: asyncio.Future[None] | None = None  # Ends when the client has read enough
        self.is_read = True  # Whether the transport reads
        self._has_eof, self._refusal = False, b""

    # -- of the transport ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As of any protocol."""
        self.transport = transport
        if len(self._open) >= self._most:
            transport.abort()
            return
        self._open.add(self)
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.peer = f"{host}:{port}"
        self.until = time.monotonic() + FIRST_S

    def connection_lost(self, _: Exception | None) -> None:
        """As of any protocol."""
        self._open.discard(self)
        self._parser = self.until = None
        self.resume_writing()
        for call in (self._call, self._coming, *self._after):
            if call is not None:
                call.has_gone()
        self._after.clear()

    def data_received(self, data: bytes) -> None:
        """As of any protocol."""
        parser = self._parser
        if parser is None:
            if self._socket is not None:
                self._pause(self._socket.feed(data))
            return
        if self._coming is None:
            # A client that waits for an answer may send the next request slowly, or an empty line, as old ones do
            if self._call is None and (self.until is None or self._head_bytes == 0):
                self.until = time.monotonic() + FIRST_S
            self._head_bytes += len(data)
        try:
            parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            if self._parser is not None:
                self._upgrade(data[upgrade.args[0] :])
        except HttpParserCallbackError:
            LOG.exception("HTTP has failed", extra={"fields": {"peer": self.peer}})
            self.transport.abort()
        except HttpParserError:
            self._refuse(RefusedError(400, "this is no request of HTTP/1.1"))
        else:
            if self._coming is None and self._head_bytes > _MOST_HEAD:
                self._refuse(RefusedError(431, f"the headers must have at most {_MOST_HEAD:,} bytes"))

    def eof_received(self) -> bool:
        """As of any protocol: a client that has sent all of its requests may wait for the answers."""
        calls, self._has_eof = [*filter(None, (self._call, *self._after))], True
        if not calls or calls[-1].has_more or calls[0].form == "events" or self.transport.get_extra_info("sslcontext"):
            self.close()
            return False
        calls[-1].request = calls[-1].request._replace(stays=False)
        return True

    def pause_writing(self) -> None:
        """As of any protocol."""
        self.may_write = self.app.loop.create_future()

    def resume_writing(self) -> None:
        """As of any protocol."""
        may_write, self.may_write = self.may_write, None
        if may_write is not None and not may_write.done():
            may_write.set_result(None)

    # -- of the parser -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url, self._headers = b"", {}

    def on_url(self, url: bytes) -> None:
        """A part of its target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; one that stands twice has both values, as HTTP joins them. Those behind a body are dropped."""
        if self._coming is not None:
            return
        name, headers = name.lower(), self._headers
        headers[name] = headers[name] + b", " + value if name in headers else value

    def on_headers_complete(self) -> None:
        """All but the body has come: one that is not brief is looked at by now."""
        parser, headers = self._parser, self._headers
        if parser is None or parser.should_upgrade():  # after the last answer, or none of HTTP
            return
        is_new = parser.get_http_version() == "1.1"
        method, stays = parser.get_method().decode("latin-1"), is_new and parser.should_keep_alive()
        request = Request(method, self._url, headers, is_new, stays)
        call = self._coming = HttpCall(self.app, self, request)
        length = headers.get(b"content-length", b"0")
        if b"expect" in headers or b"transfer-encoding" in headers or len(length) > 5 or int(length) > _BRIEF:
            self._take(call)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        call = self._coming
        if call is not None:
            self._pause(call.feed(body))

    def on_message_complete(self) -> None:
        """All of the body has come."""
        call, self._coming, self._head_bytes = self._coming, None, 0
        if call is None:
            return
        call.feed_end()
        if call.is_taken:
            if call.is_whole:  # it was answered before
                self._may_be_idle()
        else:
            self._take(call)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _take(self, call: HttpCall) -> None:
        call.is_taken = True
        if self._call is None and not self._after:
            self._begin(call)
        else:
            self._after.append(call)
            self._pause(_EACH * len(self._after))

    def _begin(self, call: HttpCall) -> None:
        """Answer in the callback that has read the request, as that can mostly be done at once; else as a task."""
        self._call, self.until = call, None
        context, answering = copy_context(), self.app.answer(call)
        try:
            awaited = context.run(answering.send, None)
        except StopIteration:
            self._end(call)
            return
        self._task = self.app.loop.create_task(self._rest(call, answering, awaited), context=context)
        self.app.tasks.add(self._task)
        self._task.add_done_callback(self.app.tasks.discard)

    async def _rest(self, call: HttpCall, answering: Coroutine[Any, Any, None], awaited: Any) -> None:
        try:
            await _Awaited(answering, awaited)
        finally:
            if self._coming is call:
                call.has_gone()  # so that no thread waits for more of a body that is dropped from here on
            self._end(call)

    def _end(self, call: HttpCall) -> None:
        """Go on after an answer; one that is not whole ends with the connection."""
        self._call = None
        if self.transport.is_closing():  # also as the client has gone
            return
        if not self.is_read:
            self.resume_reading()
        if self._refusal and (call.is_whole or not call.has_begun) and not self._after:
            self._end_refused()
        elif not call.is_whole or (not call.has_more and not call.request.stays):
            self.close()
        elif not call.request.stays or call.waits_for_go:
            self._linger()
        elif self._after:
            self.app.loop.call_soon(self._next)
        elif self._has_eof:
            self.close()
        else:
            self._may_be_idle()

    def _linger(self) -> None:
        """Close it soon, not at once: bytes that still come, which are dropped, would take the answer away."""
        self._parser = self._coming = None
        self._head_bytes = 0
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.until = time.monotonic() + LINGER_S

    def _next(self) -> None:
        if self._after and self._call is None:
            self._begin(self._after.popleft())

    def _may_be_idle(self) -> None:
        """Wait for the next request, or for the end of a body that is dropped."""
        if self._call is None:
            is_idle = self._coming is None and not self._head_bytes
            self.until = time.monotonic() + (_IDLE_S if is_idle else FIRST_S)

    def _pause(self, unread: int) -> None:
        """Read no more for now if many bytes wait to be taken."""
        if unread > _MOST_UNREAD and self.is_read:
            self.is_read = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on: a call has taken the bytes so far, which were the last to come, or few requests wait by now."""
        if not self.is_read and _EACH * len(self._after) <= _MOST_UNREAD:
            self.is_read = True
            self.transport.resume_reading()

    def end(self) -> None:
        """Close it, as the service ends; a client that waits for an answer, or still sends, is told so."""
        call, is_waiting = self._call, bool(self._call or self._after or self._head_bytes)
        self._after.clear()
        if is_waiting:
            self._refuse(UnavailableError(ENDS))
            if call is not None:
                call.has_gone()
        elif self._parser is not None:
            self.close()

    def close(self) -> None:
        """Close it when the client has read all bytes written, for which it has some time; no more are written."""
        self.transport.close()
        self._parser, self.until = None, time.monotonic() + UNREAD_S
        self.resume_writing()  # for those that wait to write

    def _refuse(self, error: TagMatchError) -> None:
        """Send an error for bytes that are no request, or no whole one, after the answers before it; then close."""
        if self._parser is None:  # the last answer has gone
            return
        answer = problem_of(error)
        head = head_of(answer.status, [(b"content-type", PROBLEM), *answer.headers], len(answer.body), stays=False)
        self._parser, self._refusal = None, head + answer.body
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.has_gone()
        if self._call is None and not self._after:
            self._end_refused()

    def _end_refused(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self._refusal)
            self._linger()

    def _upgrade(self, rest: bytes) -> None:
        """Go on as a WebSocket; a request to go on as something else, such as HTTP/2, is one of HTTP/1.1."""
        assert self._parser is not None
        method, headers = self._parser.get_method(), self._headers
        is_socket = headers.get(b"upgrade", b"").lower() == b"websocket"
        if method == b"CONNECT" or (is_socket and self._call is not None):
            self._refuse(RefusedError(405, "this is no proxy, and a WebSocket begins when all answers have come"))
            return
        if not is_socket:
            for name in (b"upgrade", b"connection"):
                headers.pop(name, None)
            lines = [b"%b %b HTTP/1.1" % (method, self._url), *(b"%b: %b" % each for each in headers.items())]
            self._parser = HttpRequestParser(self)
            self.data_received(b"\r\n".join([*lines, b"", rest]))
            return
        try:
            call = SocketCall(self.app, self, Request(method.decode("latin-1"), self._url, headers))
        except RefusedError as error:
            self._refuse(error)
            return
        self._parser, self._socket = None, call
        self._take(call)
        if rest:
            self.data_received(rest)


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
