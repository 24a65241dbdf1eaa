"""`DoPut`: subscriptions to add or to remove, and clients that move; each call makes all of its changes, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from tagmatch.broker.calls import Call
from tagmatch.broker.flight_streams import Incoming
from tagmatch.broker.messages import check_schema
from tagmatch.broker.wire import ChangeOptions, write_json
from tagmatch.model.errors import InvalidValueError

if TYPE_CHECKING:
    from tagmatch.model.options import Missing

#: The columns of moves
CLIENT, LON, LAT = "client", "lon", "lat"


def put(call: Call, kind: str, options: ChangeOptions, incoming: Incoming) -> bytes:
    """Make the changes that a stream brings, and answer with counts, as JSON.

    Parameters
    ----------
    call : Call
    kind : {"add", "remove", "move"}
    options : ChangeOptions
    incoming : Incoming
    """
    service, table = call.service, _all_of(call, incoming)
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
    return write_json(found)


def _all_of(call: Call, incoming: Incoming) -> pa.Table:
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
