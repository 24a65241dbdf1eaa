"""JSON Lines: an object on each line.

How a text of JSON becomes a value: the same for lines, cells, payloads and all other JSON.

It is the JSON of RFC 8259 in UTF-8, with or without a byte order mark before it. RFC 8259 leaves some questions open.
Here, names in an object differ, no string has half of a surrogate pair, and arrays and objects are nested `MOST_NESTED`
deep at most. Integers are exact. Other numbers are the nearest double, which is infinite for a number that is too
large, as in expressions.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from tagmatch.files.columns import ATTRIBUTES, FileColumn, OtherColumns, refuse_twice
from tagmatch.files.formats import BLOCK_BYTES, Block, Read, block_of
from tagmatch.model.arrays import BoolArray, I64Array, U8Array
from tagmatch.model.arrow import is_text
from tagmatch.model.clock import TIME
from tagmatch.model.errors import InputFileError, InvalidValueError
from tagmatch.model.parallel import threads_of_arrow
from tagmatch.model.where.values import Written

#: How deep arrays and objects may be nested
MOST_NESTED = 64

#: A byte order mark, which some programs write before UTF-8
MARK = "\ufeff"

_SPACE = " \t\r\n"
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class Repeated(dict[str, Any]):
    """An object in which a name stands more than once; it has the last value of that name."""

    names: list[str]  # Such names
    seen = object()


def read_json(text: str | bytes, what: str) -> Any:
    """The value that a text has."""
    try:
        value, has_repeated = parsed(text)
        if has_repeated:
            refuse_repeated(value)
    except ValueError as error:
        raise InvalidValueError(f"{what} is no JSON: {error}") from None
    return value


def parsed(text: str | bytes) -> tuple[Any, bool]:
    """The value that a text has, and whether there may be `Repeated` objects in it."""
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("it has half of a surrogate pair") from None
    else:
        text = utf8_text(text)
    text = text.removeprefix(MARK).strip(_SPACE)
    if "\0" in text:
        raise ValueError("it has zero bytes")
    seen = Repeated.seen
    try:
        value, end = _DECODER.raw_decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} (character {error.pos + 1})") from None
    except _OtherError:
        raise
    except ValueError:  # of Python, about digits
        raise ValueError("an integer has thousands of digits") from None
    if end != len(text):
        raise ValueError(f"there is more behind it (from character {end + 1} on)")
    if text.count("[") + text.count("{") > MOST_NESTED and _is_deep(value):
        raise ValueError(_TOO_DEEP)
    if "\\u" in text and _HALF.search(text) and _has_half(value):
        raise ValueError("a string has half of a surrogate pair")
    return value, Repeated.seen is not seen


def utf8_text(data: bytes) -> str:
    """The text whose UTF-8 the bytes are."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is no UTF-8") from None


def refuse_repeated(value: Any) -> None:
    """See that no object in a value of `parsed` has a name twice."""
    waiting = [value]
    while waiting:
        some = waiting.pop()
        if isinstance(some, Repeated):
            raise ValueError(f"an object has {json.dumps(some.names[0])[:60]} more than once")
        if isinstance(some, dict | list):
            waiting += [each for each in _within(some) if isinstance(each, dict | list)]


class _OtherError(ValueError):
    """Something that Python's reader lets pass."""


_TOO_DEEP = f"it is nested more than {MOST_NESTED} deep"


def _within(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, Mapping) else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = Repeated(found)
    Repeated.seen = object()
    repeated.names = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    return repeated


def _constant(name: str) -> NoReturn:
    raise _OtherError(f"{name} is no value of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
# Its numbers know how they were written
_EXACT = json.JSONDecoder(parse_float=Written)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_NESTED + 1):
        level = [some for some in level if isinstance(some, dict | list)]
        if not level:
            return False
        level = [each for some in level for each in _within(some)]
    return True


