"""Notifications over HTTP: events of a session, by server or by WebSocket; and messages that are published.

Sessions are those of Flight: the same names, users, guarantees and limits. Each event has an id, the offset of its
notification and a mark of its session, by which a client resumes it: `Last-Event-ID`, or `after`.
"""

from __future__ import annotations

import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Literal, cast, get_args

import pyarrow as pa

from tagmatch.broker.access import LOOK_S, require
from tagmatch.broker.answers import ACTIONS, DRAINING, PUTS, Notifying
from tagmatch.broker.cloudevents import BATCH, STRUCTURED, Event, checked, event_in, is_binary, json_of, notification
from tagmatch.broker.http.bodies import Answer, RefusedError, key_in
from tagmatch.broker.http.call import HttpCall
from tagmatch.broker.http.sockets import PULSE, Said, SocketCall, frame
from tagmatch.broker.http.streams import reader_of, rows_in, whole_of
from tagmatch.broker.incoming import GatewayMessage, MessageRow, row_in, row_of_event, table_in
from tagmatch.broker.wire import GoneError, error_text, write_json
from tagmatch.files.json import read_json
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, TagMatchError
from tagmatch.model.names import near_match
from tagmatch.model.options import check_one_of

Form = Literal["json", "cloudevents"]
#: Seconds of silence after which a stream shows that it is alive, by a comment or a ping
PULSE_S = 15.0
# Codes with which a WebSocket is closed
_GOING_AWAY, _REFUSED = 1001, 1008


class _Silence:
    """What a client sends that only listens: nothing, until it goes or the stream has ended."""

    def __init__(self, call: HttpCall) -> None:
        self._call, self._ended = call, threading.Event()

    @property
    def schema(self) -> pa.Schema:
        """No columns."""
        return pa.schema([])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while not (self._call.ended.is_set() or self._ended.wait(LOOK_S)):
            pass
        return iter(())

    def end(self) -> None:
        """Nothing comes any more."""
        self._ended.set()


