"""What publishers hand over: messages for the matcher, and what their notifications carry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.broker.notifications import NEVER
from tagmatch.model.arrays import I64Array
from tagmatch.model.arrow import from_tag_lists
from tagmatch.model.arrow_input import as_table
from tagmatch.model.columns import tag_lists
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.names import PUBLISHED_COLUMNS, check_names

#: Columns that are no attributes: what a message is called, what it carries, and when it expires
ID, PAYLOAD, EXPIRES = "id", "payload", "expires"


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages that one publisher has handed over together.

    Attributes
    ----------
    table : pyarrow.Table
        What `match_many` takes.
    ids, payloads : pyarrow.Array
        Of binary and of large_binary; nulls where a message has none.
    expires, until : I64Array
        When each expires, as in `Notifications`.
    """

    table: pa.Table
    ids: pa.Array
    payloads: pa.Array
    expires: I64Array
    until: I64Array

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return int(self.table.nbytes + self.ids.nbytes + self.payloads.nbytes + 2 * self.expires.nbytes)


@dataclass(frozen=True, slots=True)
class Published:
    """What became of messages that were published together.

    Attributes
    ----------
    messages, matched : int
        How many, and those that matched at least one key.
    """

    messages: int
    matched: int


def messages_of(messages: Any, payloads: Iterable[bytes | None] | None = None, steady: int = 0) -> Messages:
    """Messages from Arrow, or from lists.

    Parameters
    ----------
    messages : table, or iterable of iterables of str
        A table as `TagMatch.match_many` takes it, which may have `id` (strings or binary), `payload` (the same) and
        `expires` (timestamps, or durations from now on) as well, with nulls. Or tags of each message alone.
    payloads : iterable of bytes, optional
        Only with tags alone.
    steady : int
        What `steady_us` is now.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        A column has another type, or there are not as many payloads as messages; the message names it.

    Examples
    --------
    >>> found = messages_of([["fr"], ["it"]], [b"a", b"b"])
    >>> len(found), found.table.column_names, found.payloads.to_pylist()
    (2, ['tags'], [b'a', b'b'])
    """
    table = table_of(messages, payloads)
    check_names(table.column_names, PUBLISHED_COLUMNS)
    ids = _binary(table, ID, pa.binary())
    carried = _binary(table, PAYLOAD, pa.large_binary())
    expires, until = _times(table, steady)
    rest = [name for name in table.column_names if name not in (ID, PAYLOAD, EXPIRES)]
    if not rest:
        raise InvalidValueError("messages must have a column 'tags', or a column for an attribute; there is neither")
    return Messages(table.select(rest), ids, carried, expires, until)


def joined(parts: list[Messages]) -> Messages:
    """Messages of several publishers, whose tables have the same schema, as one."""
    if len(parts) == 1:
        return parts[0]
    return Messages(
        pa.concat_tables([part.table for part in parts]),
        pa.concat_arrays([part.ids for part in parts]),
        pa.concat_arrays([part.payloads for part in parts]),
        np.concatenate([part.expires for part in parts]),
        np.concatenate([part.until for part in parts]),
    )


def table_of(messages: Any, payloads: Iterable[bytes | None] | None) -> pa.Table:
    """What `messages_of` takes, as one table; errors as there."""
    table = as_table(messages)
    if table is not None:
        if payloads is not None:
            raise InvalidTypeError("payloads of messages in a table are its column 'payload'; give none beside it")
        return pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    chunks = tag_lists(messages, "messages")
    tags = pa.chunked_array(map(from_tag_lists, chunks), pa.large_list(pa.large_string()))
    columns: dict[str, Any] = {"tags": tags}
    try:
        if payloads is not None:
            columns[PAYLOAD] = pa.array(payloads, pa.large_binary())
    except (TypeError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidTypeError(f"payloads must be bytes: {error}") from None
    if payloads is not None and len(columns[PAYLOAD]) != len(tags):
        raise InvalidValueError(f"there are {len(tags)} messages and {len(columns[PAYLOAD])} payloads; give one each")
    return pa.table(columns)


def _binary(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    column = _column(table, name)
    if column is None:
        return pa.nulls(len(table), kind)
    if not any(
        is_kind(column.type)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_null,
        )
    ):
        raise InvalidTypeError(f"column {name!r} must be strings or binary, not {column.type}")
    # Text and large text become bytes of the same length of offsets first
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string()).cast(pa.large_binary())
    return _whole(column.cast(kind))


def _times(table: pa.Table, steady: int) -> tuple[I64Array, I64Array]:
    """When messages expire: as the system's clock has it, and as `steady_us` has it."""
    column, never = _column(table, EXPIRES), np.full(len(table), NEVER)
    if column is None or pa.types.is_null(column.type):
        return never, never
    is_duration = pa.types.is_duration(column.type)
    if not is_duration and (not pa.types.is_timestamp(column.type) or column.type.tz is None):
        raise InvalidTypeError(f"column 'expires' must be timestamps with a time zone, or durations, not {column.type}")
    kind = pa.duration("us") if is_duration else pa.timestamp("us", "UTC")
    given = _whole(column.cast(kind, safe=False).cast(pa.int64()))
    missing = given.is_null().to_numpy(zero_copy_only=False)
    times: I64Array = given.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not is_duration:
        return np.where(missing, NEVER, times), never
    return never, np.where(missing | (times >= NEVER - steady), NEVER, times + steady)


def _column(table: pa.Table, name: str) -> Any:
    count = table.column_names.count(name)
    if count > 1:
        raise InvalidValueError(f"there must be one column {name!r}, not {count}")
    return table.column(name) if count else None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
