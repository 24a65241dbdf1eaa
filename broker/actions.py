"""Calls that no stream of messages answers: actions by name, changes, and contents.

`DoAction` takes and gives JSON objects. `DoPut` has subscriptions to add or to remove, and clients that move; each call
makes all of its changes, or none. `DoGet` gives what is stored, as batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from tagmatch.broker.access import ClientCall
from tagmatch.broker.config import Role
from tagmatch.broker.flight import IncomingStream, check_schema, result
from tagmatch.broker.wire import ChangeOptions, JsonOptions, area_of, write_json
from tagmatch.contents import pairs, schema_of
from tagmatch.embedded import TagMatch
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, UnavailableError
from tagmatch.model.version import VERSION
from tagmatch.model.where.constraints import Where

if TYPE_CHECKING:
    from tagmatch.model.options import Missing

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Full(JsonOptions):
    full: bool = False


@dataclass(frozen=True, slots=True)
class _Set(JsonOptions):
    """A set, with its conditions."""

    tags: list | None = None  # type: ignore[type-arg]
    where: list | None = None  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class _Message(JsonOptions):
    """One message (see `TagMatch.explain`)."""

    tags: list | None = None  # type: ignore[type-arg]
    attributes: dict | None = None  # type: ignore[type-arg]
    location: list | None = None  # type: ignore[type-arg]
    within: dict | None = None  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class _Session(JsonOptions):
    session: str = ""


def _ready(call: ClientCall, _: JsonOptions) -> Body:
    service = call.service
    if service.is_draining:
        raise UnavailableError("the service is not ready: it ends")
    gateways = service.subscribers.conditions
    if not service.is_ready:
        lacking = ", ".join(f"{name}: {condition}" for name, condition in gateways.items() if condition != "connected")
        raise UnavailableError(f"the service is not ready: a gateway that is required is missing ({lacking})")
    return {"status": "ready", "gateways": gateways}


def _info(call: ClientCall, _: JsonOptions) -> Body:
    service = call.service
    return {
        "version": VERSION,
        "key_type": "string" if service.has_string_keys else "integer",
        "plane": service.plane,
        "max_batch_rows": service.config.server.max_batch_rows,
        "max_message_bytes": service.config.server.max_message_bytes,
        "user": call.user.name,
        "role": call.user.role,
    }


def _consolidate(call: ClientCall, options: _Full) -> Body:
    changes = call.index.consolidate(full=options.full)
    return {"sets": len(call.index), "changes": changes._asdict()}


def _save_positions(call: ClientCall, _: JsonOptions) -> Body:
    call.index.save_positions()
    return {}


def _check(call: ClientCall, _: JsonOptions) -> Body:
    call.index.check()
    return {"sets": len(call.index)}


def _contains(call: ClientCall, options: _Set) -> Body:
    where = options.where or []
    if not all(isinstance(each, str) for each in where):
        raise InvalidTypeError("contains: where must be a list of strings")
    return {"contains": [*(options.tags or []), *map(Where, where)] in call.index}


def _explain(call: ClientCall, options: _Message) -> Body:
    within: Any = area_of(options.within, "explain: within")
    location: Any = None if options.location is None else tuple(options.location)
    found = call.index.explain(options.tags or [], options.attributes, location=location, within=within)
    return {
        "sets": [
            {
                "tags": [tag for tag in stored if not isinstance(tag, Where)],
                "where": [[str(tag), tag.path] for tag in stored if isinstance(tag, Where)],
                "keys": list(keys),
            }
            for stored, keys in found
        ]
    }


def _whose(call: ClientCall) -> str | None:
    """The user whose sessions a call is about: an admin's is about those of all."""
    return None if call.user.may("admin") else call.user.name


def _sessions(call: ClientCall, _: JsonOptions) -> Body:
    return {"sessions": call.service.subscribers.sessions.listed(_whose(call))}


def _end_session(call: ClientCall, options: _Session) -> Body:
    return {"ended": call.service.subscribers.sessions.end(options.session, _whose(call))}


def _drain(call: ClientCall, _: JsonOptions) -> Body:
    call.service.drain()
    return {"status": "draining"}


class Action(NamedTuple):
    """Something that a client may ask for by name."""

    role: Role | None  # The least that is needed; `None`: not even a token, and no options
    description: str
    perform: Callable[[ClientCall, Any], Body]  # `perform(call, options)` returns what is answered
    options: type[JsonOptions] = JsonOptions


