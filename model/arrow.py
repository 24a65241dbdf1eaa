"""Arrow: columns of tables as its arrays and back, which share the memory; and what callers hand over, in any shape.

Tags in dictionaries stay in them: each of a dictionary's strings is then looked up once for all the tags that it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import (
    BoolArray,
    IntArray,
    Lists,
    Memo,
    Strings,
    TagLists,
    U32Array,
    U64Array,
    UIntArray,
    offsets_of,
)
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS


def from_strings(strings: Strings) -> pa.Array:
    """An Arrow string or large string array that shares the memory."""
    kind = pa.string() if strings.offsets.dtype == np.int32 else pa.large_string()
    buffers = [None, pa.py_buffer(strings.offsets), pa.py_buffer(strings.data)]
    return pa.Array.from_buffers(kind, len(strings), buffers)


def from_lists(lists: Lists) -> pa.Array:
    """An Arrow list or large list array that shares the memory."""
    values = pa.array(lists.values)
    kind = (pa.list_ if lists.offsets.dtype == np.int32 else pa.large_list)(values.type)
    return pa.Array.from_buffers(kind, len(lists), [None, pa.py_buffer(lists.offsets)], children=[values])


def from_tag_lists(rows: TagLists) -> pa.Array:
    """An Arrow large list array of rows of tags, not in a dictionary."""
    tags = from_strings(rows.tags).cast(pa.large_string())
    if rows.indices is not None:
        tags = tags.take(pa.array(rows.indices))
    return pa.LargeListArray.from_arrays(pa.array(rows.offsets.astype(np.int64)), tags)


def from_words(words: U64Array) -> pa.Array:
    """An Arrow array of fixed-size lists, of signatures or masks, uint64[n, 3]."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(words).reshape(-1)), SIGNATURE_WORDS)


def plain_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """The NumPy type of numbers of an Arrow type; Arrow's own `to_pandas_dtype` needs pandas before version 26."""
    return pa.nulls(0, kind).to_numpy(zero_copy_only=False).dtype  # type: ignore[no-any-return]


def to_numbers(array: pa.Array) -> Any:
    """The NumPy array that shares the memory."""
    return array.to_numpy()


def to_words(array: pa.Array) -> U64Array:
    """Signatures or masks, uint64[n, 3]."""
    words: UIntArray = array.flatten().to_numpy()
    return words.reshape(-1, SIGNATURE_WORDS)


def to_lists(array: pa.Array) -> Lists:
    """Lists that share the memory of an Arrow list array, which must not be a slice."""
    offsets = array.offsets.to_numpy() if len(array) else np.zeros(1, np.int32)
    return Lists(offsets, array.values.to_numpy())


def to_strings(values: pa.Array) -> Strings:
    """Strings that share the memory of an Arrow `string` or `large_string` array without nulls."""
    width: type[np.signedinteger[Any]] = np.int32 if pa.types.is_string(values.type) else np.int64
    _, offset_buffer, data_buffer = values.buffers()
    if offset_buffer is None or len(values) == 0:
        return Strings(np.zeros(1, width), np.zeros(0, np.uint8))
    offsets = np.frombuffer(offset_buffer, width)[values.offset : values.offset + len(values) + 1]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return Strings(np.require(offsets, requirements="A"), data)


def in_order(strings: pa.Array) -> tuple[U32Array, U32Array]:
    """Number the different strings of an Arrow array in the order of their bytes."""
    order = pc.sort_indices(strings).to_numpy().astype(np.uint32)
    ordered = strings.take(pa.array(order))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    numbers = np.empty(len(order), np.uint32)
    numbers[order] = np.cumsum(is_new, dtype=np.int64) - 1
    return order[is_new], numbers


# -- tables of other libraries -----------------------------------------------------------------------------------------

# Indices travel as uint32; the greatest means no string
_MOST_STRINGS = 2**32 - 1
_BOOL8 = "arrow.bool8"


def as_table(given: Any) -> pa.Table | pa.RecordBatch | None:
    """A table of Arrow, or what another library has as one: a DataFrame of pandas, polars or DuckDB, or a stream."""
    found = _table(given)
    return None if found is None else without_extensions(found)


