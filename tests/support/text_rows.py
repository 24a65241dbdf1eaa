"""Which rows files of text have, by Python's own readers: one JSON text a line, or CSV in strict form."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tagmatch import FilterError
from tagmatch.model.filters.language import rows_of

_BLANK = " \t\r\n"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class NoFile(Exception):  # noqa: N818 - nothing of it can be read
    """The file cannot be used at all."""


class Found(NamedTuple):
    """The rows that can be used, by number, with their values; and how many others there are."""

    rows: list[tuple[int, tuple[Any, ...]]]
    others: int


def rows_in(data: bytes, form: str, what: str) -> Found:
    """The rows of `queries`, with `id`, `tags` and `attributes`, or of `sets`, with `key`, `tags` and `where`.

    Raises
    ------
    NoFile
        It cannot be used.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        raise NoFile
    usable, others, kinds = [], 0, set()
    for number, record in enumerate(_json_records(data) if form == "jsonl" else _csv_records(data, what)):
        try:
            if record is None:
                raise ValueError
            row = _query(record) if what == "queries" else _stored(record)
            if what == "queries" and row[0] is not None:
                if kinds - {type(row[0])}:
                    raise ValueError
                kinds.add(type(row[0]))
            usable.append((number, row))
        except ValueError:
            others += 1
    return Found(usable, others)


# -- values ------------------------------------------------------------------------------------------------------------


def _query(record: dict[str, Any]) -> tuple[Any, ...]:
    name, tags, attributes = (record.get(column) for column in ("id", "tags", "attributes"))
    if isinstance(name, bool) or not isinstance(name, int | str | None):
        raise ValueError
    if isinstance(name, int) and not -(2**63) <= name < 2**64:
        raise ValueError
    if tags is None and attributes is None:
        raise ValueError
    _of(attributes or {}, dict)
    kept = {}
    for attribute, given in (attributes or {}).items():
        if not attribute or "\0" in attribute:
            raise ValueError
        for value in given if isinstance(given, list) else [given]:
            if not isinstance(value, bool | int | float | str | None):
                raise ValueError
            if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
                raise ValueError
        kept[attribute] = given
    if attributes is not None and not isinstance(attributes, dict):
        raise ValueError
    return name, _texts(tags), kept


def _stored(record: dict[str, Any]) -> tuple[Any, ...]:
    key, tags, where = (record.get(column) for column in ("key", "tags", "where"))
    if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < 2**64:
        raise ValueError
    if where is not None:
        try:
            rows_of(_of(where, str))
        except FilterError:
            raise ValueError from None
    elif tags is None:
        raise ValueError
    if any(re.match("\0[+=-]", tag) for tag in _texts(tags)):
        raise ValueError
    return key, _texts(tags), where


def _texts(tags: Any) -> list[str]:
    return [_of(tag, str) for tag in _of([] if tags is None else tags, list)]


def _of(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError
    return value


# -- JSON --------------------------------------------------------------------------------------------------------------


class _Twice(dict[str, Any]):
    names: set[str]


def _json_records(data: bytes) -> Iterator[dict[str, Any] | None]:
    for line in data.split(b"\n"):
        if line.strip(_BLANK.encode()):
            try:
                yield _of(json_value(line.decode()), dict)
            except ValueError:
                yield None


def json_value(text: str) -> Any:
    """The value of a text; ValueError."""
    text = text.removeprefix("\ufeff").strip(_BLANK)
    if "\0" in text:
        raise ValueError
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise ValueError from None
    _check(value, 0, is_row=True)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = _Twice(pairs)
    names = [name for name, _ in pairs]
    found.names = {name for name in names if names.count(name) > 1}
    return found


def _constant(name: str) -> Any:
    raise ValueError(name)


def _check(value: Any, depth: int, *, is_row: bool = False, is_known: bool = True) -> None:
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, list | dict):
        if depth == 64:
            raise ValueError
        if isinstance(value, _Twice):
            known = value.names & {"id", "key", "tags", "attributes", "where", "location", "within"}
            if known if is_row else value.names and is_known:
                raise ValueError
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(name, str):
                name.encode()
            known = is_known if not is_row else name in ("id", "key", "tags", "attributes", "where")
            _check(inner, depth + 1, is_known=known)


# -- CSV ---------------------------------------------------------------------------------------------------------------


def _csv_records(data: bytes, what: str) -> Iterator[dict[str, Any] | None]:
    rows = _csv_rows(data.decode("utf-8", "surrogateescape"))
    header = next(rows, [])
    needed = ("tags", "attributes") if what == "queries" else ("tags", "where")
    known = ("id", "tags", "attributes") if what == "queries" else ("key", "tags", "where")
    if not header:
        raise NoFile
    header[0] = header[0].removeprefix("\ufeff")
    if any(name != name.strip() for name in header) or (len(header) == 1 and {*header[0]} & {*";\t"}):
        raise NoFile
    if set(header).isdisjoint(needed) or (what == "sets" and "key" not in header):
        raise NoFile
    if any(header.count(name) > 1 for name in known):
        raise NoFile
    for cells in rows:
        if cells is None or len(cells) != len(header):
            yield None
            continue
        record: dict[str, Any] = {name: cell for name, cell in zip(header, cells, strict=True) if name in known}
        try:
            yield _of_cells(record)
        except ValueError:
            yield None


def _of_cells(record: dict[str, Any]) -> dict[str, Any]:
    for name, cell in record.items():
        if name == "key":
            record[name] = int(cell.strip()) if re.fullmatch("-?[0-9]+", cell.strip()) else cell
        elif cell == "":
            record[name] = None
        elif name == "attributes" or (name == "tags" and cell.startswith("[")):
            record[name] = json_value(cell)
            _check(record[name], 0)
        elif name == "tags":
            record[name] = cell.split("|")
    return record


def _csv_rows(text: str) -> Iterator[list[str] | None]:
    """The cells of rows, `None` for one that is none; UnicodeEncodeError is a ValueError."""
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in re.findall("[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text):
            taken.append(line)
            yield line

    reader = csv.reader(lines(), strict=True)
    while True:
        taken.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield None
            continue
        raw = "".join(taken)
        if raw.strip(_BLANK):
            is_text = "\0" not in raw and not re.search("[\ud800-\udfff]", raw)
            yield cells if is_text else None
