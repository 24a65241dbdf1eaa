"""What callers hand over, in any shape Arrow or Python has for it, as the columns that kernels work on.

Everything is validated here, before anything is changed. `name` is the argument or column that messages speak of;
rows are counted from 0 over all chunks.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Strings, TagLists, U64Array, offsets_of
from tagmatch.model.arrow import (
    as_table,
    plain_column,
    plain_strings,
    reject_no_utf8,
    reject_nulls,
    rows_of,
    to_strings,
)
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError
from tagmatch.model.kernels.tag_table import row_with_reserved
from tagmatch.model.options import KeyType
from tagmatch.model.where.constraints import Where
from tagmatch.model.where.values import is_reserved

KEY_LIMIT = 2**64

_STRING_KEYS_HINT = (
    '; to have strings as keys, make the index with key_type="string" (tagmatch build --key-type string)'
)

_TABLES = ", or a table of Arrow or a DataFrame of pandas, polars or DuckDB"

_SEQUENCES = frozenset({list, tuple, set, frozenset})
# What can be iterated over, but not in an order that rows could go by
_NO_SEQUENCES = (str, bytes, bytearray, Mapping, set, frozenset)


def tag_list(tags: object, name: str = "tags") -> list[str]:
    """The tags of one set or query."""
    found = _strings_in(tags, name)
    try:
        "".join(found).encode()
    except (TypeError, UnicodeEncodeError):
        _reject_tags(found, name)
    return found


def stored_tag_list(tags: object, name: str = "tags") -> list[str]:
    """The tags of one set before it is stored; errors as `tag_list`, and for a reserved tag."""
    found = tag_list(tags, name)
    for tag in found:
        if is_reserved(tag):
            raise InvalidValueError(_reserved(name))
    return found


def _reserved(name: str) -> str:
    return f"{name} holds a tag that begins as constraints do (U+0000 and +, - or =): give these as `where`"


def _reject_tags(tags: list[Any], name: str) -> None:
    for tag in tags:
        if not isinstance(tag, str):
            raise _null_or_type(tag, f"{name} must hold strings only, not {shown(tag)}")
        try:
            tag.encode()
        except UnicodeEncodeError:
            raise InvalidValueError(_no_utf8(name, "tag", tag)) from None


def repeated(names: Iterable[str]) -> tuple[str, int] | None:
    """The first of some names that is there several times, and how often; `None` if all differ."""
    return next(((name, count) for name, count in Counter(names).items() if count > 1), None)


def joined_tags(tags: object) -> tuple[bytes, int] | None:
    r"""The tags of one query, with a zero byte between each and the next, and how many they are.

    `None` if they could not be told apart then, or if only `tag_list` can name the mistake.

    Examples
    --------
    >>> joined_tags(["a", "bc"])
    (b'a\x00bc', 2)
    """
    if type(tags) not in _SEQUENCES:
        return None
    try:
        text = "\0".join(tags).encode()  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return None
    count = len(tags)  # type: ignore[arg-type]
    return (text, count) if text.count(0) == max(count - 1, 0) else None


def rows_of_tags(rows: Sequence[list[str]]) -> TagLists:
    """Rows with these tags, each as `tag_list` returned it."""
    return TagLists(_offsets_of(rows), strings_of(list(chain.from_iterable(rows))))


def strings_of(texts: Iterable[str]) -> Strings:
    """A column of these strings, which have been validated."""
    return to_strings(pa.array(texts, pa.large_string()))


def _offsets_of(parts: Sequence[Sized]) -> I64Array:
    return offsets_of(np.fromiter(map(len, parts), np.int64, len(parts)))


def tag_lists(rows: object, name: str, *, first_row: int = 0, stored: bool = False) -> list[TagLists]:
    """Many sets or queries: an Arrow array of lists of strings, chunked or not, or any iterable of iterables.

    Tags in a dictionary stay there, if it has no more strings than there are tags, and no null.
    """
    chunks = arrow_chunks(rows, name)
    if chunks is None:
        found = [_from_python(rows, name, first_row, "" if stored else _TABLES)]
    else:
        found = rows_of(chunks, name, first_row, stored=stored)
    if stored:
        _reject_reserved(found, name, first_row)
    return found


def _reject_reserved(chunks: list[TagLists], name: str, first_row: int) -> None:
    for chunk in chunks:
        row = row_with_reserved(chunk)
        if row is not None:
            raise InvalidValueError(_reserved(f"{name}: row {first_row + row}"))
        first_row += len(chunk)


def key_value(key: object, name: str = "key") -> int:
    """One key."""
    if type(key) is int and 0 <= key < KEY_LIMIT:
        return key
    if key is None:
        raise NullError(f"{name} must be an integer, not None")
    try:
        value = operator.index(key)  # type: ignore[arg-type]
    except TypeError:
        value = None
    if value is None or isinstance(key, bool | np.bool_ | np.ndarray):
        hint = _STRING_KEYS_HINT if isinstance(key, str) else ""
        raise InvalidTypeError(f"{name} must be an integer, not {shown(key)}{hint}")
    if not 0 <= value < KEY_LIMIT:
        raise InvalidValueError(f"{name} must be from 0 to 2**64 - 1, not {value}")
    return value


def key_values(keys: object, name: str = "keys", *, first_row: int = 0) -> U64Array:
    """Many keys: an Arrow or NumPy array of integers or any iterable of them."""
    chunks = arrow_chunks(keys, name)
    if chunks is not None:
        parts = []
        for chunk in chunks:
            parts.append(_keys_from_arrow(chunk, name, first_row))
            first_row += len(chunk)
        return np.concatenate([np.zeros(0, np.uint64), *parts])
    if isinstance(keys, np.ndarray):
        if keys.ndim != 1:
            raise InvalidTypeError(f"{name} must be one-dimensional, not of shape {keys.shape}")
        if keys.dtype.kind in "iu":
            return _unsigned(keys, name, first_row)
        if keys.dtype.kind != "O":
            raise InvalidTypeError(f"{name} must be integers, not a NumPy array of {keys.dtype}")
    if isinstance(keys, range):
        return _keys_from_range(keys, name, first_row)
    listed = listed_in(keys, f"{name} must be a sequence of integers")
    if set(map(type, listed)) <= {int}:
        try:
            return np.array(listed, np.uint64)
        except OverflowError:
            pass  # a key out of range, which the loop below names
    return np.array([key_value(key, f"{name}: row {first_row + i}") for i, key in enumerate(listed)], np.uint64)


def _keys_from_range(keys: range, name: str, first_row: int) -> U64Array:
    for place in (0, len(keys) - 1) if len(keys) else ():
        key_value(keys[place], f"{name}: row {first_row + place}")
    return np.array(keys, np.uint64) if len(keys) else np.zeros(0, np.uint64)


def string_key(key: object, name: str = "key") -> str:
    """One key of an index whose keys are strings."""
    if not isinstance(key, str):
        raise _null_or_type(key, f"{name} must be a string, as the keys of this index are, not {shown(key)}")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidValueError(_no_utf8(name, "key", key)) from None
    return key


def string_keys(keys: object, name: str = "keys", *, first_row: int = 0) -> Strings:
    """Many keys that are strings: an Arrow array of strings or any iterable of `str`."""
    chunks = arrow_chunks(keys, name)
    if chunks is not None:
        parts = [pa.array([], pa.large_string())]
        for chunk in chunks:
            plain = plain_strings(chunk, f"{name} must be strings, as the keys of this index are, not {chunk.type}")
            reject_nulls(plain, name, first_row, "a key")
            reject_no_utf8(plain, name, first_row, len(plain))
            parts.append(plain.cast(pa.large_string()))
            first_row += len(chunk)
        return to_strings(pa.concat_arrays(parts))
    listed = listed_in(keys, f"{name} must be a sequence of strings")
    if all(issubclass(kind, str) for kind in set(map(type, listed))):
        try:
            return to_strings(pa.array(listed, pa.large_string()))
        except UnicodeEncodeError:
            pass  # which the loop below names
    return strings_of([string_key(key, f"{name}: row {first_row + i}") for i, key in enumerate(listed)])


def _unsigned(keys: npt.NDArray[Any], name: str, first_row: int) -> U64Array:
    if keys.dtype.kind == "i" and len(keys) and keys.min() < 0:
        row = int(np.argmax(keys < 0))
        raise InvalidValueError(f"{name}: row {first_row + row} must be from 0 to 2**64 - 1, not {keys[row]}")
    return keys.astype(np.uint64)


def _keys_from_arrow(chunk: pa.Array, name: str, first_row: int) -> U64Array:
    if pa.types.is_null(chunk.type) and len(chunk) == 0:
        return np.zeros(0, np.uint64)
    reject_nulls(chunk, name, first_row, "a key")
    if not pa.types.is_integer(chunk.type):
        hint = _STRING_KEYS_HINT if "string" in str(chunk.type) else ""
        raise InvalidTypeError(f"{name} must be integers, not {chunk.type}{hint}")
    return _unsigned(chunk.to_numpy(zero_copy_only=False), name, first_row)


@dataclass(frozen=True, slots=True)
class KeyChecks:
    """How keys of one type are validated and made a column."""

    one: Callable[..., int | str]  # `one(key, name)` returns the key, as `key_value` and `string_key` do
    # `many(keys, name, first_row=0)` returns a column, as `key_values` and `string_keys` do
    many: Callable[..., U64Array | Strings]


KEY_CHECKS: dict[KeyType, KeyChecks] = {
    "integer": KeyChecks(key_value, key_values),
    "string": KeyChecks(string_key, string_keys),
}


def arrow_chunks(data: object, name: str) -> list[pa.Array] | None:
    """The chunks of an Arrow array, chunked array or object with Arrow's C interfaces; `None` for anything else."""
    if isinstance(data, pa.Array | pa.ChunkedArray):
        column = data
    elif as_table(data) is not None:
        raise InvalidTypeError(f"{name} must be one column, not a {type(data).__name__}; pick one, as in table['tags']")
    elif hasattr(data, "__arrow_c_array__") or hasattr(data, "__arrow_c_stream__"):
        read = pa.array if hasattr(data, "__arrow_c_array__") else pa.chunked_array
        try:
            column = read(data)
        except pa.ArrowException as error:  # such as a type that Arrow for Python lacks
            raise InvalidTypeError(f"{name}: a {type(data).__name__} cannot be read as Arrow: {error}") from None
    else:
        return None
    column = plain_column(column, name)
    return [column] if isinstance(column, pa.Array) else list(column.chunks)


