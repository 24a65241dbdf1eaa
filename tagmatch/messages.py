"""Messages: tags and attributes, as matchers know both.

The attributes of one message come as tags. Many messages come as a table, a column `tags` and a column for each
attribute; these stay columns, in Arrow's own memory where that can be. The entries of maps come as tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Strings, TagLists, frozen
from tagmatch.model.columns import repeated, shown, tag_list, tag_lists
from tagmatch.model.conditions.attribute_columns import AttributeColumns, check_columns
from tagmatch.model.conditions.attribute_maps import map_column
from tagmatch.model.conditions.typed_values import places
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.values import attribute_tags
from tagmatch.model.kernels.message_tags import rows_of_columns
from tagmatch.model.kernels.value_columns import NO_BYTES, TAG, Column

#: The column of tags; each other one is an attribute
TAGS = "tags"

_NO_STRINGS = Strings(np.zeros(1, np.int64), NO_BYTES)


def message(tags: object, attributes: object) -> list[str]:
    r"""The tags of one message, and those that stand for its attributes.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        As `tag_list` and `attribute_tags`; or `attributes` is no mapping.

    Examples
    --------
    >>> message(["fr"], {"new": True})
    ['fr', '\x00=new\x00b1']
    """
    if not isinstance(attributes, Mapping):
        raise InvalidTypeError(f"attributes must be a mapping from names to values, not {shown(attributes)}")
    return [*tag_list(tags), *attribute_tags(attributes)]


def messages_in(table: pa.Table | pa.RecordBatch, *, first_row: int = 0, threads: int = 1) -> list[TagLists]:
    r"""The rows of a table as messages.

    Parameters
    ----------
    table : pyarrow.Table or pyarrow.RecordBatch
        A column `tags`, as `tag_lists` takes it, which may be missing. Each other column is an attribute: of bools,
        integers, floats, strings (also in a dictionary), or of lists of these, which are several values. A null says
        that there is no value. A column of maps from names to such values has an attribute for each entry.
    first_row : int
        Number of the first row, in messages of errors.
    threads : int
        Threads that may make tags of maps.

    Raises
    ------
    InvalidTypeError
        A column has another type.
    InvalidValueError
        A name or an integer is none that an attribute can have, or two columns have one name. Both name the column,
        and the row if there is one.

    Examples
    --------
    >>> [rows] = messages_in(pa.table({"tags": [["fr"]], "new": [True]}))
    >>> len(rows), bytes(rows.tags.data), [column.name for column in rows.attributes.columns]
    (1, b'fr', [b'new'])
    """
    names, kinds = table.schema.names, table.schema.types
    if twice := repeated(names):
        raise InvalidValueError(f"there must be one column {twice[0]!r}, not {twice[1]}; lists have several values")
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    if TAGS in names:
        # Together, as chunks often share a dictionary
        tags = pa.chunked_array([batch.column(TAGS) for batch in batches], table.schema.field(TAGS).type)
        parts = tag_lists(tags, f"column {TAGS!r}", first_row=first_row)
    else:
        parts = [TagLists(np.zeros(len(batch) + 1, np.int64), _NO_STRINGS) for batch in batches]
    others = [number for number, name in enumerate(names) if name != TAGS]
    maps = [number for number in others if pa.types.is_map(kinds[number])]
    numbers = [number for number in others if not pa.types.is_map(kinds[number])]
    attributes, found = [names[number] for number in numbers], []
    for batch, rows in zip(batches, parts, strict=True):
        check_columns(batch, numbers, first_row)
        if maps:
            of_maps = (map_column(names[number], batch.column(number), first_row) for number in maps)
            rows = rows_of_columns([_tags(rows), *(each for each in of_maps if each is not None)], len(rows), threads)
        found.append(replace(rows, attributes=AttributeColumns(batch, numbers, attributes)) if numbers else rows)
        first_row += len(batch)
    return found


def side_by_side(parts: list[TagLists], threads: int = 1) -> TagLists:
    r"""Rows with all that rows of the same number have in each part, as tags.

    Examples
    --------
    >>> parts = messages_in(pa.table({"tags": [["fr"]], "new": [True]}))
    >>> bytes(side_by_side(parts).tags.data)
    b'fr\x00=new\x00b1'
    """
    columns = [column for part in parts for column in (_tags(part), *_attributes(part))]
    return rows_of_columns(columns, len(parts[0]), threads)


# -- columns -----------------------------------------------------------------------------------------------------------


def _tags(rows: TagLists) -> Column:
    """Tags as they are; what has an index that is not in its dictionary is none."""
    begins, ends = places(rows.tags)
    first, last = int(rows.offsets[0]), int(rows.offsets[-1])
    validity = NO_BYTES
    if rows.indices is None:
        begins, ends = begins[first:last], ends[first:last]
    else:
        indices = rows.indices[first:last].astype(np.int64)
        valid = indices < len(begins)
        validity = np.packbits(valid, bitorder="little")
        indices = np.where(valid, indices, 0)
        # Without a string there is no place to point to either
        begins, ends = (np.append(places, 0)[indices] for places in (begins, ends))
    offsets = rows.offsets.astype(np.int64) - first
    column = Column(TAG, NO_BYTES, frozen(offsets), frozen(validity))
    return column._replace(begins=frozen(begins), ends=frozen(ends), text=rows.tags.data)


def _attributes(rows: TagLists) -> Sequence[Column]:
    """The attributes of rows that `messages_in` has made."""
    return () if rows.attributes is None else rows.attributes.columns