def _table(given: Any) -> pa.Table | pa.RecordBatch | None:
    if isinstance(given, pa.Table | pa.RecordBatch):
        return given
    try:
        if type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns"):
            return pa.Table.from_pandas(given, preserve_index=False)  # its own stream has the index as a column
        if hasattr(given, "__arrow_c_stream__") and not isinstance(given, pa.ChunkedArray):
            return _read_all(given)
        if hasattr(given, "__arrow_c_array__") and not isinstance(given, pa.Array):
            found = pa.array(given)
            return pa.RecordBatch.from_struct_array(found) if pa.types.is_struct(found.type) else None
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidTypeError(f"a {type(given).__name__} cannot be a table of Arrow: {error}") from None
    return None


def _read_all(stream: Any) -> pa.Table | None:
    try:
        reader = pa.RecordBatchReader.from_stream(stream)
    except pa.ArrowInvalid:  # a column
        return None
    return reader.read_all()


# -- extension types: columns of them are read as what they are stored as ----------------------------------------------


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
    if isinstance(kind, pa.BaseExtensionType):
        return True
    if isinstance(kind, pa.DictionaryType | pa.RunEndEncodedType):
        return _has_extension(kind.value_type)
    for number in range(kind.num_fields):
        within = kind.field(number).type
        if type(within) is not pa.DataType and _has_extension(within):  # others are numbers and texts
            return True
    return False


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


# -- rows of tags ------------------------------------------------------------------------------------------------------


def rows_of(chunks: Iterable[pa.Array], name: str, first_row: int, *, stored: bool) -> list[TagLists]:
    """Arrays of lists of strings as rows of tags; parameters and errors as `columns.tag_lists` has them."""
    parts = []
    for chunk in chunks:
        parts.append(_Part.of(chunk, name, first_row))
        first_row += len(chunk)
    dictionaries = _dictionaries(parts, stored)
    return [_rows_of(part, dictionaries, stored) for part in parts]


class _Part(NamedTuple):
    """A chunk: row `i`, counted from `first_row`, has the tags `offsets[i]` to `offsets[i + 1]`, from 0 to the last."""

    name: str
    first_row: int
    kind: pa.DataType
    offsets: IntArray
    tags: pa.Array

    @classmethod
    def of(cls, lists: pa.Array, name: str, first_row: int) -> _Part:
        reject_nulls(lists, name, first_row, "a set of tags")
        kind = lists.type
        if pa.types.is_null(kind) or (not len(lists) and pa.types.is_floating(kind)):  # as pandas has an empty column
            return cls(name, first_row, kind, np.zeros(1, np.int64), pa.array([], pa.string()))
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            offsets = lists.offsets.to_numpy()
            tags = lists.values
        elif pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
            offsets = offsets_of(pc.list_value_length(lists).to_numpy())
            tags = lists.flatten()
        else:
            hint = """; split texts, as in table["tags"].str.split("|")""" if is_text(kind) else ""
            raise InvalidTypeError(f"{name} must be lists of strings, not {kind}{hint}")
        begin, end = int(offsets[0]), int(offsets[-1])
        if begin:
            offsets = offsets - offsets.dtype.type(begin)
        return cls(name, first_row, kind, offsets, tags.slice(begin, end - begin))

    def row_of(self, tag: int) -> int:
        """The row that has a tag."""
        return self.first_row + int(np.searchsorted(self.offsets, tag, side="right")) - 1

    def reject_null_tags(self, tags: pa.Array) -> None:
        if tags.null_count:
            tag = int(np.argmax(tags.is_null().to_numpy(zero_copy_only=False)))
            raise NullError(f"{self.name}: row {self.row_of(tag)} holds a null where a tag must be")

    def reject_foreign_indices(self) -> None:
        """The dictionary must have a string for each index, which Arrow itself does not enforce."""
        indices, strings = self.tags.indices.to_numpy(), len(self.tags.dictionary)
        if len(indices) and not (indices.min() >= 0 and indices.max() < strings):
            tag = int(np.argmax((indices < 0) | (indices >= strings)))
            raise InvalidValueError(
                f"{self.name}: row {self.row_of(tag)} has the dictionary index {indices[tag]}, but the dictionary has "
                f"{strings} strings"
            )


def _rows_of(part: _Part, dictionaries: dict[_Place, _Dictionary], stored: bool) -> TagLists:
    tags = part.tags
    if pa.types.is_dictionary(tags.type):
        part.reject_null_tags(tags)
        dictionary = dictionaries.get(_place(tags.dictionary))
        if stored or dictionary is None:
            part.reject_foreign_indices()
        if dictionary is not None:
            return TagLists(part.offsets, dictionary.strings, _unsigned(tags.indices), dictionary.memo)
    tags = plain_strings(tags, f"{part.name} must be lists of strings, not {part.kind}")
    part.reject_null_tags(tags)
    if stored:
        reject_no_utf8(tags, part.name, part.first_row, len(part.offsets) - 1)
    return TagLists(part.offsets, to_strings(tags))