def _has_half(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


# Wide, as text with escapes may be longer than what one array of the other kind can hold
_TEXT = pa.large_string()
# A list that Arrow's reader reads as ours does: nothing within can be taken for its end
_PLAIN_LIST = r"^\[[^\[\]{}\n\r]*\]$"
_CONTROL = r"[\x00-\x1f]"


#: Makes a row, its values by column, of an object and the place of its line; InputFileError if it cannot be taken
Translate = Callable[[dict[str, Any], str], dict[str, Any]]


class JsonLines:
    """Rows as JSON objects; with the same methods as `CsvLines`."""

    name: str = "a JSON object"
    ids: type | None = None

    def __init__(self, columns: tuple[FileColumn, ...], others: OtherColumns) -> None:
        self._made = {column.name: column for column in columns if column.make is not None}
        self._names = frozenset(column.name for column in columns)
        self._decimals = frozenset(column.name for column in columns if pa.types.is_decimal(column.kinds[0]))
        self._others = others

    def batch(self, data: bytes, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of a schema that some rows have, none of them odd; ArrowException if it refuses one."""
        # Of times, which would be taken for UTC without a zone, the text
        read = [field for field in schema if field.name not in self._made]
        plain = pa.schema([field.with_type(pa.string()) if field.type == TIME else field for field in read])
        table, may_have_own = self._checked(data, plain)
        # The names of columns, also with escapes
        escaped = b"\\u" in data
        there = {
            name
            for name in self._made
            if escaped or f'"{name}"'.encode() in data or (may_have_own and name == ATTRIBUTES.name)
        }
        records = self._records(data) if there else []

        def column(name: str, kind: pa.DataType) -> pa.Array:
            if name in there:
                return self._made[name].array([record.get(name) for record in records], kind)
            if name in self._made:
                return pa.nulls(table.num_rows, kind)
            return table[name].combine_chunks().cast(kind)

        return pa.record_batch([column(field.name, field.type) for field in schema], schema=schema)

    def _checked(self, data: bytes, schema: pa.Schema) -> tuple[pa.Table, bool]:
        """The same, where no column is misspelt, and whether some may be attributes; InputFileError."""
        if self._others.are_all_ignored:
            return _read(data, schema, "ignore"), False
        try:
            table = _read(data, schema, "infer")
            names = table.column_names
        except pa.ArrowException:  # values of another column may be of several types
            table, names = _read(data, schema, "ignore"), None
        if names is None or not self._others.leave_aside(names):
            self._records(data)
        return table.select(schema.names), names is None or bool(self._others.attributes_in(names))

    def _records(self, data: bytes) -> list[dict[str, Any]]:
        try:
            return [self.record(line, 0, "a line") for line in data.split(b"\n") if line.strip()]
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from None

    def record(self, row: bytes, line: int, place: str) -> dict[str, Any]:  # noqa: ARG002 - of CSV, for messages
        """The values by column of a row, with attributes in one column; ValueError says why these bytes are none."""
        record, has_repeated = object_of(row)
        own = self._others.attributes_in(record)
        for name in record.keys() & {*self._names, *own} if has_repeated else ():
            if isinstance(record, Repeated) and name in record.names:
                raise ValueError(f"it has {name!r} more than once")
            refuse_repeated(record[name])
        if any(isinstance(record[name], float) for name in self._decimals & record.keys()):
            exact = _EXACT.decode(utf8_text(row).removeprefix(MARK).strip(_SPACE))
            record |= {name: exact[name] for name in self._decimals & record.keys()}
        self._others.check(record, place)
        attributes = {name: record[name] for name in own if name in record}
        given = record.get(ATTRIBUTES.name)
        if not attributes or not (given is None or isinstance(given, dict)):
            return record
        try:
            refuse_twice(given or (), attributes)
        except InvalidValueError as error:
            raise InputFileError(f"{place}: {error}") from None
        return {**record, ATTRIBUTES.name: {**(given or {}), **attributes}}


class TranslatedLines:
    """Rows that are made of JSON objects, one by one; with the same methods as `JsonLines`."""

    name: str = JsonLines.name
    ids: type | None = None

    def __init__(self, row_of: Translate) -> None:
        self._row_of = row_of

    def batch(self, data: bytes, schema: pa.Schema) -> pa.RecordBatch:  # noqa: ARG002 - as `JsonLines`
        """Arrow's readers read none of these rows."""
        raise pa.ArrowInvalid("documents are read one by one")

    def record(self, row: bytes, line: int, place: str) -> dict[str, Any]:  # noqa: ARG002 - as `JsonLines`
        """What is made of an object; InputFileError if it cannot be taken, ValueError says why these bytes are none."""
        document, has_repeated = object_of(row)
        if has_repeated:
            refuse_repeated(document)
        return self._row_of(document, place)


def object_of(row: bytes) -> tuple[dict[str, Any], bool]:
    """The object that a line is, and whether there may be `Repeated` ones in it; ValueError for another value."""
    if row.lstrip().startswith(b"["):
        raise ValueError("list where an object must be; of a file that is one list, `jq -c '.[]'` makes JSON Lines")
    record, has_repeated = parsed(row)
    if not isinstance(record, dict):
        raise ValueError(f"{type(record).__name__} where an object must be")
    return record, has_repeated


def _whole_lines(read: Read) -> Iterator[bytes]:
    """The bytes of a stream in blocks that end where a line ends: those of the lines that are at hand."""
    begun: list[bytes] = []
    while more := read(BLOCK_BYTES):
        end = more.rfind(b"\n") + 1
        if end:
            yield b"".join((*begun, more[:end]))
            begun = []
        if end < len(more):
            begun.append(more[end:])
    if begun:
        yield b"".join((*begun, b"\n"))


def json_blocks(read: Read) -> Iterator[Block]:
    """The lines of a stream: those that are at hand."""
    for data in _whole_lines(read):
        array = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(array == ord("\n")) + 1
        begins = np.append(0, ends[:-1])
        odd = _no_objects(data, array, begins, ends) | _nested(array, ends) | _no_utf8(data, begins, ends)
        yield block_of(data, begins, ends, np.arange(len(ends)), odd, len(ends))


def _no_objects(data: bytes, array: U8Array, begins: I64Array, ends: I64Array) -> BoolArray:
    """Lines that do not begin and end as an object: Arrow's reader may crash, or take several for one row."""
    last = array[np.maximum(ends - 2, 0)]
    last = np.where(last == ord("\r"), array[np.maximum(ends - 3, 0)], last)
    odd: BoolArray = (array[begins] != ord("{")) | (last != ord("}"))
    for place in np.flatnonzero(odd).tolist():
        line = data[begins[place] : ends[place]].strip(b" \t\r\n")
        odd[place] = not (line.startswith(b"{") and line.endswith(b"}"))
    return odd


def _nested(array: U8Array, ends: I64Array) -> BoolArray:
    """Lines in which so much begins that it may be nested too deeply."""
    opening = np.flatnonzero((array | 0x20) == ord("{"))  # which `[` becomes, too
    longest = np.diff(ends, prepend=0).max(initial=0)
    if len(opening) <= MOST_NESTED or (opening[MOST_NESTED:] - opening[:-MOST_NESTED]).min() >= longest:
        return np.zeros(len(ends), np.bool_)
    odd: BoolArray = np.diff(np.searchsorted(opening, ends), prepend=0) > MOST_NESTED
    return odd


def _no_utf8(data: bytes, begins: I64Array, ends: I64Array) -> BoolArray:
    """Lines that are no UTF-8."""
    odd = np.zeros(len(ends), np.bool_)
    if not data.isascii():
        try:
            utf8_text(data)
        except ValueError:
            for place, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
                try:
                    utf8_text(data[begin:end])
                except ValueError:
                    odd[place] = True
    return odd


def _read(data: bytes | memoryview, schema: pa.Schema, others: str) -> pa.Table:
    """The columns of a schema and, if they must be inferred, others."""
    read = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parse = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
    with threads_of_arrow():
        return pa_json.read_json(pa.BufferReader(data), read, parse)


def json_lists(texts: pa.Array, kind: pa.ListType) -> pa.Array:
    """Lists of strings, each of a JSON text; some that are none are errors, but not all."""
    if not pc.all(pc.match_substring_regex(texts, _PLAIN_LIST)).as_py():
        return pa.array([read_json(text, "a cell") for text in texts.to_pylist()], kind)
    lines = pc.binary_join_element_wise('{"list":', texts, "}\n", "")
    return _read(text_of(lines.cast(_TEXT)), pa.schema([("list", kind)]), "error")["list"].combine_chunks()


def tag_lines(texts: Sequence[bytes], kind: pa.ListType) -> pa.Array | None:
    """The tags of texts, each an object with `tags` alone; `None` if some may be another text, or an odd one."""
    data, more = b"\n".join(texts), len(texts) - 1
    if not data.startswith(b"{") or not data.endswith(b"}") or data.count(b"{") - 1 != more:
        return None
    if data.count(b"}\n{") != more or data.count(b"\n") != more or b"\\u" in data or b"\0" in data:
        return None
    try:
        utf8_text(data)
        found = _read(data, pa.schema([("tags", kind)]), "error")["tags"].combine_chunks()
    except (ValueError, pa.ArrowException):
        return None
    return None if len(found) != len(texts) or found.null_count or found.flatten().null_count else found


def json_values(values: pa.Array) -> pa.Array:
    """JSON text, on one line, of numbers, times, strings, and lists and structs of these; decimals are strings.

    Nulls stay null, and so do NaN and infinities, which have no form in JSON.
    """
    kind = values.type
    if pa.types.is_list(kind):  # itself without nulls
        within = json_values(values.flatten()).fill_null("null")
        lists = pa.ListArray.from_arrays(pc.subtract(values.offsets, values.offsets[0]), within)
        return concatenated("[", pc.binary_join(lists, pa.scalar(",", _TEXT)), "]")
    if pa.types.is_struct(kind):
        fields = pa.RecordBatch.from_arrays(values.flatten(), schema=pa.schema(list(kind)))
        return pc.if_else(values.is_valid(), _objects(fields, with_nulls=False), pa.scalar(None, _TEXT))
    if pa.types.is_dictionary(kind):
        return json_values(values.cast(kind.value_type))
    if kind == TIME:
        return concatenated('"', time_texts(values), '"')
    if pa.types.is_floating(kind):
        values = pc.replace_with_mask(values, pc.invert(pc.is_finite(values)).fill_null(False), pa.scalar(None, kind))
    texts = values.cast(_TEXT)
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):  # readers would take digits from a number
        return concatenated('"', texts, '"')
    if not is_text(kind):
        return texts
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    odd = pc.match_substring_regex(texts, _CONTROL).fill_null(False)
    others = [json.dumps(text, ensure_ascii=False) for text in texts.filter(odd).to_pylist()]
    return pc.replace_with_mask(concatenated('"', escaped, '"'), odd, pa.array(others, _TEXT))


def object_lines(rows: pa.RecordBatch, *, with_nulls: bool = False) -> memoryview:
    """Rows as JSON Lines in UTF-8; without nulls, a row has none of its columns that are null."""
    return text_of(concatenated(_objects(rows, with_nulls=with_nulls), "\n"))


def _objects(rows: pa.RecordBatch, *, with_nulls: bool) -> pa.Array:
    members = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        texts = json_values(column)
        texts = texts.fill_null("null") if with_nulls else texts
        members.append(concatenated(f"{json.dumps(name, ensure_ascii=False)}:", texts))
    joined = pc.binary_join_element_wise(*members, pa.scalar(",", _TEXT), null_handling="skip")
    return concatenated("{", joined, "}")


def time_texts(times: pa.Array) -> pa.Array:
    """Times as they are read of text, such as 2027-01-31T12:00:00.000000Z."""
    return pc.strftime(times, "%Y-%m-%dT%H:%M:%SZ")


def concatenated(*parts: str | pa.Array) -> pa.Array:
    """Texts, row by row one after the other; a `str` is the same in every row."""
    texts = (pa.scalar(part, _TEXT) if isinstance(part, str) else part.cast(_TEXT) for part in parts)
    return pc.binary_join_element_wise(*texts, pa.scalar("", _TEXT))


def text_of(lines: pa.Array) -> memoryview:
    """What `concatenated` has made, row after row, in UTF-8."""
    if not len(lines):
        return memoryview(b"")
    _, offsets, data = lines.buffers()
    return memoryview(data)[: memoryview(offsets).cast("q")[len(lines)]]
