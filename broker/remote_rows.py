"""What callers of a remote index hand over, as the columns that go over the wire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.broker.wire import AREA_TYPE, area_row
from tagmatch.model import clock
from tagmatch.model.arrays import Strings
from tagmatch.model.arrow import from_strings, from_tag_lists
from tagmatch.model.arrow_input import as_table
from tagmatch.model.columns import KEY_CHECKS, NO_SEQUENCES, arrow_chunks, shown, stored_tag_list, tag_lists
from tagmatch.model.conditions.areas import area_column, is_area
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.expiry import TIME, expiry_times
from tagmatch.model.filters.where import Where
from tagmatch.model.options import KeyType
from tagmatch.model.tables import NEVER


def change_table(
    tags: Any, keys: Any, key_type: KeyType, where: Any = None, area: Any = None, expires: Any = None
) -> pa.Table:
    """The arguments of `TagMatch.add_sets` as a table of subscriptions.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        As `add_sets`, but for mistakes in expressions, which the service finds.
    """
    chunks, values = tag_lists(tags, "tags", stored=True), KEY_CHECKS[key_type].many(keys, "keys")
    rows = sum(map(len, chunks))
    if rows != len(values):
        raise InvalidValueError(f"tags and keys must have the same length; there are {rows} sets, {len(values)} keys")
    columns = {
        "tags": pa.chunked_array(map(from_tag_lists, chunks), pa.large_list(pa.large_string())),
        "key": from_strings(values) if isinstance(values, Strings) else pa.array(values),
    }
    if where is not None:
        columns["where"] = _expressions(where, rows)
    if area is not None:
        columns["area"] = _areas(area, rows)
    times = expiry_times(expires, rows, clock.now_us())
    if times is not None:
        columns["expires"] = pa.array(times, pa.int64(), mask=times == NEVER).cast(TIME)
    return pa.table(columns)


def one_change(
    tags: Any, key: object, key_type: KeyType, where: Any = None, area: Any = None, expires: Any = None
) -> pa.Table:
    """The arguments of `TagMatch.add_set` as a table of one row; errors as there."""
    plain = stored_tag_list(tags)
    conditions = [str(tag) for tag in plain if isinstance(tag, Where)]
    if where is not None:
        if not isinstance(where, str):
            raise InvalidTypeError(f"where must be a string, not {shown(where)}")
        conditions.append(where)
    value = KEY_CHECKS[key_type].one(key, "key")
    if area is not None and not is_area(area):
        raise InvalidTypeError(f"area must be a Circle, a Box or a Near, not {shown(area)}")
    joined = conditions[0] if len(conditions) == 1 else " and ".join(f"({each})" for each in conditions)
    rest = [str(tag) for tag in plain if not isinstance(tag, Where)]
    return change_table([rest], [value], key_type, joined if conditions else None, area, expires)


def query_batches(queries: Any, most_rows: int, most_bytes: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The queries of `TagMatch.match_many` as batches that a service takes.

    Raises
    ------
    InvalidTypeError, InvalidValueError, NullError
        As `match_many`, for what are no tables.
    """
    table = as_table(queries)
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if table is None:
        chunks = tag_lists(queries, "queries")
        given = arrow_chunks(queries, "queries")
        columns = list(map(from_tag_lists, chunks)) if given is None else given
        kind = columns[0].type if columns else pa.list_(pa.string())
        table = pa.table({"tags": pa.chunked_array(columns, kind)})
    return table.schema, _split(table.to_batches(most_rows), most_bytes)


def _split(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.nbytes <= most_bytes // 2 or len(batch) < 2:
            yield batch
        else:
            half = len(batch) // 2
            yield from _split([batch.slice(0, half), batch.slice(half)], most_bytes)


def _expressions(where: Any, rows: int) -> Any:
    if isinstance(where, str):
        return pa.array([where]).take(pa.array(np.zeros(rows, np.int32)))
    chunks = arrow_chunks(where, "where")
    if chunks is None:
        if isinstance(where, NO_SEQUENCES) or not isinstance(where, Iterable):
            raise InvalidTypeError(f"where must be an expression, or one for each row, not {shown(where)}")
        try:
            chunks = [pa.array([None if each is None else str.__str__(each) for each in where], pa.string())]
        except TypeError:
            raise InvalidTypeError("where must be strings, and nulls for sets without") from None
    column = pa.chunked_array(chunks, None if chunks else pa.string())
    if len(column) != rows:
        raise InvalidValueError(
            f"where must have an expression or a null for each of the {rows} sets, not {len(column)}"
        )
    return column


def _areas(area: Any, rows: int) -> Any:
    if is_area(area):
        return pa.array([area_row(area)], AREA_TYPE).take(pa.array(np.zeros(rows, np.int32)))
    column = area_column(area, rows)
    if not isinstance(column, list):
        return column
    for row, each in enumerate(column):
        if each is not None and not is_area(each):
            raise InvalidTypeError(f"area: row {row} must be a Circle, a Box or a Near, not {shown(each)}")
    return pa.array([area_row(each) for each in column], AREA_TYPE)