class EventStream(Notifying):
    """The notifications of a session as server-sent events, or as texts of a WebSocket."""

    def __init__(
        self,
        call: HttpCall,
        *,
        session: str = "",
        keys: list[Any] | None = None,
        every_key: bool = False,
        guarantee: str = "at_most_once",
        when_full: str | None = None,
        linger: float | None = None,
        after: str | None = None,
        form: str = "json",
    ) -> None:
        if call.method != "GET":
            raise RefusedError(405, "notifications are for GET", [(b"allow", b"GET")])
        check_one_of("form", form, get_args(Form))
        key_type = call.service.key_type
        wanted = None if keys is None else [key_in(str(key), key_type) for key in keys]
        self._socket = call if isinstance(call, SocketCall) else None
        self._said: Said | _Silence = _Silence(call) if self._socket is None else Said(self._socket)
        self._form, self._name = form, session
        super().__init__(
            call,
            self._said,
            session=session,
            keys=wanted,
            every_key=every_key,
            guarantee=guarantee,
            when_full=when_full,
            linger=linger,
        )
        last = call.header("last-event-id") or after
        try:
            self._is_resumed = bool(last) and self._connection.resume(str(last))
        except BaseException:
            self._connection.close()
            raise
        call.form, call.encoder = "events", self
        self._told_at = time.monotonic()

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from super().__iter__()
        except Exception as error:
            if self._socket is not None and self._has_ended:  # of a request of the client, which still listens
                yield self.told(error_text(error))
            raise
        finally:
            self._said.end()

    def _taken(self) -> Any:
        taken = super()._taken()
        if taken is None or len(taken) or time.monotonic() - self._told_at < PULSE_S:
            return taken
        return PULSE

    def _answer(self, some: Any) -> Iterator[bytes]:
        self._told_at = time.monotonic()
        return iter((PULSE,)) if some is PULSE else self.batch(some)

    # As `Outgoing`: events go to the client

    def begin(self) -> bytes:
        """What the session is, and whether it is the one that the client knew."""
        told = {"session": self._name, "resumed": self._is_resumed}
        return self._event("session", write_json(told))

    def batch(self, batch: pa.RecordBatch, metadata: bytes = b"") -> Iterator[bytes]:  # noqa: ARG002 - of Flight
        """Notifications, each with its id."""
        marks = [self._connection.mark_of(offset) for offset in batch["offset"].to_pylist()]
        if self._form == "json":
            texts = [write_json(_object(row)) for row in batch.to_pylist()]
        else:
            columns = zip(batch["payload"].to_pylist(), batch["keys"].to_pylist(), marks, strict=True)
            texts = [notification(payload, keys, mark, self._name) for payload, keys, mark in columns]
        events = [self._event("message", text, mark) for mark, text in zip(marks, texts, strict=True)]
        yield from [b"".join(events)] if self._socket is None else events

    def told(self, metadata: bytes) -> bytes:
        """An error; or that the service ends, and the stream with it: the client goes on elsewhere, or later."""
        is_end = metadata == DRAINING
        if self._socket is not None:
            self._socket.will_close(_GOING_AWAY if is_end else _REFUSED)
        if is_end:
            self._said.end()
            return self._event("draining", b"{}")
        return self._event("error", metadata)

    def _event(self, name: str, text: bytes, mark: str | None = None) -> bytes:
        if self._socket is not None:
            return frame(name, text, mark)
        kind = b"" if name == "message" else b"event: %b\n" % name.encode()
        own = b"" if mark is None else b"id: %b\n" % mark.encode()
        return b"%b%bdata: %b\n\n" % (kind, own, text)

    # What a client says by a WebSocket

    def _obey(self, batch: Any) -> None:
        """Take what a subscriber has, what it follows, and messages that it publishes."""
        said: dict[str, Any] = batch
        call, known = self._call, ("acknowledge", "follow", "unfollow", "publish")
        for name, given in said.items():
            if name == "acknowledge":
                self._connection.resume(str(given))
            elif name == "publish":
                self._publish(given)
            elif name not in known:
                raise InvalidValueError(f"a request has no field {name[:60]!r}{near_match(name[:60], [*known])}")
            elif not isinstance(given, list):
                raise InvalidTypeError(f"{name} must be a list of keys, not {type(given).__name__}")
            else:
                call.keep_to_rate(len(given))
                change = self._connection.follow if name == "follow" else self._connection.unfollow
                change(given)

    def _publish(self, given: Any) -> None:
        """Publish a message or a list of these; an error is one of these messages, and told."""
        call, socket = cast("HttpCall", self._call), self._socket
        assert socket is not None
        try:
            require(call.user, "write", "publish")
            found = _published(call, _messages_in(call, given), None)
        except TagMatchError as error:
            said = frame("refused", error_text(error))
        else:
            said = frame("published", write_json(found))
        try:
            socket.send_and_wait([], said, has_more=True)
        except GoneError:
            if not socket.ended.is_set():  # else the client has gone; all that it has said before is carried out
                raise


def _object(row: dict[str, Any]) -> dict[str, Any]:
    """A notification as JSON: bytes that are no UTF-8 are told as base64."""
    found: dict[str, Any] = {name: row[name] for name in ("offset", "redelivered", "keys")}
    for name in ("id", "payload"):
        if row[name] is not None:
            try:
                found[name] = row[name].decode()
            except UnicodeDecodeError:
                found[f"{name}_base64"] = b64encode(row[name]).decode()
    if row["expires"] is not None:
        found["expires"] = row["expires"].isoformat()
    return found


# -- what a subscriber says --------------------------------------------------------------------------------------------


def acknowledge(call: HttpCall, *, session: str = "", after: str = "") -> dict[str, Any]:
    """Let go of notifications up to the id of an event; `acknowledged` says whether the session still is that one."""
    return {"acknowledged": call.service.subscribers.sessions.acknowledge(session, call.user.name, after)}


def end_session(call: HttpCall) -> Any:
    """End a session with all that waits in it."""
    return ACTIONS["end_session"].perform(call, session=call.path_key)


# -- what a publisher sends --------------------------------------------------------------------------------------------

_FIELDS = ("tags", "attributes", "location", "id", "payload", "channel", "expires_in")
_LONGEST_S = 1e9


def publish(call: HttpCall, *, channel: str | None = None) -> Answer:
    """Match messages of the body and notify sessions: JSON, a list, JSON Lines, Arrow IPC, or CloudEvents."""
    kind = call.header("content-type").partition(";")[0].strip().lower()
    if kind == "application/vnd.apache.arrow.stream":
        _, put = PUTS["publish"]
        return Answer(b"".join(put(call, rows_in(call), channel=channel)))
    body = whole_of(reader_of(call), call.service.config.server.max_message_bytes)
    call.memory.take(len(body), waits=False)
    return Answer(write_json(_published(call, _rows_of(call, kind, body), channel)))


