"""Extension types of Arrow: columns of them are read as what they are stored as."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tagmatch.model.errors import InvalidTypeError

_BOOL8 = "arrow.bool8"


def without_extensions(table: Any) -> Any:
    """A table or batch whose columns are of no extension types, also within lists, structs and maps."""
    kinds = table.schema.types
    if not any(map(_has_extension, kinds)):
        return table
    names = table.schema.names
    columns = [plain_column(column, f"column {name!r}") for name, column in zip(names, table.columns, strict=True)]
    return type(table).from_arrays(columns, names=names)


def plain_column(column: Any, name: str) -> Any:
    """An array, chunked or not, that is of no extension type; errors as `without_extensions`."""
    if not _has_extension(column.type):
        return column
    try:
        return column.cast(_plain(column.type))
    except (pa.ArrowException, NotImplementedError) as error:
        raise InvalidTypeError(f"{name} is of {column.type}, which cannot be read: {error}; cast it") from None


def _has_extension(kind: pa.DataType) -> bool:
    if type(kind) is pa.DataType:  # numbers and texts
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return True
    if isinstance(kind, pa.DictionaryType | pa.RunEndEncodedType):
        return _has_extension(kind.value_type)
    return any(_has_extension(kind.field(number).type) for number in range(kind.num_fields))


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.bool_() if kind.extension_name == _BOOL8 else _plain(kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return pa.dictionary(kind.index_type, _plain(kind.value_type), kind.ordered)
    if isinstance(kind, pa.ListType):
        return pa.list_(_plain_field(kind.value_field))
    if isinstance(kind, pa.LargeListType):
        return pa.large_list(_plain_field(kind.value_field))
    if isinstance(kind, pa.FixedSizeListType):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if isinstance(kind, pa.MapType):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), kind.keys_sorted)
    if isinstance(kind, pa.StructType):
        return pa.struct([_plain_field(field) for field in kind])
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain(field.type))
