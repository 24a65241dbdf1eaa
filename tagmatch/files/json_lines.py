"""JSON Lines: an object on each line."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from tagmatch.files.areas import area_structs
from tagmatch.files.columns import ATTRIBUTES, CONSTRAINTS, attribute_lists
from tagmatch.files.constraints import constraint_lists
from tagmatch.files.others import OtherColumns
from tagmatch.files.places import locations_of_json
from tagmatch.locations import LOCATION, WITHIN
from tagmatch.model.expiry import TIME
from tagmatch.subscriptions import AREA

# Wide, as text with escapes may be longer than what one array of the other kind can hold
_TEXT = pa.large_string()
#: Columns whose values may be of any type in each row, as Arrow's readers do not have them, and what makes them of JSON
OBJECTS: dict[str, Callable[[list[Any]], pa.Array]] = {
    ATTRIBUTES.name: attribute_lists,
    CONSTRAINTS.name: constraint_lists,
    AREA: area_structs,
    WITHIN: area_structs,
}
_NEEDS_ESCAPES = r'[\x00-\x1f"\\]'


class JsonLines:
    """Rows as JSON objects; a `LineFormat`.

    Parameters
    ----------
    others : OtherColumns, optional
        What becomes of columns that have no meaning; default: they are left aside.
    """

    name = "a JSON object"
    ids = None

    def __init__(self, others: OtherColumns | None = None) -> None:
        self._others = others

    def batch(self, block: bytes, schema: pa.Schema) -> pa.RecordBatch:
        """As `LineFormat` says."""
        for name in (*OBJECTS, LOCATION):
            if name in schema.names:
                place = schema.get_field_index(name)
                others = self.batch(block, schema.remove(place))
                objects = _objects(block, len(others), schema.field(place))
                columns = [*others.columns[:place], objects, *others.columns[place:]]
                return pa.RecordBatch.from_arrays(columns, schema=schema)
        # Of times, which would be taken for UTC without a zone, the text
        texts = pa.schema([(field.name, pa.string() if field.type == TIME else field.type) for field in schema])
        table = _read(block, texts, "ignore") if self._others is None else self._checked(block, texts, self._others)
        return (table if texts == schema else table.cast(schema)).combine_chunks().to_batches()[0]

    def _checked(self, block: bytes, schema: pa.Schema, others: OtherColumns) -> pa.Table:
        """The same, where no column is misspelt; InputFileError."""
        try:
            table = _read(block, schema, "infer")
            names = table.column_names
        except pa.ArrowException:  # values of another column may be of several types
            table, names = _read(block, schema, "ignore"), None
        if names is None or not others.leave_aside(names):
            for line in filter(bytes.strip, block.split(b"\n")):
                with contextlib.suppress(ValueError):  # a row over several lines, which is an error of its own
                    others.check(self.record(line), "a line")
        return table.select(schema.names)

    def record(self, line: bytes) -> dict[str, Any]:
        """As `LineFormat` says."""
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError(f"{type(record).__name__} where an object must be")
        return record

    def check_names(self, record: dict[str, Any], place: str) -> None:
        """As `LineFormat` says."""
        if self._others is not None:
            self._others.check(record, place)


def _read(block: bytes, schema: pa.Schema, others: str) -> pa.Table:
    """The columns of a schema and, if those are to be inferred, others."""
    read = pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    parse = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
    return pa_json.read_json(pa.BufferReader(block), read, parse)


def _objects(block: bytes, rows: int, field: pa.Field) -> pa.Array:
    """A column of any JSON."""
    # The name of the column, also where it is written with escapes
    if not re.search(rb'"%s"|\\u' % field.name.encode(), block):
        return pa.nulls(rows, field.type)
    try:
        found = [json.loads(line).get(field.name) for line in block.splitlines() if line.strip()]
    except json.JSONDecodeError:
        found = []
    if len(found) != rows:
        raise pa.ArrowInvalid("a row must be on one line, and alone on it")
    return objects_of(found, field)


def objects_of(values: list[Any], field: pa.Field) -> pa.Array:
    """A column of `OBJECTS` or of locations, of what JSON has."""
    return locations_of_json(values, field.type) if field.name == LOCATION else OBJECTS[field.name](values)


def json_values(values: pa.Array) -> pa.Array:
    """JSON text, on one line, of integers, times, strings or lists of strings; nulls, which no list has, stay null."""
    if pa.types.is_list(values.type):
        texts = json_values(values.flatten())
        lists = pa.ListArray.from_arrays(pc.subtract(values.offsets, values.offsets[0]), texts)
        return concatenated("[", pc.binary_join(lists, pa.scalar(",", _TEXT)), "]")
    if values.type == TIME:
        return concatenated('"', time_texts(values), '"')
    texts = values.cast(_TEXT)
    if pa.types.is_integer(values.type):
        return texts
    odd = pc.match_substring_regex(texts, _NEEDS_ESCAPES).fill_null(False)
    escaped = [json.dumps(text, ensure_ascii=False) for text in texts.filter(odd).to_pylist()]
    return pc.replace_with_mask(concatenated('"', texts, '"'), odd, pa.array(escaped, _TEXT))


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
