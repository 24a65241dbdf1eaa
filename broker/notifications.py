"""Notifications in columns: what a message was, and which keys of a subscriber it matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array
from tagmatch.model.options import KeyType

#: A time, in microseconds, that never comes
NEVER = 2**63 - 1
#: Bytes that a notification takes beside its payload, its id and its keys
FIXED_BYTES = 32

KEY_TYPES: dict[KeyType, pa.DataType] = {"integer": pa.uint64(), "string": pa.large_string()}


def schema_of(key_type: KeyType) -> pa.Schema:
    """Columns of notifications as a subscriber gets them.

    Returns
    -------
    pyarrow.Schema
        `offset`: the number of the notification in its session, from 1 on; a number that is missing is of one that was
        dropped or has expired. `redelivered`: it was handed over before. `id` of the message, its `payload`, and the
        `keys` that the session follows and that the message matched.

    Examples
    --------
    >>> schema_of("integer").names
    ['offset', 'redelivered', 'id', 'payload', 'keys', 'expires']
    """
    return pa.schema([("offset", pa.int64()), ("redelivered", pa.bool_()), *_content(key_type)])


def _content(key_type: KeyType) -> list[pa.Field]:
    return [
        pa.field("id", pa.binary()),
        pa.field("payload", pa.large_binary()),
        pa.field("keys", pa.list_(KEY_TYPES[key_type])),
        pa.field("expires", pa.timestamp("us", "UTC")),
    ]


@dataclass(frozen=True, slots=True)
class Notifications:
    """Some notifications, in order.

    Attributes
    ----------
    content : pyarrow.RecordBatch
        Columns `id`, `payload`, `keys`.
    sizes : I64Array
        Bytes that each counts for.
    expires, until : I64Array
        When each expires: microseconds since 1970 if the publisher gave a time of day, and microseconds of
        `steady_us` if it gave a duration; the other one is `NEVER`, or both.
    held : int
        Bytes of memory that stay in use as long as any of these notifications does.
    offsets : I64Array
        Numbers that the outbox has given them, ascending.
    redelivered : bool array
        Which were handed over before.
    """

    content: pa.RecordBatch
    sizes: I64Array
    expires: I64Array
    until: I64Array
    held: int
    offsets: I64Array
    redelivered: Any

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes that all count for."""
        return int(self.sizes.sum())

    def part(self, begin: int, end: int) -> Notifications:
        """Those from `begin` to before `end`, in the same memory."""
        return Notifications(
            self.content.slice(begin, end - begin),
            self.sizes[begin:end],
            self.expires[begin:end],
            self.until[begin:end],
            self.held,
            self.offsets[begin:end],
            self.redelivered[begin:end],
        )

    def where(self, wanted: Any) -> Notifications:
        """Those for which the array of bools is true, in memory of their own."""
        content = self.content.take(pa.array(np.flatnonzero(wanted)))
        return Notifications(
            content,
            self.sizes[wanted],
            self.expires[wanted],
            self.until[wanted],
            content.get_total_buffer_size(),
            self.offsets[wanted],
            self.redelivered[wanted],
        )

    def numbered(self, first: int) -> Notifications:
        """The same with offsets from `first` on."""
        return replace(self, offsets=np.arange(first, first + len(self), dtype=np.int64))

    def again(self) -> Notifications:
        """The same, as handed over before."""
        return replace(self, redelivered=np.ones(len(self), bool))

    def last_after(self, now: int, steady: int) -> Any:
        """Which have not expired by now, as both clocks have it."""
        return (self.expires > now) & (self.until > steady)

    def as_batch(self, now: int, steady: int) -> pa.RecordBatch:
        """The columns of `schema_of` for the subscriber; time that is left becomes a time of day by both clocks."""
        times = np.where(self.until == NEVER, self.expires, self.until - steady + now)
        expires = pa.array(times, mask=times == NEVER).cast(pa.timestamp("us", "UTC"))
        arrays = [pa.array(self.offsets), pa.array(self.redelivered), *self.content.columns, expires]
        return pa.RecordBatch.from_arrays(arrays, ["offset", "redelivered", *self.content.schema.names, "expires"])


def joined(parts: Sequence[Notifications]) -> Notifications:
    """Several as one, in memory of its own if there are two or more."""
    if len(parts) == 1:
        return parts[0]
    content = pa.concat_batches([part.content for part in parts])
    return Notifications(
        content,
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.expires for part in parts]),
        np.concatenate([part.until for part in parts]),
        content.get_total_buffer_size(),
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.redelivered for part in parts]),
    )


def notifications_of(
    ids: pa.Array, payloads: pa.Array, keys: pa.ListArray, expires: I64Array, until: I64Array | None = None
) -> Notifications:
    """New notifications, which no outbox has numbered yet.

    Parameters
    ----------
    ids, payloads : pyarrow.Array of binary, large_binary
    keys : pyarrow.ListArray
        Of the type that the keys of the index have.
    expires, until : I64Array
        As in `Notifications`; `None`: `NEVER`.

    Examples
    --------
    >>> keys = pa.array([[7, 8]], pa.list_(pa.uint64()))
    >>> one = notifications_of(pa.array([b"a"]), pa.array([b"hello"], pa.large_binary()), keys, np.array([NEVER]))
    >>> one.sizes.tolist()
    [54]
    """
    sizes = np.full(len(ids), FIXED_BYTES, np.int64)
    sizes += _lengths(ids) + _lengths(payloads)
    lists = _lengths(keys)
    values = keys.flatten()
    if pa.types.is_large_string(values.type):
        ends = np.cumsum(lists)
        totals = np.concatenate([[0], np.cumsum(_lengths(values))])
        sizes += totals[ends] - totals[ends - lists]
    else:
        sizes += 8 * lists
    content = pa.RecordBatch.from_arrays([ids, payloads, keys], ["id", "payload", "keys"])
    count = len(ids)
    until = np.full(count, NEVER) if until is None else until
    held = content.get_total_buffer_size() + sizes.nbytes + expires.nbytes + until.nbytes
    return Notifications(content, sizes, expires, until, held, np.zeros(count, np.int64), np.zeros(count, bool))


def _lengths(array: pa.Array) -> I64Array:
    lengths = pc.list_value_length(array) if pa.types.is_list(array.type) else pc.binary_length(array)
    found: I64Array = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
