"""CSV: column names on the first line, then a row on each."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from tagmatch.files.columns import ATTRIBUTE_TAGS, EXPIRES, ID, Column, attribute_lists
from tagmatch.files.json_lines import OBJECTS, JsonLines, concatenated, json_values, objects_of, time_texts
from tagmatch.files.json_values import read_json
from tagmatch.locations import LOCATION
from tagmatch.messages import TAGS
from tagmatch.model.columns import shown
from tagmatch.model.errors import InputFileError, InvalidValueError
from tagmatch.model.expiry import TIME
from tagmatch.subscriptions import WHERE

#: Stands between the tags of a cell, unless it is a JSON list
TAG_SEPARATOR = "|"

#: What a cell is read as JSON for: a number, or how a text or a list begins
_JSON = re.compile(r'["\[]|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$')
_BOOLS = {"true": True, "false": False}


class CsvLines:
    """Rows as lines of CSV, a `LineFormat`; a cell that is to be text over several lines is none.

    A cell of `tags` that begins with `[` is a JSON list; in others, `|` stands between tags. An empty one cannot be
    used, unless the row has conditions or attributes: a value may be missing, or the empty set may be meant, which
    every query contains. Ids are strings; an empty cell has none, nor a condition or a time. Attributes, areas and
    locations are a JSON object, constraints a JSON list. Cells of a column that is one attribute are as `value_in`
    says.
    """

    name = "a line of CSV"
    ids = str

    def __init__(self, header: list[str], columns: tuple[Column, ...]) -> None:
        self._header = header
        self._names = frozenset(header)
        self._optional = [column.name for column in columns if column.is_optional and column.name in self._names]
        self._instead, self._needs_no_tags = next(
            (column.instead, column.is_optional) for column in columns if column.name == TAGS
        )
        self._attributes = [column.name for column in columns if _is_attribute(column.name, column.kinds[0])]
        self._integers = [column.name for column in columns if pa.types.is_integer(column.kinds[-1])]

    def batch(self, block: bytes, schema: pa.Schema) -> pa.RecordBatch:
        """As `LineFormat` says."""
        table = pa_csv.read_csv(
            pa.BufferReader(block),
            pa_csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=self._header),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(self._header, pa.string()),
                include_columns=[name for name in schema.names if name in self._names],
                strings_can_be_null=False,
            ),
        )
        (cells,) = table.combine_chunks().to_batches()
        return pa.record_batch([_values(cells, field) for field in schema], schema=schema)

    def record(self, line: bytes) -> dict[str, Any]:
        """As `LineFormat` says."""
        try:
            (cells,) = csv.reader([line.decode()], strict=True)
        except csv.Error as error:
            raise ValueError(str(error)) from None
        if len(cells) != len(self._header):
            raise ValueError(f"it has {len(cells)} cells, the first line {len(self._header)}")
        record: dict[str, Any] = dict(zip(self._header, cells, strict=True))
        if tags := record.get(TAGS):
            record[TAGS] = json.loads(tags) if tags.startswith("[") else tags.split(TAG_SEPARATOR)
        elif TAGS in record:
            if not (self._needs_no_tags or any(map(record.get, self._instead))):
                raise ValueError("its cell of tags is empty; write [] for the empty set")
            record[TAGS] = None
        for name in self._optional:
            record[name] = record[name] or None
        for name in (*OBJECTS, LOCATION):
            if name not in self._attributes and record.get(name):
                record[name] = json.loads(record[name])
        for name in self._attributes:
            try:
                record[name] = value_in(record[name])
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from None
        for name in self._integers:
            if record[name].strip().lstrip("-").isdigit():
                record[name] = int(record[name])
        return record

    def check_names(self, record: dict[str, Any], place: str) -> None:
        """Nothing: all lines have the columns of the first."""


def _values(cells: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """A column of text as one of another type."""
    if cells.schema.get_field_index(field.name) < 0:
        return pa.nulls(len(cells), field.type)
    texts = cells[field.name]
    if _is_attribute(field.name, field.type):
        cells = texts.dictionary_encode()
        try:
            rows = [{field.name: value_in(text)} for text in cells.dictionary.to_pylist()]
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from None
        return attribute_lists(rows).take(cells.indices)
    if field.name in (*OBJECTS, LOCATION):
        try:
            return objects_of([json.loads(text) if text else None for text in texts.to_pylist()], field)
        except json.JSONDecodeError as error:
            raise pa.ArrowInvalid(str(error)) from None
    if pa.types.is_list(field.type):
        return _tags(texts, field.type)
    if field.name in (ID.name, WHERE, EXPIRES.name):
        texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
    if pa.types.is_string(field.type):
        return texts
    return pc.utf8_trim_whitespace(texts).cast(field.type)


def _is_attribute(name: str, kind: pa.DataType) -> bool:
    """Whether a column of this type has the values of one attribute."""
    return name not in OBJECTS and bool(kind == ATTRIBUTE_TAGS)


def value_in(cell: str) -> Any:
    """The value of an attribute that a cell has: a number, a bool, a text; several in a JSON list; or none.

    Raises
    ------
    InvalidValueError
        It begins as a list or a text of JSON does, and is none.

    Examples
    --------
    >>> [value_in(cell) for cell in ("9.50", "007", "Rome", '"9"', "True", '["Rome", 7]', "")]
    [9.5, '007', 'Rome', '9', True, ['Rome', 7], None]
    """
    text = cell.strip()
    if _JSON.match(text):
        return read_json(text, shown(cell))
    return _BOOLS.get(text.lower(), cell) if text else None


def _tags(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    as_json = pc.starts_with(texts, "[")
    separated = pc.if_else(as_json, "", texts)
    lists = pc.split_pattern(separated, TAG_SEPARATOR).cast(kind)
    is_empty = pc.equal(texts, "")
    if pc.any(is_empty).as_py():
        rows = np.where(is_empty.to_numpy(zero_copy_only=False), -1, np.arange(len(texts)))
        lists = lists.take(pa.array(rows, mask=rows < 0))
    if not pc.any(as_json).as_py():
        return lists
    lines = pc.binary_join_element_wise('{"tags":', texts.filter(as_json), "}\n", "")
    parsed = JsonLines().batch(lines.buffers()[2].to_pybytes(), pa.schema([("tags", kind)]))["tags"]
    rows = np.flatnonzero(as_json.to_numpy(zero_copy_only=False))
    if len(parsed) != len(rows):
        raise pa.ArrowInvalid("a cell that begins with [ must be one JSON list")
    found = np.arange(len(texts))
    found[rows] = len(texts) + np.arange(len(rows))
    return pa.concat_arrays([lists, parsed]).take(pa.array(found))


def csv_cells(values: pa.Array) -> pa.Array:
    """Cells with integers, times, strings, or lists of strings as JSON; nulls are empty.

    Raises
    ------
    InvalidValueError
        A string is not on one line.
    """
    if pa.types.is_integer(values.type):
        return json_values(values)
    if values.type == TIME:
        return time_texts(values).fill_null("")
    texts = json_values(values) if pa.types.is_list(values.type) else values
    broken = pc.match_substring_regex(texts, "[\\r\\n]").fill_null(False).to_numpy(zero_copy_only=False)
    if broken.any():
        text = texts[int(np.argmax(broken))].as_py()
        raise InvalidValueError(
            f"{text!r} has a line break, which CSV has no form for here; write JSON Lines or Parquet"
        )
    return concatenated('"', pc.replace_substring(texts, '"', '""'), '"').fill_null("")


def header_of(blocks: Iterator[bytes]) -> tuple[list[str], bytes]:
    """The column names on the first line, and the other lines of its block."""
    first, _, others = next(blocks, b"").partition(b"\n")
    return next(csv.reader([first.decode("utf-8-sig", "replace")]), []), others


def require_columns(header: list[str], path: str, columns: tuple[Column, ...]) -> None:
    """See that there is each column that a file must have.

    Raises
    ------
    InputFileError
        One is missing.
    """
    names = frozenset(header)
    for column in columns:
        if column.is_missing(names):
            raise InputFileError(
                f"{path} has no column {column.choice}; its first line names {', '.join(map(repr, header)) or 'none'}"
            )