ACTIONS: dict[str, Action] = {
    "health": Action(
        None, "Whether the service is alive; needs no token, and says nothing else.", lambda _, __: {"status": "alive"}
    ),
    "ready": Action("read", "Whether the service takes calls, and which gateways are connected.", _ready),
    "info": Action("read", "Version, type of keys, limits, and who the caller is.", _info),
    "stats": Action(
        "read", "Figures of the index, as `TagMatch.stats` gives them.", lambda call, _: call.index.stats()
    ),
    "contains": Action("read", "Whether exactly a set is stored: `tags`, and `where`, a list.", _contains, _Set),
    "explain": Action(
        "read", "Which sets a message matches: `tags`, `attributes`, `location`, `within`.", _explain, _Message
    ),
    "sessions": Action("read", "One's own sessions of notifications; for an admin, those of all users.", _sessions),
    "end_session": Action(
        "read", "End one of these, with all that waits in it: `session`, its name.", _end_session, _Session
    ),
    "consolidate": Action(
        "write", "Make staged changes take effect, counted; `full`: lay all sets out anew.", _consolidate, _Full
    ),
    "save_positions": Action("write", "Save where clients are.", _save_positions),
    "reload": Action(
        "write",
        "Take over a newer snapshot that another program has saved.",
        lambda call, _: {"reloaded": call.index.reload()},
    ),
    "check": Action("admin", "Verify every invariant of the index.", _check),
    "calls": Action(
        "admin",
        "Calls under way and bytes that wait, of each user.",
        lambda call, _: {"users": call.service.limits.by_user()},
    ),
    "drain": Action("admin", "Take no more calls, end streams, and then end the service.", _drain),
}


def action(name: str) -> Action:
    """The action of this name; InvalidValueError."""
    if name not in ACTIONS:
        raise InvalidValueError(f"there is no action {name[:60]!r}; there is {', '.join(ACTIONS)}")
    return ACTIONS[name]


#: The columns of moves
CLIENT, LON, LAT = "client", "lon", "lat"


def change(kind: str, call: ClientCall, command: dict[str, Any], incoming: IncomingStream) -> Generator[bytes]:
    """Make the changes that a stream brings, and answer with counts, as JSON."""
    options, service = ChangeOptions.of(command, "the descriptor"), call.service
    table = _all_of(call, incoming)
    service.limits.admit(call.user.name, len(table))
    staged = len(table)
    if options.missing != "ignore" and kind != "remove":
        raise InvalidValueError("missing is an option of removals alone")
    if kind == "move":
        _check_moves(table)
        service.index.move(table.column(CLIENT), table.column(LON), table.column(LAT))
    elif kind == "add":
        staged = service.index.add_subscriptions(table, match_all=options.match_all)
    else:
        remove = service.index.remove_subscriptions
        staged = remove(table, match_all=options.match_all, missing=cast("Missing", options.missing))
    service.metrics.changes.labels(kind).inc(len(table))
    found: dict[str, Any] = {"rows": len(table), "staged": 0 if kind == "move" else staged, "committed": options.commit}
    if options.commit and kind != "move":
        found["changes"] = service.index.consolidate()._asdict()
    found["sets"] = len(service.index)
    yield result(write_json(found))


def _all_of(call: ClientCall, incoming: IncomingStream) -> pa.Table:
    """All rows, which together must be no more than a call may bring."""
    limits, schema = call.service.limits, incoming.schema
    check_schema(schema)
    batches: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in incoming:
        nbytes += batch.nbytes
        limits.check_bytes(nbytes)
        call.memory.take(batch.nbytes)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema)


def _check_moves(table: pa.Table) -> None:
    if sorted(table.column_names) != sorted((CLIENT, LON, LAT)):
        raise InvalidValueError(
            f"moves have columns {CLIENT}, {LON} and {LAT}, not {', '.join(table.column_names)[:200]}"
        )


_SETS_A_BATCH = 4096


def rows_of(index: TagMatch[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Rows `tags`, `key`, and `where` and `expires` where there are some, as `TagMatch.to_arrow` gives them."""
    snapshot = index.snapshot
    return schema_of(snapshot), iter(pairs(snapshot))


def sets_of(index: TagMatch[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Sets with `tags`, `where`, a list of conditions, and `keys`, as iteration gives them."""
    kind = pa.large_string() if index.stats()["key_type"] == "string" else pa.uint64()
    schema = pa.schema([("tags", pa.list_(pa.string())), ("where", pa.list_(pa.string())), ("keys", pa.list_(kind))])
    return schema, _batches(iter(index), schema)


def _batches(sets: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while some := list(islice(sets, _SETS_A_BATCH)):
        tags = [[tag for tag in stored if not isinstance(tag, Where)] for stored, _ in some]
        where = [[str(tag) for tag in stored if isinstance(tag, Where)] for stored, _ in some]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(column, field.type)
                for column, field in zip((tags, where, [k for _, k in some]), schema, strict=True)
            ],
            schema=schema,
        )


#: What a ticket `{"get": NAME}` may ask for
CONTENTS = {"rows": rows_of, "sets": sets_of}
