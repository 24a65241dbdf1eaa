"""Files of rows with mistakes in them: rows are used or refused in words, each as if it were alone."""

import csv
import io
import json
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from faults.driver import Case, Length, Program
from faults.mutations import mutated
from support.command import as_csv

from tagmatch import TagMatch, TagMatchError
from tagmatch.files import formats
from tagmatch.files.columns import EVERY_OTHER, InvalidRows
from tagmatch.files.formats import Read, at_hand
from tagmatch.files.rows import read_queries, read_sets

_BLANK = b" \t\r\n"
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
_WHOLE = 1 << 23
_STEPS = (_WHOLE, _WHOLE, 37, 400)

QUERIES: list[dict[str, Any]] = [
    {"id": 1, "tags": ["a", "b"]},
    {"tags": [], "attributes": {"x": 1, "city": ["Rome", 7], "new": True}},
    {"id": 3, "tags": ["\u00e9\U0001f600", "c\nd", 'say "so"', "[b"], "attributes": {}},
    {"id": 4, "tags": ["a"], "attributes": {"x": 2.5, "text": "\u20ac"}},
    {"id": None, "tags": ["a|b", "\0"]},
    {"tags": ["a"], "location": {"lon": 9.5, "lat": 45.5}, "within": "circle(9, 45, 500)"},
    {"tags": [], "location": [[9, 45], [10, 46]], "within": {"lon": 9, "lat": 45, "metres": 5}},
]
SETS: list[dict[str, Any]] = [
    {"key": 1, "tags": ["a"]},
    {"key": 2**64 - 1, "tags": ["b", "\u00e9"], "where": 'x < 1 and city = "Rome"'},
    {"key": 3, "tags": ["c\nd", 'say "so"', "[b"]},
    {"key": 4, "where": "new = true", "size": 7, "name": "\u00e9"},
    {"key": 5, "tags": [], "constraints": [{"attr": "x", "op": "in", "values": [1]}], "since": "2026-11-28"},
    {"key": 6, "tags": [], "constraints": [{"attr": "x", "op": "=", "value": {"int": 1}}], "price": "1.50"},
    {"key": 7, "tags": [], "area": {"type": "Polygon", "coordinates": [[[9, 45], [10, 45], [9, 46], [9, 45]]]}},
    {"key": 8, "tags": [], "area": {"metres": 500}},
]
_DATA = {"size": pa.int64(), "name": pa.string(), "price": pa.decimal128(10, 2), "since": pa.date32()}
_TOKENS = [
    b'"', b'""', b"\n", b"\r", b"\r\n", b",", b"|", b"[", b"]", b"{", b"}", b":", b" ", b"\0", b"\xff", b"\xed\xa0\x80",
    b"null", b"1e400", b"-0", b"NaN", b"true", b"\\u0000", b"\\ud800", b"\xef\xbb\xbf", b"[" * 70, b"0x10",
    b"\xc3\xa9", b"18446744073709551616", b'"id":"x",', b'"tags":["a"],', b'"other":[1,{"a":1}],', b"{}", b"9" * 5000,
    b"\\", b"\n\n",
]  # fmt: skip


class File(NamedTuple):
    """A file: its format, whether it has queries or sets, and its bytes."""

    form: str
    what: str
    data: bytes


def corpus(form: str) -> list[File]:
    """Sound files of a format: some with few rows, some with many."""
    write, ways = _WAYS[form]
    rows = {"queries": QUERIES, "sets": SETS}
    some = [(what, part) for what, all_ in rows.items() for part in (all_[:1], all_, all_ * 6)]
    return [File(form, what, write(part, what, **way)) for what, part in some for way in ways]


def _json(rows: list[dict[str, Any]], _: str, **options: Any) -> bytes:
    return "".join(json.dumps(row, **options) + "\n" for row in rows).encode()


