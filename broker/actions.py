"""Calls that no stream of messages answers: actions by name, changes, and contents.

`DoAction` takes and gives JSON objects. `DoPut` has subscriptions to add or to remove, and clients that move; each call
makes all of its changes, or none. `DoGet` gives what is stored. Options of a call are keywords of its function.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import islice
from types import NoneType
from typing import Any, NamedTuple, cast, get_args, get_origin, get_type_hints

import pyarrow as pa

from tagmatch.broker.access import ClientCall
from tagmatch.broker.config import Role
from tagmatch.broker.flight import IncomingStream, check_schema, result
from tagmatch.broker.outbox import KEY_TYPES
from tagmatch.broker.wire import area_of, write_json
from tagmatch.contents import pairs
from tagmatch.contents import schema_of as schema_of_rows
from tagmatch.embedded import TagMatch
from tagmatch.model import VERSION
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, UnavailableError
from tagmatch.model.names import near_match
from tagmatch.model.options import Missing
from tagmatch.model.where.constraints import Where

Body = Mapping[str, Any]


def options_of(call: Callable[..., Any], found: Body, what: str) -> dict[str, Any]:
    """Options in JSON, which are keyword arguments of the call; `what` is how messages call them."""
    known, hints = [*(call.__kwdefaults__ or ())], get_type_hints(call)
    for name, value in found.items():
        if name not in known:
            raise InvalidValueError(f"{what} has no option {name[:60]!r}{near_match(name, known)}")
        kinds = tuple(get_origin(kind) or kind for kind in get_args(hints[name]) or (hints[name],))
        if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
            wanted = " or ".join("null" if kind is NoneType else kind.__name__ for kind in kinds)
            raise InvalidTypeError(f"{what}: {name} must be {wanted}, not {str(value)[:60]!r}")
    return dict(found)


# -- actions -----------------------------------------------------------------------------------------------------------


def _ready(call: ClientCall) -> Body:
    service = call.service
    if service.is_draining:
        raise UnavailableError("the service is not ready: it ends")
    gateways = service.subscribers.conditions
    if not service.is_ready:
        lacking = ", ".join(f"{name}: {condition}" for name, condition in gateways.items() if condition != "connected")
        raise UnavailableError(f"the service is not ready: a gateway that is required is missing ({lacking})")
    return {"status": "ready", "gateways": gateways}


def _info(call: ClientCall) -> Body:
    service = call.service
    return {
        "version": VERSION,
        "key_type": service.key_type,
        "plane": service.plane,
        "max_batch_rows": service.config.server.max_batch_rows,
        "max_message_bytes": service.config.server.max_message_bytes,
        "user": call.user.name,
        "role": call.user.role,
    }


def _contains(call: ClientCall, *, tags: list[Any] | None = None, where: list[Any] | None = None) -> Body:
    if not all(isinstance(each, str) for each in where or ()):
        raise InvalidTypeError("contains: where must be a list of strings")
    return {"contains": [*(tags or ()), *map(Where, where or ())] in call.index}


def _explain(
    call: ClientCall,
    *,
    tags: list[Any] | None = None,
    attributes: dict[str, Any] | None = None,
    location: list[Any] | None = None,
    within: dict[str, Any] | None = None,
) -> Body:
    area: Any = area_of(within, "explain: within")
    place: Any = None if location is None else tuple(location)
    found = call.index.explain(tags or [], attributes, location=place, within=area)
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


def _end_session(call: ClientCall, *, session: str = "") -> Body:
    return {"ended": call.service.subscribers.sessions.end(session, _whose(call))}


def _consolidate(call: ClientCall, *, full: bool = False) -> Body:
    changes = call.index.consolidate(full=full)
    return {"sets": len(call.index), "changes": changes._asdict()}


def _save_positions(call: ClientCall) -> Body:
    call.index.save_positions()
    return {}


def _check(call: ClientCall) -> Body:
    call.index.check()
    return {"sets": len(call.index)}


def _drain(call: ClientCall) -> Body:
    call.service.drain()
    return {"status": "draining"}


class Action(NamedTuple):
    """Something that a client may ask for by name."""

    role: Role | None  # The least that is needed; `None`: not even a token, and no options
    description: str
    perform: Callable[..., Body]  # `perform(call, **options)` returns what is answered


ACTIONS: dict[str, Action] = {
    "health": Action(None, "Whether the service is alive; needs no token.", lambda _: {"status": "alive"}),
    "ready": Action("read", "Whether the service takes calls, and which gateways are connected.", _ready),
    "info": Action("read", "Version, type of keys, limits, and who the caller is.", _info),
    "stats": Action("read", "Figures of the index, as `TagMatch.stats` gives them.", lambda call: call.index.stats()),
    "contains": Action("read", "Whether exactly a set is stored: `tags`, and `where`, a list.", _contains),
    "explain": Action("read", "Which sets a message matches: `tags`, `attributes`, `location`, `within`.", _explain),
    "sessions": Action(
        "read",
        "One's own sessions of notifications; for an admin, those of all users.",
        lambda call: {"sessions": call.service.subscribers.sessions.listed(_whose(call))},
    ),
    "end_session": Action("read", "End one of these, with all that waits in it: `session`, its name.", _end_session),
    "consolidate": Action("write", "Make staged changes take effect; `full`: lay all sets out anew.", _consolidate),
    "save_positions": Action("write", "Save where clients are.", _save_positions),
    "reload": Action("write", "Take over a newer saved snapshot.", lambda call: {"reloaded": call.index.reload()}),
    "check": Action("admin", "Verify every invariant of the index.", _check),
    "calls": Action("admin", "Calls and bytes of each user.", lambda call: {"users": call.service.limits.by_user()}),
    "drain": Action("admin", "Take no more calls, end streams, and then end the service.", _drain),
}


# -- changes -----------------------------------------------------------------------------------------------------------


def _add(
    call: ClientCall, incoming: IncomingStream, *, commit: bool = False, match_all: bool = False
) -> Generator[bytes]:
    table = _all_of(call, incoming)
    return _changed(call, "add", table, call.index.add_subscriptions(table, match_all=match_all), commit)


def _remove(
    call: ClientCall,
    incoming: IncomingStream,
    *,
    commit: bool = False,
    match_all: bool = False,
    missing: str = "ignore",
) -> Generator[bytes]:
    table = _all_of(call, incoming)
    staged = call.index.remove_subscriptions(table, match_all=match_all, missing=cast("Missing", missing))
    return _changed(call, "remove", table, staged, commit)


def _move(call: ClientCall, incoming: IncomingStream, *, commit: bool = False) -> Generator[bytes]:
    table, names = _all_of(call, incoming), ("client", "lon", "lat")
    if sorted(table.column_names) != sorted(names):
        raise InvalidValueError(f"moves have columns client, lon and lat, not {', '.join(table.column_names)[:200]}")
    call.index.move(*(table.column(name) for name in names))
    return _changed(call, "move", table, 0, commit)


def _all_of(call: ClientCall, incoming: IncomingStream) -> pa.Table:
    """All rows, which together must be no more than a call may bring."""
    limits, schema = call.service.limits, incoming.schema
    check_schema(schema)
    batches: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in incoming:
        nbytes += batch.nbytes
        if nbytes > (most := call.service.config.server.max_message_bytes):
            raise InvalidValueError(f"at most {most:,} bytes may come at once, not {nbytes:,}")
        call.memory.take(batch.nbytes, waits=False)
        batches.append(batch)
    table = pa.Table.from_batches(batches, schema)
    limits.admit(call.user.name, len(table))
    return table


def _changed(call: ClientCall, kind: str, table: pa.Table, staged: int, commit: bool) -> Generator[bytes]:
    call.service.metrics.changes.labels(kind).inc(len(table))
    found: dict[str, Any] = {"rows": len(table), "staged": staged, "committed": commit}
    if commit and kind != "move":  # moves need none
        found["changes"] = call.index.consolidate()._asdict()
    found["sets"] = len(call.index)
    yield result(write_json(found))


# -- contents ----------------------------------------------------------------------------------------------------------

_SETS_A_BATCH = 4096


def _rows(index: TagMatch[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Rows `tags`, `key`, and `where` and `expires` where there are some, as `TagMatch.to_arrow` gives them."""
    snapshot = index.snapshot
    return schema_of_rows(snapshot), iter(pairs(snapshot))


def _sets(index: TagMatch[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Sets with `tags`, `where`, a list of conditions, and `keys`, as iteration gives them."""
    keys, texts = pa.list_(KEY_TYPES[index.stats()["key_type"]]), pa.list_(pa.string())
    schema = pa.schema({"tags": texts, "where": texts, "keys": keys})

    def batches() -> Iterator[pa.RecordBatch]:
        sets = iter(index)
        while some := list(islice(sets, _SETS_A_BATCH)):
            columns = (
                [[tag for tag in stored if not isinstance(tag, Where)] for stored, _ in some],
                [[str(tag) for tag in stored if isinstance(tag, Where)] for stored, _ in some],
                [found for _, found in some],
            )
            yield pa.RecordBatch.from_arrays(list(map(pa.array, columns, schema.types)), schema=schema)

    return schema, batches()


#: What a ticket `{"get": NAME}` may ask for
CONTENTS = {"rows": _rows, "sets": _sets}

#: A stream: `stream(call, incoming, **options)` gives the messages of Flight to send
Stream = Callable[..., Generator[bytes]]
#: By the name in a descriptor of `DoPut`; each needs the role `write`
CHANGES: dict[str, Stream] = {"add": _add, "remove": _remove, "move": _move}
