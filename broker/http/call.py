"""One request of HTTP on its way, as a call of the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from tagmatch.broker.access import FIRST_S, UNREAD_S, Call, Outgoing, token_in
from tagmatch.broker.http.bodies import JSON, NOTE, PROBLEM, Answer, Headers, RefusedError
from tagmatch.broker.http.streams import Answers, Form
from tagmatch.broker.wire import GoneError, write_json

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.broker.http.app import App
    from tagmatch.broker.http.connection import Connection


class Request(NamedTuple):
    """A client's request, except the body."""

    method: str
    target: bytes  # The path, and perhaps a query
    headers: Mapping[bytes, bytes]  # By their names in lower case
    is_new: bool = True  # Whether it is of HTTP/1.1, whose answers may come in parts
    stays: bool = True  # Whether the connection stays open after the answer


class HttpCall(Call):
    """A request of HTTP: its headers and its body, and the answer that goes back."""

    # What most calls do not change is of the class: a call takes no time for it
    body: bytes | None = None  # The whole body, if it was read before it is taken
    path_key = ""  # The part of the path that is `{key}`
    has_every_column = True
    has_begun = is_whole = False  # Whether an answer goes to the client, and all of it has gone
    form: Form = "json"  # Of answers that are rows
    answers: Answers | None = None
    encoder: Outgoing | None = None  # What makes answers, if none of `form` does
    more_headers: Headers = []  # noqa: RUF012 - of every answer to it; it is never changed
    # Of the connection
    is_taken = has_gone_on = False
    has_more, _unread = True, 0
    _awaited: asyncio.Future[None] | None = None

    def __init__(self, app: App, connection: Connection, request: Request) -> None:
        self.method, target, self.headers, _, _ = request
        path, _, self.query = target.partition(b"?")
        given = self.headers.get(b"authorization")
        super().__init__(connection.peer, None if given is None else token_in(given.decode("latin-1")))
        if path[:1] != b"/" and b"://" in path:  # as proxies have it
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        self.app, self.connection, self.request, self.path = app, connection, request, path
        self._came: list[bytes] = []

    def begin(self, act: Callable[[], None]) -> None:
        """Call `act` in another thread."""
        self.app.threads.submit(act)

    def outgoing(self, schema: pa.Schema) -> Outgoing:
        """What makes answers of batches with this schema."""
        if self.encoder is not None:
            return self.encoder
        self.answers = Answers(self.form, schema)
        return self.answers

    def header(self, name: str) -> str:
        """A header, empty if it is not there."""
        return self.headers.get(name.encode(), b"").decode("latin-1")

    def result(self, found: Mapping[str, Any]) -> bytes:
        """An object as the only answer."""
        return write_json(found)

    def note(self, text: str) -> bytes:
        """Nothing: the note is a header."""
        self.more_headers = [*self.more_headers, (NOTE, text.encode("ascii", "backslashreplace"))]
        return b""

    async def some(self) -> tuple[bytes, bool]:
        """The next part of the body, and whether more comes; GoneError if the client goes."""
        if self.body is not None:
            body, self.body = self.body, None
            return body, False
        while not self._came and self.has_more:
            if self.ended.is_set():  # also before it waits: nothing wakes it any more
                raise GoneError
            if self.waits_for_go:
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.has_gone_on = True
            self.until = time.monotonic() + FIRST_S
            self._awaited = self.app.loop.create_future()
            await self._awaited
            self.until = None
        part = b"".join(self._came)
        self._came.clear()
        self._unread = 0
        self.connection.resume_reading()
        return part, self.has_more

    @property
    def waits_for_go(self) -> bool:
        """Whether the client sends the body when it is asked for it."""
        has_asked = self.has_more and b"expect" in self.headers and self.headers[b"expect"].lower() == b"100-continue"
        return has_asked and not self.has_gone_on and self.request.is_new

    def feed(self, data: bytes) -> int:
        """Take a part of the body, which is dropped after the answer; returns the number of bytes that wait."""
        if self.is_whole:
            return 0
        self._came.append(data)
        self._unread += len(data)
        self._wake()
        return self._unread

    def feed_end(self) -> None:
        """Take note that all of the body has come."""
        self.has_more = False
        self._wake()

    def has_gone(self) -> None:
        """Take note that the client has gone."""
        self.ended.set()
        self._wake()

    def _wake(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def brief(self) -> bytes | None:
        """The whole body, if it is there in one part; else `None`."""
        came = self._came
        return None if self.has_more or len(came) > 1 else came[0] if came else b""

    async def whole(self, most: int) -> bytes:
        """The whole body, which has at most `most` bytes."""
        if (declared := self.headers.get(b"content-length", b"0")).isdigit() and int(declared) > most:
            raise RefusedError(413, f"the body must have at most {most:,} bytes, not {int(declared):,}")
        part, has_more = await self.some()
        if not has_more and len(part) <= most:
            return part
        parts, length = [part], len(part)
        while has_more and length <= most:
            part, has_more = await self.some()
            parts.append(part)
            length += len(part)
        if length > most:
            raise RefusedError(413, f"the body must have at most {most:,} bytes")
        return b"".join(parts)

    async def send_some(self, headers: Headers, data: bytes, *, has_more: bool) -> None:
        """Send a part of an answer, the first one with its headers; GoneError if the client has gone."""
        request, parts = self.request, list[bytes]()
        if headers:
            parts.append(self._head(200, headers, None))
        if not request.is_new:
            parts.append(data)
        elif data:
            parts += b"%x\r\n" % len(data), data, b"\r\n"
        if not has_more and request.is_new:
            parts.append(b"0\r\n\r\n")
        await self.has_room()
        self._write(b"".join(parts))
        self.is_whole = not has_more

    def send_and_wait(self, headers: Headers, data: bytes, *, has_more: bool) -> None:
        """The same, from a thread that may wait; GoneError also if the client does not read."""
        sent = asyncio.run_coroutine_threadsafe(self.send_some(headers, data, has_more=has_more), self.app.loop)
        try:
            sent.result(UNREAD_S)
        except TimeoutError:
            sent.cancel()
            self.ended.set()
            raise GoneError from None

    def _head(self, status: int, headers: Headers, length: int | None) -> bytes:
        """The head of the answer, which is the last of its connection while the service drains."""
        if self.app.service.is_draining:
            self.request = self.request._replace(stays=False)
        request, stays = self.request, self.request.stays and not self.waits_for_go
        return head_of(status, [*headers, *self.more_headers], length, stays=stays, is_new=request.is_new)

    async def has_room(self) -> None:
        """Wait until the client has read most of the bytes written."""
        if (room := self.connection.may_write) is not None:
            self.until = time.monotonic() + UNREAD_S
            await room

    def _write(self, data: bytes) -> None:
        transport, self.until = self.connection.transport, None  # also of a client whose answered stream is silent
        if transport.is_closing():
            self.has_gone()
            raise GoneError
        transport.write(data)

    def abort(self) -> None:
        """End it and its connection, as the client neither sends nor reads, or may no longer do so."""
        self.until = None
        self.has_gone()
        self.connection.transport.abort()

    def send(self, answer: Answer) -> None:
        """Send a whole answer, for which there is room; GoneError if the client has gone."""
        body, status, kind, headers = answer
        if kind is JSON or kind is PROBLEM:
            body += b"\n"  # for terminals
        head = self._head(status, [(b"content-type", kind), *headers], len(body))
        self.has_begun = True
        self._write(head if self.method == "HEAD" or status in (204, 304) else head + body)
        self.is_whole = True


_BEGIN = {each.value: b"HTTP/1.1 %d %b\r\n" % (each.value, each.phrase.encode()) for each in HTTPStatus}


def head_of(status: int, headers: Headers, length: int | None, *, stays: bool, is_new: bool = True) -> bytes:
    """The head of an answer with this number of bytes, or, without a length, of parts."""
    parts = [_BEGIN[status], *[b"%b: %b\r\n" % header for header in headers]]
    if length is not None:
        parts.append(b"content-length: %d\r\n" % length if status != 204 else b"")
    elif is_new:
        parts.append(b"transfer-encoding: chunked\r\n")
    parts.append(b"\r\n" if stays else b"connection: close\r\n\r\n")
    return b"".join(parts)
