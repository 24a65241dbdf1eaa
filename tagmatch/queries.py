"""Tables of queries: their columns as tags, attributes, and places."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from tagmatch.locations import locations_of_table, without_locations
from tagmatch.messages import TAGS, messages_in
from tagmatch.model.arrays import TagLists
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.names import MESSAGE_COLUMNS, check_names

#: The column of attributes, each by its own name, and that of what queries are called
ATTRIBUTES, ID = "attributes", "id"


def queries_in(
    table: pa.Table | pa.RecordBatch, *, plane: bool, first_row: int = 0, threads: int = 1
) -> list[TagLists]:
    """The rows of a table as queries.

    Parameters
    ----------
    table : pyarrow.Table or pyarrow.RecordBatch
        As `TagMatch.match_many` takes it.
    plane : bool
        Whether places are on the plane.
    first_row : int
        Number of the first row, in messages of errors.
    threads : int
        Threads that may make tags of maps.

    Raises
    ------
    InvalidTypeError, InvalidValueError, NullError
        As `messages_in` and `locations_of_table`; or a column is misspelt.

    Examples
    --------
    >>> table = pa.table({"id": [7], "tags": [["fr"]], "attributes": [{"new": True}]})
    >>> [rows] = queries_in(table, plane=False)
    >>> len(rows), rows.attributes.names
    (1, ['new'])
    """
    names = table.schema.names
    check_names(names, MESSAGE_COLUMNS)
    places = None
    if len(set(names)) == len(names):  # else `messages_in` says which there is twice
        places = locations_of_table(table, plane=plane, first_row=first_row)
        table = with_own_columns(without_locations(table))
    chunks = messages_in(table, first_row=first_row, threads=threads)
    if places is None:
        return chunks
    return [replace(rows, locations=each) for rows, each in zip(chunks, places, strict=True)]


def with_own_columns(table: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """The table with a column for each field of its column `attributes`, and without `id`.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        `attributes` is neither a struct nor a map, or has a field that is called as another column.
    """
    if ID in table.schema.names:
        table = table.drop_columns([ID])
    if ATTRIBUTES not in table.schema.names:
        return table
    given, kind = table.column(ATTRIBUTES), table.schema.field(ATTRIBUTES).type
    if pa.types.is_map(kind):
        return table
    table = table.drop_columns([ATTRIBUTES])
    if pa.types.is_null(kind):
        return table
    if not pa.types.is_struct(kind):
        raise InvalidTypeError(
            f"column {ATTRIBUTES!r} must be a struct with a field for each attribute, or a map, not {kind}"
        )
    names, columns = [field.name for field in kind], table.schema.names
    if taken := {TAGS, *columns}.intersection(names):
        name = next(name for name in names if name in taken)
        raise InvalidValueError(f"column {ATTRIBUTES!r} must have no field {name[:60]!r}, as a column is called so")
    return type(table).from_arrays([*table.columns, *given.flatten()], names=[*columns, *names])
