"""`DoPut`: subscriptions to add or to remove, and clients that move; each call makes all of its changes, or none."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tagmatch.broker.calls import Call
from tagmatch.broker.messages import check_schema
from tagmatch.broker.wire import ChangeOptions, write_json
from tagmatch.model.errors import InvalidValueError

#: The columns of moves
CLIENT, LON, LAT = "client", "lon", "lat"


def put(call: Call, kind: str, options: ChangeOptions, reader: Any, writer: Any) -> None:
    """Make the changes that a stream brings, and answer with counts, as JSON.

    Parameters
    ----------
    call : Call
    kind : {"add", "remove", "move"}
    options : ChangeOptions
    reader, writer : MetadataRecordBatchReader, FlightMetadataWriter
    """
    service, table = call.service, _all_of(call, reader)
    service.limits.admit(call.user.name, len(table))
    if kind == "move":
        _check_moves(table)
        service.index.move(table.column(CLIENT), table.column(LON), table.column(LAT))
    elif kind == "add":
        service.index.add_subscriptions(table, match_all=options.match_all)
    else:
        service.index.remove_subscriptions(table, match_all=options.match_all)
    service.metrics.changes.labels(kind).inc(len(table))
    if options.commit and kind != "move":
        service.index.consolidate()
    found = {"rows": len(table), "committed": options.commit, "sets": len(service.index)}
    writer.write(pa.py_buffer(write_json(found)))


def _all_of(call: Call, reader: Any) -> pa.Table:
    """All rows, which together must be no more than a call may bring."""
    limits, schema = call.service.limits, reader.schema
    check_schema(schema)
    batches: list[pa.RecordBatch] = []
    nbytes = 0
    while True:
        try:
            batch = reader.read_chunk().data
        except StopIteration:
            return pa.Table.from_batches(batches, schema)
        if batch is not None:
            limits.check_batch(batch)
            nbytes += batch.nbytes
            limits.check_bytes(nbytes)
            batches.append(batch)


def _check_moves(table: pa.Table) -> None:
    if sorted(table.column_names) != sorted((CLIENT, LON, LAT)):
        raise InvalidValueError(
            f"moves have columns {CLIENT}, {LON} and {LAT}, not {', '.join(table.column_names)[:200]}"
        )
