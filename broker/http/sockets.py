"""A WebSocket as a call: texts of JSON go both ways, one event or one request each."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tagmatch.broker.access import LOOK_S, token_in
from tagmatch.broker.http.bodies import Answer, Headers
from tagmatch.broker.http.call import HttpCall, Request
from tagmatch.broker.wire import read_json as read_command

if TYPE_CHECKING:
    from tagmatch.broker.http.app import App

Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]

#: The protocol that the server speaks, and what begins one that has a token, as browsers can send no other header
PROTOCOL, BEARER = "tagmatch", "bearer."


class SocketCall(HttpCall):
    """A WebSocket: its token is that of the header `authorization`, or a protocol `bearer.TOKEN`."""

    def __init__(self, app: App, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        target = scope["raw_path"] + b"?" + scope["query_string"]
        super().__init__(app, scope["state"]["connection"], Request("GET", target, dict(scope["headers"])))
        self._receive, self._send, self._names = receive, send, scope["subprotocols"]
        self._has_accepted, self._code, self.has_more = False, 1000, False
        if self.token is None:
            tokens = [each[len(BEARER) :] for each in self._names if each.startswith(BEARER)]
            self.token = token_in(f"Bearer {tokens[0]}") if tokens else None

    async def received(self) -> str | None:
        """The next text; `None` if the client has gone."""
        while (message := await self._receive())["type"] != "websocket.receive":
            if message["type"] == "websocket.disconnect":
                self.ended.set()
                return None
        text = message.get("text")
        return text if text is not None else bytes(message["bytes"]).decode(errors="replace")

    async def send_some(self, headers: Headers, data: bytes, *, has_more: bool) -> None:  # noqa: ARG002 - of HTTP
        """Send a text, the first one when the connection is accepted; at the end, close it."""
        if not self._has_accepted:
            self._has_accepted = True
            protocol = PROTOCOL if PROTOCOL in self._names else None
            await self._send({"type": "websocket.accept", "subprotocol": protocol})
        if data:
            await self._send({"type": "websocket.send", "text": data.decode()})
        if not has_more:
            await self._send({"type": "websocket.close", "code": self._code})

    def will_close(self, code: int) -> None:
        """Close it with this code."""
        self._code = code

    def say(self, data: bytes) -> None:
        """Send a text, from a thread that may wait; GoneError if the client does not read."""
        self.send_and_wait([], data, has_more=True)

    async def send(self, answer: Answer) -> None:
        """Refuse the connection."""
        headers = [(b"content-type", answer.kind), *answer.headers]
        await self._send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
        await self._send({"type": "websocket.http.response.body", "body": answer.body})


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
            yield read_command(text.encode(errors="replace"), "a request")

    def end(self) -> None:
        """Nothing that comes is read any more."""
        self._ended.set()


def frame(name: str, text: bytes, mark: str | None = None) -> bytes:
    """An event as a text."""
    own = b"" if mark is None else b'"id": %b, ' % json.dumps(mark).encode()
    return b'{"event": %b, %b"data": %b}' % (json.dumps(name).encode(), own, text)