# -- dictionaries ------------------------------------------------------------------------------------------------------


class _Dictionary(NamedTuple):
    strings: Strings
    memo: Memo


#: Where a dictionary lies in memory: chunks often share one
_Place = tuple[object, ...]


def _place(dictionary: pa.Array) -> _Place:
    buffers = (None if buffer is None else (buffer.address, buffer.size) for buffer in dictionary.buffers())
    return (dictionary.type, dictionary.offset, len(dictionary), *buffers)


def _dictionaries(parts: Sequence[_Part], stored: bool) -> dict[_Place, _Dictionary]:
    """The dictionaries of tags that are worth keeping: those with more strings than tags would cost more."""
    found: dict[_Place, pa.Array] = {}
    tags: Counter[_Place] = Counter()
    for part in parts:
        if pa.types.is_dictionary(part.tags.type):
            place = _place(part.tags.dictionary)
            found[place] = part.tags.dictionary
            tags[place] += len(part.tags)
    return {
        place: _Dictionary(to_strings(_as_plain(dictionary)), Memo())
        for place, dictionary in found.items()
        if len(dictionary) <= min(tags[place], _MOST_STRINGS) and _is_sound(dictionary, stored)
    }


def _is_sound(dictionary: pa.Array, stored: bool) -> bool:
    """Whether all of it may be used. If not, no tag may be what must not, which is found when they are decoded."""
    if not is_text(dictionary.type) or dictionary.null_count:
        return False
    if stored:
        try:
            dictionary.validate(full=True)
        except pa.ArrowInvalid:
            return False
    return True


def _unsigned(indices: pa.Array) -> U32Array:
    """Indices as uint32; negative ones, which no dictionary has, are then beyond its end."""
    raw = indices.to_numpy()
    return np.require(raw.view(np.uint32) if raw.itemsize == 4 else raw.astype(np.uint32), requirements="A")


# -- strings -----------------------------------------------------------------------------------------------------------


def plain_strings(values: pa.Array, otherwise: str) -> pa.Array:
    """A `string` or `large_string` array, whose nulls are then all in sight; `otherwise` is the message of an error."""
    if are_strings(values.type):
        return values
    if pa.types.is_run_end_encoded(values.type):
        values = pc.run_end_decode(values)
    if pa.types.is_dictionary(values.type):
        if pa.types.is_string_view(values.type.value_type):  # as polars has them, and Arrow cannot decode
            values = pa.DictionaryArray.from_arrays(values.indices, _as_plain(values.dictionary))
        values = values.dictionary_decode()
    if not is_text(values.type) and not pa.types.is_null(values.type):
        raise InvalidTypeError(otherwise)
    return _as_plain(values)


def is_text(kind: pa.DataType) -> bool:
    """Whether an array of this type holds strings."""
    return are_strings(kind) or bool(pa.types.is_string_view(kind))


def are_strings(kind: pa.DataType) -> bool:
    """Whether it does as `Strings` has them."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as_plain(values: pa.Array) -> pa.Array:
    """Strings as `string` or `large_string`."""
    return values if are_strings(values.type) else values.cast(pa.large_string())


# -- what must not be there --------------------------------------------------------------------------------------------


def without_null_lists(lists: pa.Array, rows: BoolArray) -> pa.Array:
    """Without nulls among the chosen rows, where lists become empty; other values, and types of lists, stay."""
    if pa.types.is_null(lists.type):
        lists = lists.cast(pa.list_(pa.string()))
    try:
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    except pa.ArrowNotImplementedError:
        return lists
    nulls = lists.is_null().to_numpy(zero_copy_only=False) & ~rows
    offsets, values, mask = offsets_of(lengths), lists.flatten(), pa.array(nulls)
    if pa.types.is_list(lists.type):
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, lists.type, mask=mask)
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=mask)


def reject_nulls(array: pa.Array, name: str, first_row: int, expected: str) -> None:
    """Raise `NullError` for the first null."""
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise NullError(f"{name}: row {first_row + row} is null where {expected} must be")


def reject_no_utf8(values: pa.Array, name: str, first_row: int, rows: int) -> None:
    """Raise `InvalidValueError` for strings that are not UTF-8, which Arrow itself does not enforce."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidValueError(f"{name}: rows {first_row} to {first_row + rows - 1}: {error}") from None