def _parquet(rows: list[dict[str, Any]], what: str, **options: Any) -> bytes:
    kinds: dict[str, pa.DataType] = {"tags": pa.list_(pa.string())}
    if what == "queries":
        kinds |= {"id": pa.int64(), "attributes": pa.struct({"x": pa.float64(), "text": pa.string()})}
    else:
        kinds |= {"key": pa.uint64(), "where": pa.string(), "size": pa.int64(), "name": pa.string()}
    plain, out = [{name: row.get(name) for name in kinds} for row in rows], io.BytesIO()
    table = pa.Table.from_pylist(plain, pa.schema(list(kinds.items())))
    pq.write_table(table, out, write_page_checksum=True, row_group_size=100, **options)
    return out.getvalue()


def _csv(rows: list[dict[str, Any]], _: str, bars: bool, end: bytes) -> bytes:
    """Tags are JSON, or have bars between them, if no tag has a zero byte."""
    given = [
        each if bars and "\0" not in each.get("tags", ()) else {**each, "tags": [json.dumps(each.get("tags"))]}
        for each in rows
    ]
    return as_csv(given).replace(b"\n", end)


#: By format, how it is written, and with which options
_WAYS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "jsonl": (_json, [{"separators": (",", ":")}, {"ensure_ascii": False}]),
    "csv": (_csv, [{"bars": each == b"\r\n", "end": each} for each in (b"\n", b"\r\n", b"\r")]),
    "parquet": (_parquet, [
        {"compression": "none", "use_dictionary": False}, {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "snappy", "write_statistics": False},
    ]),
}  # fmt: skip


def spoiled(files: list[File], rnd: random.Random) -> File:
    file = rnd.choice(files)
    data = file.data
    if file.form == "parquet" or rnd.random() < 0.3:
        return file._replace(data=mutated(rnd, data))
    changed = bytearray(data)
    for _ in range(rnd.choice((0, 1, 1, 1, 2, 3, 6))):
        place = rnd.randrange(len(changed) + 1)
        length = rnd.choice((0, 0, 0, 1, 1, 4, 40))
        changed[place : place + length] = rnd.choice((*_TOKENS, b"", bytes(changed[place : place + rnd.randrange(99)])))
    return file._replace(data=bytes(changed))