def _from_python(rows: object, name: str, first_row: int, instead: str) -> TagLists:
    listed = listed_in(rows, f"{name} must be a sequence of tag lists{instead}")
    if not set(map(type, listed)) <= _SEQUENCES:
        listed = [_strings_in(row, f"{name}: row {first_row + i}") for i, row in enumerate(listed)]
    flat = list(chain.from_iterable(listed))
    kinds = set(map(type, flat))
    if Where in kinds:
        row = next(i for i, tags in enumerate(listed) if Where in map(type, tags))
        raise InvalidTypeError(f"{name}: row {first_row + row} holds a condition, a Where: give these as `where`")
    if not all(issubclass(kind, str) for kind in kinds):
        for i, row in enumerate(listed):
            tag_list(row, f"{name}: row {first_row + i}")
    try:
        strings = pa.array(flat, pa.large_string())
    except UnicodeEncodeError as error:
        row = next(i for i, tags in enumerate(listed) if error.object in tags)
        raise InvalidValueError(_no_utf8(f"{name}: row {first_row + row}", "tag", error.object)) from None
    return TagLists(_offsets_of(listed), to_strings(strings))


def _strings_in(tags: object, name: str) -> list[Any]:
    """The items of one row of tags, still of any type."""
    if type(tags) in _SEQUENCES:
        return list(tags)  # type: ignore[call-overload, no-any-return]
    if isinstance(tags, pa.Array | pa.ChunkedArray):
        return list(tags.to_pylist())
    if isinstance(tags, str):
        raise InvalidTypeError(
            f"{name} must be an iterable of strings, not the bare string {shown(tags)}; write [{shown(tags)}]"
        )
    if isinstance(tags, Mapping):
        raise InvalidTypeError(
            f"{name} must be an iterable of strings, not the mapping {shown(tags)}; values of attributes go into "
            "attributes=, or into columns of a table"
        )
    if isinstance(tags, bytes | bytearray | memoryview) or not isinstance(tags, Iterable):
        raise _null_or_type(tags, f"{name} must be an iterable of strings, not {shown(tags)}")
    return list(tags)


def listed_in(values: object, must: str) -> list[Any]:
    """What is iterated over, in an order that rows can go by; `must` begins the message of an InvalidTypeError."""
    if isinstance(values, _NO_SEQUENCES) or not isinstance(values, Iterable):
        raise _null_or_type(values, f"{must}, not {shown(values)}")
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _null_or_type(value: object, message: str) -> InvalidTypeError:
    return NullError(message) if value is None else InvalidTypeError(message)


def _no_utf8(name: str, what: str, text: str) -> str:
    return f"{name} holds the {what} {shown(text)}, which has a lone surrogate and so no UTF-8 form"


def shown(value: object) -> str:
    """A value as messages show it: what it is, and not at length."""
    text = ascii(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if isinstance(value, str | bytes) else f"{text} ({type(value).__name__})"
