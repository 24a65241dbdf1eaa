"""Messages: tags and attributes, as the tags by which matchers know both.

Many messages come as a table: a column `tags`, and a column for each attribute. Each column is measured and written
row by row into the memory of the strings, in which the tags of a row stand one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import TagLists, offsets_of
from tagmatch.model.columns import shown, tag_list, tag_lists
from tagmatch.model.conditions.typed_values import places, value_column
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.values import ATTRIBUTE, RESERVED, attribute_tags, check_name
from tagmatch.model.kernels.message_tags import NO_BYTES, NO_NUMBERS, NO_PLACES, TAG, Column, rows_of_columns

#: The column of tags; each other one is an attribute
TAGS = "tags"


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
        that there is no value.
    first_row : int
        Number of the first row, in messages of errors.
    threads : int

    Raises
    ------
    InvalidTypeError
        A column has another type.
    InvalidValueError
        A name or an integer is none that an attribute can have. Both name the column, and the row if there is one.

    Examples
    --------
    >>> [rows] = messages_in(pa.table({"tags": [["fr"]], "new": [True]}))
    >>> len(rows), bytes(rows.tags.data)
    (1, b'fr\x00=new\x00b1')
    """
    if table.schema.names.count(TAGS) > 1:
        raise InvalidValueError(f"there must be one column {TAGS!r}, not {table.schema.names.count(TAGS)}")
    parts = []
    for batch in [table] if isinstance(table, pa.RecordBatch) else table.to_batches():
        columns = [
            column
            for name, values in zip(batch.schema.names, batch.columns, strict=True)
            if (column := _column(name, values, first_row)) is not None
        ]
        parts.append(rows_of_columns(columns, len(batch), threads))
        first_row += len(batch)
    return parts


def side_by_side(parts: list[TagLists]) -> TagLists:
    """Rows with all the tags that rows of the same number have in each part."""
    return rows_of_columns(list(map(_tags, parts)), len(parts[0]), 1)


# -- columns -----------------------------------------------------------------------------------------------------------


def _column(name: str, values: pa.Array, first_row: int) -> Column | None:
    """A column; `None` if it has no value at all."""
    if name == TAGS:
        (tags,) = tag_lists(values, f"column {name!r}", first_row=first_row)
        return _tags(tags)
    check_name(name)
    label = f"column {name!r}"
    prefix = np.frombuffer(f"{ATTRIBUTE}{name}{RESERVED}".encode(), np.uint8)
    rows = np.arange(len(values) + 1)
    kind = values.type
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        values = values.cast(pa.large_list(kind.value_type))
        kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        rows = offsets_of(pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False))
        values = values.flatten()
    return value_column(
        values,
        rows,
        lambda place: f"{label}: row {first_row + int(np.searchsorted(rows, place, side='right')) - 1}",
        f"{label} is of {kind}, but attributes are bools, integers, floats or strings, or lists of these: cast it, or "
        "leave it out",
        prefix=prefix,
    )


def _tags(rows: TagLists) -> Column:
    """Tags as they are; what has an index that is not in its dictionary is none."""
    begins, ends = places(rows.tags)
    first, last = int(rows.offsets[0]), int(rows.offsets[-1])
    valid = np.ones(last - first, np.bool_)
    if rows.indices is None:
        begins, ends = begins[first:last], ends[first:last]
    else:
        indices = rows.indices[first:last].astype(np.int64)
        valid = indices < len(begins)
        indices = np.where(valid, indices, 0)
        # Without a string there is no place to point to either
        begins, ends = (np.append(places, 0)[indices] for places in (begins, ends))
    offsets = rows.offsets.astype(np.int64) - first
    return Column(TAG, NO_BYTES, offsets, valid, NO_NUMBERS, NO_PLACES, begins, ends, rows.tags.data)