class Reading:
    """Files are read as commands read them, with and without `--skip-invalid`, and their rows are used."""

    def __init__(self, form: str) -> None:
        self.files = corpus(form)
        self._step = _WHOLE
        self._index = TagMatch(threads=1, device="cpu")
        self._index.add_sets([["a"], [], ["b"]], [1, 2, 3], where=["x > 0", None, None])
        self._index.consolidate()
        self._index.match_many([["a"]])
        for file in self.files:
            with tempfile.TemporaryDirectory() as folder:
                assert self._outcome(file, Path(folder)) == "whole"

    def outcome(self, folder: Path, rnd: random.Random) -> str:
        """Read a spoiled file; returns how that ended, and raises if that is wrong."""
        self._step = rnd.choice(_STEPS)
        file = spoiled(self.files, rnd)
        return f"{file.form} {self._outcome(file, folder)}"

    def _at_hand(self, descriptor: int, name: str) -> Read:
        """Bytes as they come from a pipe, in parts."""
        read, step = at_hand(descriptor, name), self._step
        return lambda size: read(min(size, step))

    def _outcome(self, file: File, folder: Path) -> str:
        stored = folder / f"{file.what}.{file.form}"
        stored.write_bytes(file.data)
        with patch.object(formats, "at_hand", self._at_hand):
            kept, said, is_refused = self._read(str(stored), file.what, skip=True)
            strict, first, is_strict_refused = self._read(str(stored), file.what, skip=False)
        assert strict == kept[: len(strict)]
        if not is_refused and not said:
            assert (strict, first, is_strict_refused) == (kept, [], False)
        else:
            assert is_strict_refused
            assert len(first) <= 1
        if file.form != "parquet":
            self._check_one_by_one(file, stored, kept, len(said), is_refused)
        return "refused" if is_refused else "rows skipped" if said else "whole"

    def _check_one_by_one(self, file: File, stored: Path, kept: list[Any], others: int, is_refused: bool) -> None:
        """See that rows are what they are alone; but ids are all of one type, that of the first."""
        rows = list(_rows_in(file.data, file.form))
        header = rows.pop(0) if file.form == "csv" and rows else b'{"tags":[],"key":0}\n'
        wanted, wanted_others, types = [], 0, set[type]()
        _, _, is_no_file = self._alone(file, stored, header or b"")
        assert is_refused == (is_no_file or file.data.startswith(_OTHER_ENCODINGS))
        for number, row in enumerate([] if is_refused else rows):
            found, said, _ = self._alone(file, stored, header, row)
            found = found[0 if file.form == "csv" else 1 :]
            assert len(found) + len(said) == 1, f"{row!r} is not one row"
            if found and file.what == "queries":
                ((_, name, tags),) = found
                types |= {type(name)} - {type(None)} if not types else set()
                found = [(number, name, tags)] if name is None or type(name) in types else []
            wanted += found
            wanted_others += not found
        assert kept == wanted, _first_difference(kept, wanted)
        assert is_refused or others == wanted_others

    def _alone(self, file: File, stored: Path, *rows: bytes | None) -> tuple[list[Any], list[str], bool]:
        if None in rows:  # not a row of CSV
            return [], [""], False
        stored.write_bytes(b"".join(rows))
        return self._read(str(stored), file.what, skip=True)

    def _read(self, path: str, what: str, *, skip: bool) -> tuple[list[tuple[Any, ...]], list[str], bool]:
        """The rows, the remarks on others, and whether an error ended it."""
        invalid, rows, said = InvalidRows(skip=skip), [], list[str]()
        invalid.found = lambda error, found=invalid.found: (said.append(str(error)), found(error))  # type: ignore
        try:
            if what == "queries":
                for batch in read_queries(path, invalid=invalid, ignored=EVERY_OTHER):
                    rows += zip(*(batch[name].to_pylist() for name in ("row", "id", "tags")), strict=True)
                    assert len(self._index.match_many(batch["tags"])) == len(batch)
            else:
                for batch in read_sets(path, invalid=invalid, data=_DATA):
                    wheres = batch["where"] if "where" in batch.schema.names else pa.nulls(len(batch))
                    columns = (each.to_pylist() for each in (batch["key"], batch["tags"], wheres))
                    rows += zip(*columns, strict=True)
        except TagMatchError as error:
            _in_words(str(error), path)
            return rows, said, True
        except MemoryError:  # as the file says that it has so much
            return rows, said, True
        for text in said:
            _in_words(text, path)
        return rows, said, False


def _in_words(text: str, path: str) -> None:
    assert path in text, text
    assert "\n" not in text, text


def _rows_in(data: bytes, form: str) -> Iterator[bytes | None]:
    """Lines that are not blank, or what Python takes for rows of CSV, the header first; `None` for what it refuses."""
    if form == "jsonl":
        yield from (line + b"\n" for line in data.split(b"\n") if line.strip(_BLANK))
        return
    taken: list[str] = []
    lines = re.findall("[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", data.decode("utf-8", "surrogateescape"))
    reader = csv.reader((taken.append(line) or line for line in lines), strict=True)  # type: ignore[func-returns-value]
    while True:
        taken.clear()
        try:
            next(reader)
            is_row = True
        except StopIteration:
            return
        except csv.Error:
            is_row = False
        raw = "".join(taken).encode("utf-8", "surrogateescape")
        if raw.strip(_BLANK) or not is_row:
            yield raw if is_row else None


def _first_difference(kept: list[Any], wanted: list[Any]) -> str:
    pairs = enumerate(zip(kept, wanted, strict=False))
    at = next((place for place, (one, other) in pairs if one != other), min(len(kept), len(wanted)))
    one, other = (ascii(rows[at : at + 1])[:200] for rows in (kept, wanted))
    return f"of {len(kept)} and {len(wanted)} rows the first other one: {one} for {other}"


def _cases(rounds: int, _: Path, __: random.Random) -> Iterator[Case]:
    for form in ("jsonl", "csv", "parquet"):
        reading = Reading(form)
        yield from (Case(form, str(number), reading.outcome) for number in range(rounds))


PROGRAM = Program(
    _cases, Length(100, 1_000), hangs_s=30, in_a_process=2_000,
    wanted=("jsonl whole", "jsonl rows skipped", "csv rows skipped", "parquet refused"),
)  # fmt: skip
