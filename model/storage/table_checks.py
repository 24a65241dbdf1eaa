"""Whether a table read from a file can be looked at: its columns are those of such a table, and lie within the file."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from tagmatch.model.kernels.signature import SIGNATURE_WORDS

_U32, _U64, _I32, _I64 = pa.uint32(), pa.uint64(), pa.int32(), pa.int64()
_WORDS = pa.list_(_U64, SIGNATURE_WORDS)


def _lists_of(*values: pa.DataType) -> tuple[pa.DataType, ...]:
    return tuple(kind(value) for value in values for kind in (pa.list_, pa.large_list))


#: By the name of a table, its columns, each with the types that it may have
_COLUMNS: dict[str, list[dict[str, tuple[pa.DataType, ...]]]] = {
    "vocabulary": [{"tag": (pa.string(), pa.large_string()), "hash": (_U64,), "frequency": (_U32, _U64)}],
    "tagsets": [{"signature": (_WORDS,), "ranks": _lists_of(_U32)}],
    "keys": [{"keys": _lists_of(_U32, _U64)}],
    "key_names": [{"name": (pa.large_string(), pa.string())}],
    "expires": [{"expires": (_I64,)}],
    "partitions": [{"mask": (_WORDS,), "first_row": (_I64,), "rows": (_I64,)}, {"first_row": (_I32, _I64)}],
    "deleted": [{"deleted": (pa.bool_(),)}],
}


def checked_columns(name: str, table: pa.Table) -> dict[str, pa.Array]:
    """The columns of a table of an index, each one an array.

    Of their values, nothing is looked at but the first and last offsets of lists and strings.

    Parameters
    ----------
    name : str
        Of the table, `vocabulary`.
    table : pyarrow.Table
        As Arrow has read it.

    Raises
    ------
    ValueError
        It has other columns, or some that lack values.
    """
    table.validate()  # lengths of buffers, which reading does not compare with what the table says
    return _checked(name, table, lambda array: array.null_count == 0)


def columns_of(name: str, table: pa.Table) -> dict[str, pa.Array]:
    """`checked_columns` of a table of whose values nothing is there yet."""
    return _checked(name, table, lambda array: array.buffers()[0] is None)


def _checked(name: str, table: pa.Table, is_whole: Callable[[pa.Array], bool]) -> dict[str, pa.Array]:
    names = table.column_names
    for columns in _COLUMNS[name]:
        if names == [*columns] and all(_is_any(table.schema.field(each).type, columns[each]) for each in columns):
            break
    else:
        raise ValueError(f"the columns are {', '.join(f'{field.name} ({field.type})' for field in table.schema)[:200]}")
    found = {}
    for each in names:
        column = table.column(each)
        if column.num_chunks > 1:
            raise ValueError(f"the column {each} has {column.num_chunks} chunks")
        array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        values = array.values if pa.types.is_nested(array.type) else None
        if not (_has_room(array) and (values is None or _has_room(values))):
            raise ValueError(f"the column {each} is shorter than it says")
        if array.offset or not is_whole(array) or (values is not None and not is_whole(values)):
            raise ValueError(f"the column {each} has nulls")
        found[each] = array
    return found


def _has_room(array: pa.Array) -> bool:
    """Whether the buffers of an array have as many bytes as its length asks for."""
    kind, buffers, count = array.type, array.buffers(), len(array) + array.offset
    if pa.types.is_fixed_size_list(kind):
        return bool(len(array.values) >= count * kind.list_size)
    if pa.types.is_large_list(kind) or pa.types.is_large_string(kind):
        bits = 64 * (count + 1)
    elif pa.types.is_list(kind) or pa.types.is_string(kind):
        bits = 32 * (count + 1)
    else:
        bits = kind.bit_width * count
    return count == 0 or (buffers[1] is not None and 8 * buffers[1].size >= bits)


def _is_any(kind: pa.DataType, kinds: tuple[pa.DataType, ...]) -> bool:
    if pa.types.is_nested(kind):  # the name of the field within makes no difference
        return any(type(kind) is type(each) and kind.value_type == each.value_type for each in kinds) and (
            not pa.types.is_fixed_size_list(kind) or kind.list_size == SIGNATURE_WORDS
        )
    return kind in kinds
