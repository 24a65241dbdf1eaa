"""One request of HTTP on its way, as a call of the service."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tagmatch.broker.access import FIRST_S, UNREAD_S, Call, Outgoing, token_in
from tagmatch.broker.http.bodies import JSON, PROBLEM, Answer, Headers, RefusedError
from tagmatch.broker.http.streams import Answers, Form
from tagmatch.broker.wire import GoneError, write_json

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.broker.http.app import App

Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]


class HttpCall(Call):
    """A request of HTTP: its headers and its body, and the answer that goes back."""

    def __init__(self, app: App, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        host, port = scope["client"] or ("", 0)
        super().__init__(f"{host}:{port}", token_in(self.headers.get(b"authorization", b"").decode("latin-1")))
        self.app, self.scope, self._receive, self._send = app, scope, receive, send
        self.body: bytes | None = None  # The whole body, if it was read before it is taken
        self.path_key = ""  # The part of the path that is `{key}`
        self.until: float | None = None  # When it ends, if the client neither sends nor reads
        self.has_begun = False  # Whether an answer goes to the client
        self.form: Form = "json"  # Of answers that are rows
        self.answers: Answers | None = None
        self.encoder: Outgoing | None = None  # What makes answers, if none of `form` does

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

    @property
    def has_timeout(self) -> bool:
        """Whether its client gives it a time."""
        return b"request-timeout" in self.headers

    def check_origin(self) -> None:
        """Refuse pages of other sites if the service asks for no token: browsers let them send."""
        if (origin := self.headers.get(b"origin")) is None or self.service.config.users:
            return
        if origin.partition(b"://")[2] != self.headers.get(b"host"):
            site = origin[:60].decode("latin-1")
            raise RefusedError(403, f"a page of {site!r} may not ask a service without tokens; give it [[users]]")

    def watch(self) -> None:
        """See from now on, when all of the body has come, whether the client goes."""

        async def wait() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self.ended.set()

        def begin() -> None:
            self._watching = self.app.loop.create_task(wait())

        self.app.loop.call_soon_threadsafe(begin)

    def result(self, found: Mapping[str, Any]) -> bytes:
        """An object as the only answer."""
        return write_json(found)

    async def some(self) -> tuple[bytes, bool]:
        """The next part of the body, and whether more comes; GoneError if the client goes."""
        if self.body is not None:
            body, self.body = self.body, None
            return body, False
        self.until = time.monotonic() + FIRST_S
        message = await self._receive()
        self.until = None
        if message["type"] != "http.request":
            self.ended.set()
            raise GoneError
        return message["body"], message["more_body"]

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
        """Send a part of an answer, the first one with its headers."""
        self.until = time.monotonic() + UNREAD_S
        if headers:
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": has_more})
        self.until = None

    def abort(self) -> None:
        """End it and its connection, as the client neither sends nor reads, or may no longer do so."""
        self.until = None
        self.ended.set()
        self.scope["state"]["transport"].abort()

    async def send(self, answer: Answer) -> None:
        """Send a whole answer; a client that does not read it is gone."""
        body = answer.body + b"\n" if answer.kind in (JSON, PROBLEM) else answer.body  # for terminals
        headers: Headers = [(b"content-type", answer.kind), (b"content-length", b"%d" % len(body)), *answer.headers]
        self.has_begun = True
        body = b"" if self.scope["method"] == "HEAD" or answer.status == 304 else body
        if self.scope["state"]["whole"](answer.status, headers, body):
            return
        self.until = time.monotonic() + UNREAD_S
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
        self.until = None