def _published(call: HttpCall, rows: list[MessageRow], channel: str | None) -> dict[str, int]:
    """Publish rows, and wait until they are matched."""
    call.service.limits.admit(call.user.name, len(rows))
    of_channel: dict[str | None, list[MessageRow]] = {}
    for row in rows:
        of_channel.setdefault(row.channel or channel, []).append(row)
    hub, steady = call.service.subscribers.hub, call.service.subscribers.sessions.steady()
    for name in of_channel:
        hub.checked_channel(name)  # before the first messages go
    waiting = [hub.publish(table_in(some, steady), channel=name) for name, some in of_channel.items()]
    done = [each.result() for each in waiting]
    return {"messages": sum(each.messages for each in done), "matched": sum(each.matched for each in done)}


def _rows_of(call: HttpCall, kind: str, body: bytes) -> list[MessageRow]:
    plane, headers = call.service.plane, _headers_of(call)
    if kind in (STRUCTURED, BATCH) or is_binary(name for name, _ in headers):
        events = _events_in(kind, headers, body)
        came = GatewayMessage((), b"")
        return [row_of_event(came, event, plane=plane) for event in events]
    if kind in ("application/x-ndjson", "application/jsonl"):
        given = [read_json(line, f"line {number}") for number, line in enumerate(body.splitlines(), 1) if line.strip()]
    elif kind in ("", "application/json", "application/x-www-form-urlencoded"):  # the last one is that of curl -d
        return _messages_in(call, read_json(body, "the body"))
    else:
        raise RefusedError(
            415,
            f"the body must be JSON, JSON Lines, Arrow IPC or CloudEvents, not {kind[:60]!r}: give its Content-Type",
        )
    return _messages_in(call, given)


def _messages_in(call: HttpCall, found: Any) -> list[MessageRow]:
    """A message, or a list of these, as rows."""
    given, steady = found if isinstance(found, list) else [found], call.service.subscribers.sessions.steady()
    return [_row_of(each, number, steady, plane=call.service.plane) for number, each in enumerate(given)]


def _headers_of(call: HttpCall) -> list[tuple[str, str]]:
    """Headers as properties of an event: those with the prefix `ce-`, and the type of the content."""
    found = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in call.headers.items()]
    return [(name, value) for name, value in found if name.startswith("ce-") or name == "content-type"]


def _events_in(kind: str, headers: list[tuple[str, str]], body: bytes) -> list[Event]:
    if kind == BATCH:
        found = read_json(body, "the body")
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise InvalidTypeError("a batch of events must be a list of JSON objects")
        return [checked(each) for each in found]
    return [event_in([] if kind == STRUCTURED else headers, body)]


def _row_of(found: Any, number: int, steady: int, *, plane: bool) -> MessageRow:
    """A message as an object; notifications carry its id and its payload."""
    what = f"message {number}"
    if not isinstance(found, dict):
        raise InvalidTypeError(f"{what} must be a JSON object, not {type(found).__name__}")
    for name in found:
        if name not in _FIELDS:
            raise InvalidValueError(f"{what} has no field {name[:60]!r}{near_match(name[:60], sorted(_FIELDS))}")
    channel, seconds, payload = found.get("channel"), found.get("expires_in"), found.get("payload")
    if channel is not None and not isinstance(channel, str):
        raise InvalidTypeError(f"channel of {what} must be a text")
    until = None
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _LONGEST_S:
            raise InvalidTypeError(f"expires_in of {what} must be seconds from 0 to {_LONGEST_S:g}")
        until = steady + int(seconds * 1e6)
    id_ = None if found.get("id") is None else _bytes_of(found["id"])
    came = GatewayMessage((), b"" if payload is None else _bytes_of(payload), id_, until)
    said = {name: found[name] for name in ("tags", "attributes", "location") if found.get(name) is not None}
    return row_in(came, came, said, plane=plane)._replace(channel=channel)


def _bytes_of(value: Any) -> bytes:
    """A text as it is, or JSON."""
    return value.encode(errors="replace") if isinstance(value, str) else json_of(value)
