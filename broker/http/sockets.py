"""A WebSocket as a call: texts of JSON go both ways, one event or one request each."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from websockets.datastructures import Headers as Fields
from websockets.exceptions import InvalidState
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.protocol import State
from websockets.server import ServerProtocol

from tagmatch.broker.access import LOOK_S, token_in
from tagmatch.broker.http.bodies import Headers, RefusedError
from tagmatch.broker.http.call import HttpCall, Request
from tagmatch.broker.wire import GoneError
from tagmatch.broker.wire import read_json as read_command

if TYPE_CHECKING:
    from tagmatch.broker.http.app import App
    from tagmatch.broker.http.connection import Connection

#: The protocol that the server speaks, and what begins one that has a token, as browsers can send no other header
PROTOCOL, BEARER = "tagmatch", "bearer."
#: What tells a client and proxies that a silent stream is alive, and seconds that a client may leave it unanswered
PULSE, _PONG_S = b": \n\n", 30.0
# What a message takes besides its bytes
_BESIDE = 64


class SocketCall(HttpCall):
    """A WebSocket: its token is that of the header `authorization`, or a protocol `bearer.TOKEN`."""

    def __init__(self, app: App, connection: Connection, request: Request) -> None:
        super().__init__(app, connection, request._replace(stays=False))
        names = [each.strip() for each in self.header("sec-websocket-protocol").split(",")]
        tokens = [each[len(BEARER) :] for each in names if each.startswith(BEARER)]
        if self.token is None and tokens:
            self.token = token_in(f"Bearer {tokens[0]}")
        self._frames = ServerProtocol(
            state=State.OPEN,
            extensions=[ServerPerMessageDeflateFactory()],
            subprotocols=[PROTOCOL],  # type: ignore[list-item]
            select_subprotocol=lambda _, given: PROTOCOL if PROTOCOL in given else None,  # type: ignore[arg-type, return-value]
            max_size=app.service.config.server.max_message_bytes,
        )
        fields = Fields([(name.decode("latin-1"), text.decode("latin-1")) for name, text in self.headers.items()])
        accepted = self._frames.accept(Handshake(request.target.decode("latin-1"), fields))
        if accepted.status_code != 101:
            raise RefusedError(400, f"no WebSocket can begin: {self._frames.handshake_exc}")
        del accepted.headers["Date"]
        self._accepted, self._code = accepted.serialize(), 1000
        self._early = b""  # Frames of a client that has not waited until it was accepted
        self._part = bytearray()  # Of a message that is not whole; a client may send any number of empty frames

    def feed(self, data: bytes) -> int:
        """Take bytes of frames; returns the number of bytes that wait."""
        if self._accepted:
            self._early += data
            return len(self._early)
        frames, is_full = self._frames, self.connection.may_write is not None
        frames.receive_data(data)
        if not self.is_whole:
            self.connection.until = None
        for frame in frames.events_received():
            assert isinstance(frame, Frame)  # as the handshake has been
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT) and not self.is_whole:
                self._part += frame.data
                if frame.fin:
                    self._came.append(bytes(self._part))
                    self._unread += len(self._part) + _BESIDE
                    self._part.clear()
                    self._wake()
        answer = b"".join(frames.data_to_send())
        has_ended = frames.close_rcvd is not None or (frames.close_expected() and not self.is_whole)
        # A client that does not read has no pongs, nor has one to which the last has been written
        if not self.is_whole and (has_ended or not is_full):
            self.connection.transport.write(answer)
        if has_ended:
            self.has_gone()
            self.connection.close()
        return 0 if self.is_whole else self._unread

    async def received(self) -> bytes | None:
        """The next text; `None` if the client has gone, and has said no more before."""
        while not self._came:
            if self.ended.is_set():
                return None
            self._awaited = self.app.loop.create_future()
            await self._awaited
        text = self._came.pop(0)
        self._unread -= len(text) + _BESIDE
        if not self._came:
            self.connection.resume_reading()
        return text

    async def send_some(self, headers: Headers, data: bytes, *, has_more: bool) -> None:  # noqa: ARG002 - of HTTP
        """Send a text, the first one when the connection is accepted; at the end, close it."""
        await self.has_room()
        begun, self._accepted = self._accepted, b""
        try:
            if data == PULSE:
                self._frames.send_ping(b"")
                if self.connection.is_read:  # else the pong may wait behind the client's texts
                    self.connection.until = self.connection.until or time.monotonic() + _PONG_S
            elif data:
                self._frames.send_text(data)
            if not has_more:
                self._frames.send_close(self._code)
        except InvalidState:
            raise GoneError from None
        self._write(b"".join([begun, *self._frames.data_to_send()]))
        self.is_whole = not has_more
        if self._early:
            early, self._early = self._early, b""
            if not self.feed(early):
                self.connection.resume_reading()

    def will_close(self, code: int) -> None:
        """Close it with this code."""
        self._code = code


class Said:
    """What a client says by a WebSocket: objects, one after the other, until it goes or the stream has ended."""

    schema = pa.schema([])

    def __init__(self, call: SocketCall) -> None:
        self._call, self._ended = call, threading.Event()

    def __iter__(self) -> Iterator[Any]:
        while True:
            asked = asyncio.run_coroutine_threadsafe(self._call.received(), self._call.app.loop)
            while True:
                try:
                    text = asked.result(LOOK_S)
                    break
                except TimeoutError:
                    if self._ended.is_set():
                        asked.cancel()
                        return
            if text is None:
                return
            yield read_command(text, "a request")

    def end(self) -> None:
        """Nothing that comes is read any more."""
        self._ended.set()


def frame(name: str, text: bytes, mark: str | None = None) -> bytes:
    """An event as a text."""
    own = b"" if mark is None else b'"id": %b, ' % json.dumps(mark).encode()
    return b'{"event": %b, %b"data": %b}' % (json.dumps(name).encode(), own, text)
