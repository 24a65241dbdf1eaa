"""Formats of files: by name, or by the suffix of a path.

Rows whose values have been read one by one, as columns: of whatever type a value may have in each row.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa

from tagmatch.files.columns import ATTRIBUTE_TAGS, ATTRIBUTES, CONSTRAINTS, attribute_lists
from tagmatch.files.conditions import area_structs, constraint_lists, locations_of_json
from tagmatch.locations import LOCATION, WITHIN
from tagmatch.model.errors import InputFileError, InvalidValueError
from tagmatch.model.expiry import TIME
from tagmatch.subscriptions import AREA

STANDARD_STREAM = "-"

_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_OPEN_ALREADY = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")

JSON_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json"})
PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})
CSV_SUFFIXES = frozenset({".csv"})
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


class Kind(StrEnum):
    """What a file holds, by the name that messages give it."""

    json_lines = "JSON Lines"
    csv = "CSV"
    parquet = "Parquet"


@dataclass(frozen=True, slots=True)
class Format:
    """How rows are written in a file."""

    kind: Kind
    compression: str | None = None  # Of the whole file


JSON_LINES = Format(Kind.json_lines)


class FormatName(StrEnum):
    """The formats, as a command line takes them."""

    jsonl = "jsonl"
    jsonl_gz = "jsonl.gz"
    jsonl_zst = "jsonl.zst"
    csv = "csv"
    csv_gz = "csv.gz"
    csv_zst = "csv.zst"
    parquet = "parquet"


def format_of(path: str, name: str | None = None) -> Format:
    """The format called `name`, or that of the path; streams are JSON Lines."""
    if not (path or name):
        raise InvalidValueError("the name of a file is empty; give a path, or - for a standard stream")
    found = format_of_suffix(Path(f"-.{name}" if name else path))
    if found is None and is_stream(path):
        return JSON_LINES
    if found is None:
        raise InputFileError(
            f"{path}: cannot tell the format; the name must end in {_known_suffixes()}, or give the format"
        )
    return found


def format_of_suffix(path: Path) -> Format | None:
    """The format of a path by its suffix alone; `None` if it is not known."""
    suffix, compression = path.suffix.lower(), None
    if suffix in _COMPRESSIONS:
        suffix, compression = Path(path.stem).suffix.lower(), _COMPRESSIONS[suffix]
    if suffix in JSON_SUFFIXES:
        return Format(Kind.json_lines, compression)
    if suffix in CSV_SUFFIXES:
        return Format(Kind.csv, compression)
    if suffix in PARQUET_SUFFIXES and compression is None:
        return Format(Kind.parquet)
    return None


def open_already(path: str, standard: int) -> int | None:
    """The descriptor of that path, where this process has it open."""
    if path == STANDARD_STREAM:
        return standard
    found = _OPEN_ALREADY.fullmatch(path)
    return int(found[1]) if found else _STANDARD.get(path)


def is_stream(path: str) -> bool:
    """Whether bytes at the path come and go in order: standard streams, what is open already, pipes and devices."""
    if path == STANDARD_STREAM or open_already(path, 0) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _known_suffixes() -> str:
    plain = ", ".join(sorted(PARQUET_SUFFIXES | JSON_SUFFIXES | CSV_SUFFIXES))
    return f"{plain} (all but Parquet also with {' or '.join(_COMPRESSIONS)})"


#: Columns whose values may be of any type in each row, as Arrow's readers do not have them, and what makes them of JSON
OBJECTS: dict[str, Callable[[list[Any]], pa.Array]] = {
    ATTRIBUTES.name: attribute_lists,
    CONSTRAINTS.name: constraint_lists,
    AREA: area_structs,
    WITHIN: area_structs,
}


def is_attribute(field: pa.Field) -> bool:
    """Whether a column of this type has the values of one attribute."""
    return bool(field.type == ATTRIBUTE_TAGS) and field.name != ATTRIBUTES.name


def is_object(field: pa.Field) -> bool:
    """Whether a column has objects, or lists of them."""
    return field.name in (*OBJECTS, LOCATION) and not is_attribute(field)


def objects_of(values: list[Any], field: pa.Field) -> pa.Array:
    """A column of `OBJECTS` or of locations, of what JSON has."""
    return locations_of_json(values, field.type) if field.name == LOCATION else OBJECTS[field.name](values)


def columns_of(records: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The columns of rows, by name; a row may lack some."""
    columns = [_column([row.get(field.name) for row in records], field) for field in schema]
    return pa.record_batch(columns, schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    if is_attribute(field):
        return attribute_lists([{field.name: value} for value in values])
    if is_object(field):
        return objects_of(values, field)
    if field.type == TIME:
        return pa.array(values, pa.string()).cast(TIME)
    return pa.array(values, field.type)
