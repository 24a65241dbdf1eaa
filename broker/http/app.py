"""The service over HTTP: finds what a request asks for, and has it answered as calls of all ways in are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from tagmatch.broker.access import LOOK_S, RESERVED
from tagmatch.broker.answers import options_of
from tagmatch.broker.http.bodies import (
    Answer,
    RefusedError,
    problem_of,
    query_options,
    text_of_path,
    with_options,
)
from tagmatch.broker.http.call import HttpCall
from tagmatch.broker.http.preconditions import Repeats, digest_of, seconds_in
from tagmatch.broker.http.routes import CONSOLE, EVENTS, ROUTES, Route
from tagmatch.broker.http.sites import Sites
from tagmatch.broker.http.sockets import SocketCall
from tagmatch.broker.http.streams import Sender, codec_of, form_of, form_wanted, rows_in, unpacked
from tagmatch.broker.wire import MAX_JSON, GoneError, read_json, write_json
from tagmatch.model.errors import DeadlineMissed, TagMatchError

if TYPE_CHECKING:
    from tagmatch.broker.http.connection import Connection
    from tagmatch.broker.service import Service


#: Headers that ask for more than the answer
_WISHES = frozenset((b"idempotency-key", b"request-timeout", b"content-encoding"))


class App:
    """What answers each request."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self.service, self.loop = service, loop
        self._calls: set[HttpCall] = set()
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._repeats, self._sites = Repeats(), Sites(service.config)
        server = service.config.server
        self.threads = ThreadPoolExecutor(2 * server.max_calls + 3 * RESERVED, "tagmatch-http-call")
        loop.set_default_executor(self.threads)  # which methods of the index take that are awaited

    async def look_after(self) -> None:
        """End calls that wait for a client in vain; a task for as long as the service is there."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            for each in [each for each in self.connections if each.until is not None and each.until < now]:
                each.transport.abort()
            for call in [each for each in self._calls if each.until is not None]:
                try:
                    call.look(now)
                except TagMatchError as error:
                    self.service.has_ended(call, error)
                    call.abort()

    async def answer(self, call: HttpCall) -> None:
        """Answer a call; an error is a problem that its status and its kind tell."""
        self._calls.add(call)
        try:
            try:
                self._sites.tell(call)
                answer = await self._answered(call) or Answer(b"")
            except GoneError:
                return
            except Exception as error:
                answer = problem_of(error)
            if not call.has_begun:  # the connection is cut if the answer is not whole
                if call.connection.may_write is not None:
                    await call.has_room()
                call.send(answer)
        except (GoneError, asyncio.CancelledError):
            return
        finally:
            self._calls.discard(call)

    async def _answered(self, call: HttpCall) -> Answer | None:
        found, route = _looked_up(call)
        name = "unknown" if route is None else route.name
        is_action = route is not None and (route.is_action or route.role is None)
        with self.service.taken(call, name, is_action=is_action, while_draining=is_action) as taken:
            if route is None:
                if call.method == "OPTIONS" and found:
                    return self._sites.permission(call, [*found])
                raise _unknown(call, found)
            if isinstance(call, SocketCall) and route.answers != EVENTS:
                raise RefusedError(404, "a WebSocket is for /notifications")
            if route.role is not None:
                self._sites.check(call)
            taken.as_(route.role, name)
            if route.role is not None and route.rows is None:
                self.service.limits.admit(call.user.name, 1)
            body = call.brief() if route.rows is None else b""
            if body is not None and call.headers.keys().isdisjoint(_WISHES):
                return await self._found(call, route, body)
            return await self._performed(call, route)

    async def _performed(self, call: HttpCall, route: Route) -> Answer | None:
        """The answer; of a change with a key, the one that it had before."""
        key, body = call.header("idempotency-key") if route.role == "write" else "", b""
        seconds = seconds_in(call.header("request-timeout"))
        if route.rows is None:
            body = await call.whole(MAX_JSON)
            if b"content-encoding" in call.headers and (codec := codec_of(call)):
                body = unpacked(body, codec, MAX_JSON)
        elif key:  # the request is compared as a whole, and read after that
            body = call.body = await call.whole(self.service.config.server.max_message_bytes)
        if not key:
            return await self._in_time(call, partial(self._found, call, route, body), seconds)
        user, asked = call.user.name, digest_of(call.method.encode(), call.request.target, body)
        if (answer := self._repeats.begin(user, key, asked)) is not None:
            return answer
        work = asyncio.ensure_future(self._found(call, route, body))
        work.add_done_callback(partial(self._keep, user, key, asked))
        # It goes on without a client that has given up, and might ask again
        return await self._in_time(call, partial(asyncio.shield, work), seconds)

    def _keep(self, user: str, key: str, asked: bytes, work: asyncio.Future[Answer | None]) -> None:
        """Keep the answer of a change by its key; one that has failed may be tried again."""
        found = None if work.cancelled() or work.exception() is not None else work.result()
        if found is None:
            self._repeats.forget(user, key)
        else:
            self._repeats.end(user, key, asked, found)

    async def _in_time(
        self, call: HttpCall, work: Callable[[], Awaitable[Answer | None]], seconds: float | None
    ) -> Answer | None:
        """The answer, in the time that the client gives."""
        if seconds is None:
            return await work()
        until = time.monotonic() + seconds
        await asyncio.sleep(0)  # from here on it is a task, as a timeout wants it
        try:
            async with asyncio.timeout(seconds):
                found = await work()
                if time.monotonic() > until and not call.has_begun:  # it has not let the loop look at the time
                    raise TimeoutError
                return found
        except TimeoutError:
            call.ended.set()
            late = f"there is no answer within {seconds:g} s; what the call changes may still take effect"
            raise DeadlineMissed(late) from None

    async def _found(self, call: HttpCall, route: Route, body: bytes) -> Answer | None:
        given: dict[str, Any] = query_options(route.perform, call.query, route.name) if call.query else {}
        if route.rows is not None:
            return await self.loop.run_in_executor(self.threads, self._stream, call, route, given)
        if body and route.has_body:
            said = read_json(body, "the body")
            given = with_options(said, given, route.name) if given else said
        if not route.takes_any:
            given = options_of(route.perform, given, route.name)
        if route.is_direct:
            found = await route.perform(call, **given)
        else:
            found = await self.loop.run_in_executor(self.threads, lambda: route.perform(call, **given))
        return found if isinstance(found, Answer) else Answer(write_json(found))

    def _stream(self, call: HttpCall, route: Route, given: dict[str, Any]) -> Answer | None:
        """Answer rows of the body, as they come, in a thread that may wait."""
        if route.rows is not None and route.rows != "own" and route.rows != "messages":
            rows = rows_in(call, route.rows, match_all=given.get("match_all") is True)
            return Answer(b"".join(route.perform(call, rows, **given)))
        if route.rows == "own":
            parts = route.perform(call, **given)
            if isinstance(parts, Answer):
                return parts
        else:
            call.form = form_wanted(call.header("accept"), form_of(call.header("content-type")))
            parts = route.perform(call, rows_in(call), **given)
        sender = Sender(call, call.form)
        try:
            for part in parts:
                sender.write(part)
            if call.answers is not None:
                sender.write(call.answers.end())
            sender.end()
        except GoneError:
            raise
        except Exception as error:
            if sender.has_begun:
                sender.fail(error)
            raise
        return None

    def close(self) -> None:
        """Take no more work."""
        self.threads.shutdown(wait=False, cancel_futures=True)


def _looked_up(call: HttpCall) -> tuple[Iterable[str], Route | None]:
    """The methods of a request's path, and the route that it asks for."""
    path = text_of_path(call.path)
    methods = ROUTES.get(path) or CONSOLE.get(path)
    if methods is None or path.endswith("/{key}"):  # a key may be called so, too
        base, _, last = call.path.rpartition(b"/")
        methods = ROUTES.get(f"{base.decode('latin-1')}/{{key}}", {}) if last else {}
        call.path_key = text_of_path(last) if methods else ""
    return methods, methods.get("GET" if call.method == "HEAD" else call.method)


def _unknown(call: HttpCall, methods: Iterable[str]) -> RefusedError:
    path = call.path.decode("latin-1")[:60]
    if allowed := ", ".join(methods):
        headers = [(b"allow", allowed.encode())]
        return RefusedError(405, f"{path} is for {allowed}, not {call.method[:20]}", headers)
    return RefusedError(404, f"there is no path {path!r}; there is {', '.join(ROUTES)}")
