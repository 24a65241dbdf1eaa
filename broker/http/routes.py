"""What the service answers over HTTP: paths and methods, the role that each needs, and what performs it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import pyarrow as pa

from tagmatch.broker.access import Incoming
from tagmatch.broker.answers import ACTIONS, PUTS, Matching, MatchingBest
from tagmatch.broker.config import Role
from tagmatch.broker.http.bodies import Answer, Headers, RefusedError, key_in
from tagmatch.broker.http.call import HttpCall
from tagmatch.broker.http.console import PAGES
from tagmatch.broker.http.notifications import EventStream, acknowledge, end_session, publish
from tagmatch.broker.http.openapi import document
from tagmatch.broker.http.preconditions import condition_of, is_known, tag_of
from tagmatch.broker.http.streams import ROW_FIELDS, Rows
from tagmatch.broker.incoming import committed
from tagmatch.broker.wire import area_of, of_one, record_shown, write_json
from tagmatch.files.rows import read_sets
from tagmatch.model.data_types import Schema, unknown_column
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NotStoredError, TagMatchError
from tagmatch.model.input.putting import reject_nothing
from tagmatch.model.options import Wanted
from tagmatch.model.where.areas import NOWHERE, Place
from tagmatch.pipeline.run.callers import Answered
from tagmatch.records import records_after

Body = Mapping[str, Any]


class Route(NamedTuple):
    """What answers a request: `perform(call, **options)`, with options of the URL and of the body, a JSON object."""

    name: str  # In metrics and logs, and by which users with a filter may call it
    role: Role | None  # The least that is needed; `None`: not even a token
    description: str
    perform: Callable[..., Any]  # Gives an object or an `Answer`
    has_body: bool = False  # Whether options come in the body, too
    is_action: bool = False  # Whether it is answered while the service drains, and administrators have room for it
    is_direct: bool = False  # Whether `perform` is a coroutine, which takes no time of the loop to speak of
    takes_any: bool = False  # Whether `perform` checks its options itself
    # What rows of the body are: `perform(call, incoming, **options)` gives the answers as they come
    rows: Rows | Literal["own"] | None = None  # `own`: `perform(call, **options)` reads itself
    answers: tuple[str, ...] = ()  # Types of content of its answers, if they are no JSON


async def _match(
    call: HttpCall,
    *,
    tags: list[Any] | None = None,
    attributes: dict[str, Any] | None = None,
    location: list[Any] | dict[str, Any] | None = None,
    within: dict[str, Any] | str | None = None,
    only: str | None = None,
    channel: str | None = None,
    unique: bool = False,
    columns: list[Any] | None = None,
    limit: int | None = None,
    order_by: str | None = None,
    score: str | None = None,
) -> Answer:
    """The keys of a message, the best ones, or objects with `key` and columns of data."""
    began, metrics = time.perf_counter(), call.service.metrics
    metrics.came(1)
    where, area = cast("Any", location), area_of(within, "within")
    found: Any
    if (columns, limit, order_by, score) == (None,) * 4:
        place = NOWHERE if where is None and area is None else Place(where, area)
        asked = call.index._of(only).awaited(tags or [], attributes, place, unique=unique, channel=channel)
        found = asked.keys if isinstance(asked, Answered) else await asked  # other tasks go on before the answer
        if unique:
            found = sorted(found)
    else:
        given: dict[str, Any] = {"limit": limit, "order_by": order_by, "score": score, "columns": columns}
        found = await call.index.amatch(
            tags or [], attributes, location=where, within=area, unique=unique, channel=channel, only=only, **given
        )
    metrics.answered(1, len(found))
    metrics.latency.observe(time.perf_counter() - began)
    if columns is None and call.service.key_type == "integer":
        return Answer(b'{"keys": %a}' % found)  # as write_json has it, in a third of the time
    return Answer(write_json({"keys": found}))


def _number(
    call: HttpCall,
    *,
    ask: str,
    tags: list[Any] | None = None,
    attributes: dict[str, Any] | None = None,
    location: list[Any] | dict[str, Any] | None = None,
    within: dict[str, Any] | str | None = None,
    only: str | None = None,
    unique: bool | None = None,
) -> Body:
    """How many keys a message has, or whether it has some."""
    method, more = getattr(call.index, f"match_{ask}"), {} if unique is None else {"unique": unique}
    return {ask: method(tags or [], attributes, location=location, within=area_of(within, "within"), only=only, **more)}


_count, _exists = partial(_number, ask="count"), partial(_number, ask="exists", unique=None)


def _match_many(
    call: HttpCall,
    incoming: Incoming,
    *,
    unique: bool = False,
    channel: str | None = None,
    columns: list[Any] | None = None,
    only: str | None = None,
    limit: int | None = None,
    order_by: str | None = None,
    score: str | None = None,
) -> Iterator[bytes]:
    """The keys of each message."""
    more: dict[str, Any] = {"channel": channel, "columns": columns, "only": only, "coalesce": True}
    if limit is None and order_by is None and score is None:
        return iter(Matching(call, incoming, Wanted.keys, unique=unique, **more))
    _check_best(unique=unique)
    return iter(MatchingBest(call, incoming, limit=limit, order_by=order_by, score=score, **more))


def _check_best(*, unique: bool) -> None:
    if unique:
        raise InvalidValueError("limit, order_by and score go without unique")


# -- subscriptions -----------------------------------------------------------------------------------------------------


def _key(call: HttpCall) -> int | str:
    return key_in(call.path_key, call.service.key_type)


def _get(call: HttpCall) -> Answer:
    found = call.index.get(_key(call))
    if found is None:
        raise RefusedError(404, f"there is no subscription with the key {call.path_key[:60]!r}")
    tag = [(b"etag", tag_of(found).encode())]
    if is_known(found, call.header("if-none-match")):
        return Answer(b"", 304, headers=tag)
    return Answer(write_json(record_shown(found)), headers=tag)


def _put(call: HttpCall, *, commit: bool = True, **given: Any) -> Answer:
    """Store a subscription: a row as in files, or a record as `GET` gives it."""
    index, key = call.index, _key(call)
    rows = [{**row, "key": key} for row in _rows_of(given, index._engine.schema())]
    condition = _condition(call)
    try:
        staged = index._engine.put_table(_table(call, rows), match_all=True, condition=condition)
    except TagMatchError as error:
        raise (of_one(error) if len(rows) == 1 else error) from None
    call.service.metrics.changes.labels("put").inc()
    return _changed(call, staged, commit=commit)


def _rows_of(given: dict[str, Any], schema: Schema) -> list[dict[str, Any]]:
    """Rows of a record, or the row that a subscription is."""
    if not given:
        raise InvalidValueError('the body must be a subscription, such as {"tags": ["cat"]}')
    data = given.pop("data", None) or {}
    given.pop("key", None)
    if not isinstance(data, dict):
        raise InvalidTypeError("data must be an object with a value for each column")
    for name in data:
        if name not in schema:
            raise unknown_column(name, schema)
    alternatives = given.pop("alternatives", None)
    rows = [given] if alternatives is None else alternatives
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not rows:
        raise InvalidTypeError("alternatives must be a list of objects")
    if alternatives is not None and given:
        raise InvalidValueError(f"{min(given)[:60]!r} cannot be given with alternatives; put it into each of them")
    for row in rows:
        if unknown := sorted(row.keys() - {*ROW_FIELDS}):
            raise InvalidValueError(f"a subscription has no field {unknown[0][:60]!r}; data goes into the object data")
        reject_nothing(row.get("tags"), row.get("where") or row.get("constraints"), row.get("area"))
    return [{**row, **data} for row in rows]


def _put_many(call: HttpCall, incoming: Incoming, *, commit: bool = True, match_all: bool = False) -> Iterator[bytes]:
    _, put = PUTS["put"]
    return iter(put(call, incoming, commit=commit, match_all=match_all))


def _remove_many(
    call: HttpCall,
    incoming: Incoming,
    *,
    commit: bool = True,
    match_all: bool = False,
    missing: str = "ignore",
) -> Iterator[bytes]:
    _, remove = PUTS["remove"]
    return iter(remove(call, incoming, commit=commit, match_all=match_all, missing=missing))


def _delete_many(
    call: HttpCall, incoming: Incoming, *, commit: bool = True, missing: str = "ignore"
) -> Iterator[bytes]:
    _, delete = PUTS["delete"]
    return iter(delete(call, incoming, commit=commit, missing=missing))


def _move_many(call: HttpCall, incoming: Incoming) -> Iterator[bytes]:
    _, move = PUTS["move"]
    return iter(move(call, incoming))


# Records of a page, and seconds for which records are looked at for one
_MOST_LISTED, _LOOKING_S = 1000, 0.5


def _list(
    call: HttpCall,
    *,
    after: str | None = None,
    limit: int = 100,
    prefix: str | None = None,
    tag: str | None = None,
    text: str | None = None,
) -> Body:
    """Records behind a key, in the order of keys; `next` says whether more come, also of few."""
    if not 1 <= limit <= _MOST_LISTED:
        raise InvalidValueError(f"limit must be from 1 to {_MOST_LISTED}, not {limit}")
    if prefix is not None and call.service.key_type != "string":
        raise InvalidValueError("prefix is for keys that are strings; those of this index are integers")
    begin = None if after is None else key_in(after, call.service.key_type)
    found: list[Body] = []
    wanted, until = None if text is None else text.casefold(), time.monotonic() + _LOOKING_S
    for record in records_after(call.index.snapshot, begin, limit, tag=tag, at_least=prefix):
        if prefix is not None and not record.key.startswith(prefix):
            break
        if tag is None or any(tag in each.tags for each in record.alternatives):
            given = record_shown(record)
            if wanted is None or wanted in json.dumps(given, ensure_ascii=False).casefold():
                found.append(given)
        if len(found) == limit or time.monotonic() > until:
            return {"subscriptions": found, "next": record.key}
    return {"subscriptions": found, "next": None}


def _table(call: HttpCall, rows: list[dict[str, Any]]) -> pa.Table:
    service = call.service
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    parts = [text]
    batches = read_sets(
        lambda _: parts.pop() if parts else b"",
        key_type=service.key_type,
        expires=True,
        plane=service.plane,
        match_all=True,
        data=call.index._engine.schema(),
        declared=call.index._engine.declared,
    )
    return pa.Table.from_batches(batches)


def _delete(call: HttpCall, *, commit: bool = True) -> Answer:
    index, key = call.index, _key(call)
    condition = _condition(call)
    try:
        staged = index._engine.delete(key, must_exist=condition is None, is_single=True, condition=condition)
    except NotStoredError:
        raise RefusedError(404, f"there is no subscription with the key {call.path_key[:60]!r}") from None
    call.service.metrics.changes.labels("delete").inc()
    return _changed(call, staged, commit=commit)


def _condition(call: HttpCall) -> Any:
    """What must hold of the record as it is, also by changes of other programs."""
    found = condition_of(call.header("if-match"), call.header("if-none-match"))
    if found is not None and call.index._engine.changing.is_behind:
        call.index.reload()
    return found


def _changed(call: HttpCall, staged: int, *, commit: bool) -> Answer:
    found: dict[str, Any] = {"staged": staged, "committed": commit}
    headers: Headers = []
    if commit:
        found["changes"] = committed(call.index)._asdict()
        if (record := call.index.get(_key(call))) is not None:
            headers.append((b"etag", tag_of(record).encode()))
    return Answer(write_json(found), headers=headers)


# -- the service -------------------------------------------------------------------------------------------------------


def _health(_: HttpCall) -> Body:
    return {"status": "alive"}


def _ready(call: HttpCall) -> Answer:
    is_ready = call.service.is_ready
    return Answer(write_json({"status": "ready" if is_ready else "not ready"}), 200 if is_ready else 503)


def _description(_: HttpCall) -> Body:
    return document(ROUTES)


def _action(name: str, *, has_body: bool = False) -> Route:
    found = ACTIONS[name]
    return Route(name, found.role, found.description, found.perform, has_body=has_body, is_action=True)


#: The content of a stream of events, which may come by a WebSocket instead
EVENTS = ("text/event-stream",)
#: By path and method
ROUTES: dict[str, dict[str, Route]] = {
    "/match": {"POST": Route("match", "read", "The keys of a message.", _match, has_body=True, is_direct=True)},
    "/count": {
        "POST": Route("match_counts", "read", "How many keys a message has.", _count, has_body=True),
    },
    "/exists": {
        "POST": Route("match_exists", "read", "Whether a message has keys.", _exists, has_body=True),
    },
    "/match_many": {"POST": Route("match", "read", "The keys of each of many messages.", _match_many, rows="messages")},
    "/explain": {"POST": _action("explain", has_body=True)},
    "/subscriptions": {
        "GET": Route("get", "read", "Subscriptions, page by page.", _list),
        "POST": Route("put", "write", "Store many subscriptions.", _put_many, rows="subscriptions"),
    },
    "/subscriptions/{key}": {
        "GET": Route("get", "read", "The subscription of a key.", _get),
        "PUT": Route("put", "write", "Store a subscription.", _put, has_body=True, takes_any=True),
        "DELETE": Route("delete", "write", "Remove the subscription of a key.", _delete),
    },
    "/delete": {"POST": Route("delete", "write", "Remove the subscriptions of keys.", _delete_many, rows="keys")},
    "/remove": {"POST": Route("remove", "write", "Remove sets from keys, as rows say.", _remove_many, rows="sets")},
    "/move": {"POST": Route("move", "write", "Say where clients are.", _move_many, rows="moves")},
    "/notifications": {
        "GET": Route(
            "notify",
            "read",
            "Notifications of a session, as server-sent events.",
            EventStream,
            rows="own",
            answers=EVENTS,
        )
    },
    "/acknowledge": {
        "POST": Route(
            "notify",
            "read",
            "Let go of notifications up to the id of an event.",
            acknowledge,
            has_body=True,
            is_action=True,
        )
    },
    "/publish": {
        "POST": Route(
            "publish",
            "write",
            "Match messages, and notify sessions.",
            publish,
            has_body=True,
            takes_any=True,
            rows="own",
        )
    },
    "/consolidate": {"POST": _action("consolidate", has_body=True)},
    "/reload": {"POST": _action("reload")},
    "/stats": {"GET": _action("stats")},
    "/info": {"GET": _action("info")},
    "/sessions": {"GET": _action("sessions")},
    "/sessions/{key}": {
        "DELETE": Route("end_session", "read", "End a session of one's own.", end_session, is_action=True)
    },
    "/calls": {"GET": _action("calls")},
    "/healthz": {"GET": Route("health", None, "Whether the service is alive.", _health, is_action=True)},
    "/readyz": {"GET": Route("ready", None, "Whether the service takes calls.", _ready, is_action=True)},
    "/openapi.json": {"GET": Route("openapi", None, "This description.", _description, is_action=True)},
}
#: Paths of the console, which is no part of what clients call
CONSOLE: dict[str, dict[str, Route]] = {
    path: {"GET": Route("console", None, "A file of the console.", perform, is_action=True)}
    for path, perform in PAGES.items()
}
