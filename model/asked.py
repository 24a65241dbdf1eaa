"""What a key was put with: the texts that the caller gave, and columns of data; its sets are stored elsewhere.

Each single one is a text of JSON in logs; many are a table of Arrow, with the columns that `RecordTable` has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array
from tagmatch.model.data_types import text_of_type, type_named

#: Begins the names of columns of data among those of records
DATA = "data."
#: The columns that each table of records has
AS_GIVEN = pa.schema([("tags", pa.list_(pa.string())), ("where", pa.string()), ("area", pa.string())])


class Asked(NamedTuple):
    """What one key is put with; `tags`, `where` and `area`, which is a tag, as they were given, if there is `where`."""

    tags: list[str] | None
    where: str | None
    area: str | None
    # Of each column with a value: its type, and the value as JSON has it
    data: Mapping[str, tuple[str, Any]]

    def packed(self) -> bytes:
        """As logs have it."""
        return json.dumps(self, ensure_ascii=False, separators=(",", ":")).encode()


def unpacked(texts: Iterable[bytes]) -> list[Asked]:
    """Of what logs have, in order; ValueError."""
    found = []
    for text in texts:
        tags, where, area, data = json.loads(text)
        found.append(Asked(tags, where, area, {name: (kind, value) for name, (kind, value) in data.items()}))
    return found


class AskedRows(NamedTuple):
    """What the keys of some changes are put with."""

    records: I64Array | None = None  # of each change the row of the table, or -1; `None` if no change has one
    table: pa.Table | None = None

    @classmethod
    def of(cls, asked: Sequence[Asked | None]) -> AskedRows:
        """Of each change, what its key is put with, if it is put with anything."""
        have = np.array([each is not None for each in asked], np.bool_)
        if not have.any():
            return NOTHING_ASKED
        return cls(np.where(have, np.cumsum(have) - 1, -1), table_of([each for each in asked if each is not None]))

    def part(self, some: slice) -> AskedRows:
        """Of some of the changes."""
        if self.records is None or self.table is None:
            return NOTHING_ASKED
        own = self.records[some]
        have = own >= 0
        if not have.any():
            return NOTHING_ASKED
        return AskedRows(np.where(have, np.cumsum(have) - 1, -1), self.table.take(pa.array(own[have])))


NOTHING_ASKED = AskedRows()


def checked_rows(rows: AskedRows) -> AskedRows:
    """Rows that were read of a log; ValueError if they are none that can be there."""
    records, table = rows
    assert records is not None
    assert table is not None
    table.validate(full=True)
    reject_other_columns(table.schema, AS_GIVEN)
    if len(records) and not -1 <= int(records.min()) <= int(records.max()) < len(table):
        raise ValueError("a row points to a record that does not exist")
    return rows


def reject_other_columns(schema: pa.Schema, fixed: pa.Schema) -> None:
    """Reject a table of records that has not the fixed columns, and then columns of data; ValueError."""
    if schema.names[: len(fixed)] != fixed.names or any(schema.field(field.name).type != field.type for field in fixed):
        raise ValueError(f"records have the columns {', '.join(schema.names)[:200]}")
    for field in list(schema)[len(fixed) :]:
        if not field.name.startswith(DATA) or text_of_type(field.type) is None:
            raise ValueError(f"records have the column {field.name[:80]!r} of {field.type}")


def data_of(table: pa.Table) -> dict[str, pa.DataType]:
    """The columns of data that a table of records has, with their types."""
    return {field.name[len(DATA) :]: field.type for field in table.schema if field.name.startswith(DATA)}


def joined(parts: Sequence[AskedRows], counts: Sequence[int]) -> AskedRows:
    """The rows of several changes, one after the other, with a number of rows for each part."""
    if all(part.table is None for part in parts):
        return NOTHING_ASKED
    records, tables, rows = [], [], 0
    for part, count in zip(parts, counts, strict=True):
        if part.records is None or part.table is None:
            records.append(np.full(count, -1))
            continue
        records.append(np.where(part.records >= 0, part.records + rows, -1))
        tables.append(part.table)
        rows += len(part.table)
    return AskedRows(np.concatenate(records), end_to_end(tables))


def end_to_end(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of records, one after the other; columns that one lacks have nulls there."""
    return pa.concat_tables(tables, promote_options="default").combine_chunks()


def table_of(asked: Sequence[Asked]) -> pa.Table:
    """A table with a row for each; ValueError where a column has several types."""
    given = zip(*((each.tags, each.where, each.area) for each in asked), strict=True)
    columns = {field.name: pa.array(values, field.type) for field, values in zip(AS_GIVEN, given, strict=True)}
    types: dict[str, str] = {}
    for each in asked:
        for name, (kind, _) in each.data.items():
            if types.setdefault(name, kind) != kind:
                raise ValueError(f"column {name!r} of data has the types {types[name]} and {kind}")
    for name in sorted(types):
        values = [each.data[name][1] if name in each.data else None for each in asked]
        columns[DATA + name] = column_of(values, type_named(types[name]))
    return pa.table(columns)


def column_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values as JSON has them, as a column of a type."""
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).cast(kind)
    if pa.types.is_decimal(kind):
        values = [None if value is None else Decimal(value) for value in values]
    if pa.types.is_floating(kind):  # NaN and infinities are texts
        values = [float(value) if isinstance(value, str) else value for value in values]
    return pa.array(values, kind)
