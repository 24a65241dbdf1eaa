"""Changes as bytes, and back: the header and the records of a log of staged changes, as `docs/format.md` has them.

A record is a header of 64 bytes and a body, which has the changes of one call in columns: chunks of rows, whose tags
are in tables of strings. A chunk with indices has a dictionary as its table, which other chunks may share; one without
has its table, with a string for each tag.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tagmatch.model.arrays import (
    I64Array,
    IntArray,
    Memo,
    Strings,
    TagLists,
    U8Array,
    U32Array,
    U64Array,
    offsets_of,
)
from tagmatch.model.arrow import from_strings
from tagmatch.model.asked import NOTHING_ASKED, Asked, AskedRows, checked_rows, unpacked
from tagmatch.model.change_counts import ALSO_PUT, REMOVE
from tagmatch.model.errors import IndexCorruptError, InvalidValueError, TagMatchError
from tagmatch.model.kernels.tag_table import areas_among, has_reserved
from tagmatch.model.options import KeyType
from tagmatch.model.tables import NEVER
from tagmatch.model.where.constraints import AREA_TAGS
from tagmatch.model.where.values import is_reserved

#: The newest that is read
LOG_VERSION = 5
LOG_HEADER_BYTES = 40
_LOG_MAGIC = b"TMl1"
_LOG_FIELDS = struct.Struct("<4sIQQQ")

MAGIC = b"TMr1"
HEADER_BYTES = 64

_REMOVED, _NAMED, _EXPIRING, _CONSTRAINED, _LOCATED, _OF_KEYS, _ASKED, _ASKED_TABLE = (1 << bit for bit in range(8))
# What readers of older logs would not notice, with the format version that has them refuse the log; the last one first
_VERSIONS = ((_OF_KEYS, 5), (_LOCATED, 4), (_CONSTRAINED, 3), (_EXPIRING, 2))

_FIELDS = struct.Struct("<4sIQQQQQ8s")
# Of a body with one chunk and one table
_ALL_COUNTS = struct.Struct("<9Q")
_ONE_CHUNK = struct.pack("<2Q", 1, 1)
_INDEXED = slice(48, 56)
_NO_INDICES = bytes(8)

# File systems write blocks of this size, or of a multiple
_BLOCK_BYTES = 512
# The least run of zeros that is taken for the rest of an empty block: no record's header has as many, even if damaged
_EMPTY_BYTES = 16

_U32_LIMIT = 2**32
# Records up to this size are joined with their neighbours when they are read, up to this many bytes
_SMALL_BYTES = 1 << 16
_JOINED_BYTES = 1 << 25


class LogHeader(NamedTuple):
    """The header of a log."""

    generation: int
    id: int
    before: int  # how many bytes of the log before were on disk
    version: int = 1  # that its records need at most

    @classmethod
    def of(cls, data: bytes) -> LogHeader | None:
        """The header with which a file begins, if it has its checksum."""
        fields = data[: _LOG_FIELDS.size]
        if not data.startswith(_LOG_MAGIC) or data[len(fields) : LOG_HEADER_BYTES] != xxhash.xxh3_64_digest(fields):
            return None
        _, version, generation, number, before = _LOG_FIELDS.unpack(fields)
        return cls(generation, number, before, version)

    def packed(self) -> bytes:
        """The header as bytes of the file."""
        fields = _LOG_FIELDS.pack(_LOG_MAGIC, self.version, self.generation, self.id, self.before)
        return fields + xxhash.xxh3_64_digest(fields)


class Record(NamedTuple):
    """Changes of one call, encoded, for any log."""

    kind: int
    rows: int  # how many changes
    nbytes: int  # of the body
    checksum: bytes  # of the body
    body: list[Any]  # buffers, some of them memory of the arrays that the record was made of

    @property
    def version(self) -> int:
        """The format version of the log that it needs at least."""
        return next((version for flag, version in _VERSIONS if self.kind & flag), 1)

    def sealed(self, log: int, number: int, on_disk: int) -> bytes:
        """The header of the record as number `number` of a log, with `on_disk` bytes known to be on disk."""
        fields = _FIELDS.pack(MAGIC, self.kind, log, number, on_disk, self.rows, self.nbytes, self.checksum)
        return fields + xxhash.xxh3_64_digest(fields)


class Header(NamedTuple):
    """The fields of the header of a record, in its order."""

    magic: bytes
    kind: int
    log: int
    number: int
    on_disk: int
    rows: int
    nbytes: int
    checksum: bytes

    @classmethod
    def of(cls, data: bytes, log: int) -> Header | None:
        """The header with which these bytes begin, if it is one of a record of this log and has its checksum."""
        fields = data[: _FIELDS.size]
        if not data.startswith(MAGIC) or xxhash.xxh3_64_digest(fields) != data[_FIELDS.size : HEADER_BYTES]:
            return None
        header = cls(*_FIELDS.unpack(fields))
        return header if header.log == log else None

    @property
    def key_type(self) -> KeyType:
        """The type of the record's keys."""
        return "string" if self.kind & _NAMED else "integer"


class Logged(NamedTuple):
    """Changes that were logged, oldest first, as `StagedChanges.extend` takes them; arrays have a value a row."""

    chunks: list[TagLists]
    keys: U64Array | Strings
    removed: U8Array  # what the row does: a kind of change
    expires: I64Array | None  # when the key expires; `None` if none does
    records: AskedRows  # what keys are put with


def sound_records(file: BinaryIO, log: LogHeader, size: int) -> Iterator[tuple[Header, bytes]]:
    """Records up to the first that is not sound, or the size; the file is then where the last one ends."""
    end = LOG_HEADER_BYTES
    number = 0
    file.seek(end)
    while header := Header.of(file.read(HEADER_BYTES), log.id):
        next_end = end + HEADER_BYTES + header.nbytes
        if header.number != number or next_end > size:
            break
        body = file.read(header.nbytes)
        if xxhash.xxh3_64_digest(body) != header.checksum:
            break
        yield header, body
        end = next_end
        number += 1
    file.seek(end)


def has_empty_block(data: bytes, begin: int) -> bool:
    """Whether the data, from byte `begin` of a file on, has an empty block, or the empty last part of one."""
    first = -begin % _BLOCK_BYTES
    if _EMPTY_BYTES <= first <= len(data) and not any(data[:first]):
        return True
    empty = bytes(_BLOCK_BYTES)
    return any(data.startswith(empty, place) for place in range(first, len(data) - _BLOCK_BYTES + 1, _BLOCK_BYTES))


# -- encoding ----------------------------------------------------------------------------------------------------------


def single_record(
    tags: list[str], key: int | str, *, removed: int, expires: int = NEVER, asked: Asked | None = None
) -> Record:
    """One change of a validated set and key; InvalidValueError if a tag or key has 4 GiB or more.

    `removed` and `asked` are as in `StagedChanges.append`; `expires` is in microseconds since 1970, UTC.
    """
    texts = [tag.encode() for tag in tags]
    data = b"".join(texts)
    count = len(texts)
    is_constrained = b"\0" in data and any(map(is_reserved, tags))
    is_located = is_constrained and any(tag.startswith(AREA_TAGS) for tag in tags)
    kind = (removed == REMOVE) * _REMOVED + is_constrained * _CONSTRAINED + is_located * _LOCATED
    time, name, end = b"", b"", b""
    if removed > REMOVE:
        kind += _OF_KEYS
        end = bytes([removed])
    if expires != NEVER:
        kind += _EXPIRING
        time = struct.pack("<q", expires)
    try:
        if isinstance(key, str):
            kind += _NAMED
            name = key.encode()
            lengths = struct.pack(f"<{count + 2}I", len(name), count, *map(len, texts))
        else:
            lengths = struct.pack(f"<Q{count + 1}I", key, count, *map(len, texts))
        if asked is not None:
            kind += _ASKED
            text = asked.packed()
            end += struct.pack("<I", len(text)) + text
        body = _ALL_COUNTS.pack(1, 1, len(name), 1, count, 0, 0, count, len(data)) + time + lengths + data + name + end
    except struct.error:
        raise _too_long() from None
    return Record(kind, 1, len(body), xxhash.xxh3_64_digest(body), [body])


def bulk_record(
    chunks: list[TagLists],
    keys: U64Array | Strings,
    *,
    removed: int | U8Array,
    expires: I64Array | None = None,
    records: AskedRows = NOTHING_ASKED,
) -> Record:
    """A change for each row of all chunks, as `StagedChanges.extend` takes them; errors as `single_record`."""
    counts: list[int] = []
    rows: list[U32Array] = []
    tables: list[Strings] = []
    dictionaries: dict[int, int] = {}
    for chunk in chunks:
        begin, end = int(chunk.offsets[0]), int(chunk.offsets[-1])
        rows.append(_lengths(chunk.offsets))
        table = len(tables)
        if chunk.indices is None:
            tables.append(Strings(chunk.tags.offsets[begin : end + 1], chunk.tags.data))
        else:
            rows.append(np.ascontiguousarray(chunk.indices[begin:end], "<u4"))
            table = dictionaries.setdefault(id(chunk.tags), table)  # which chunks may share
            if table == len(tables):
                tables.append(chunk.tags)
        counts += [len(chunk), end - begin, table, chunk.indices is not None]
    names = [keys] if isinstance(keys, Strings) else []
    lengths = [_lengths(strings.offsets) for strings in (*names, *tables)]
    # A dictionary may have constraints that no row has
    is_constrained = any(map(has_reserved, tables))
    is_located = is_constrained and any(areas_among(strings).any() for strings in tables)
    of_keys = not isinstance(removed, int) or removed > REMOVE
    kind = int(not of_keys and removed == REMOVE) * _REMOVED + of_keys * _OF_KEYS + (expires is not None) * _EXPIRING
    kind += (records.table is not None) * _ASKED_TABLE
    kind += is_constrained * _CONSTRAINED + is_located * _LOCATED
    data = [_used(strings) for strings in (*tables, *names)]
    for strings, text in zip(tables, data, strict=False):
        counts += [len(strings), len(text)]
    if names:
        kind += _NAMED
        columns = [lengths[0], *rows, *lengths[1:]]
    else:
        columns = [np.ascontiguousarray(keys, "<u8"), *rows, *lengths]
    times = [] if expires is None else [np.ascontiguousarray(expires, "<i8")]
    head = np.array([len(chunks), len(tables), len(data[-1]) if names else 0, *counts], "<u8")
    last: list[Any] = [np.full(len(keys), removed, np.uint8)] if of_keys else []
    if records.records is not None and records.table is not None:
        last += [np.ascontiguousarray(records.records, "<i8"), np.frombuffer(_packed(records.table), np.uint8)]
    body = [part for part in (head, *times, *columns, *data, *last) if part.nbytes]
    digest = xxhash.xxh3_64()
    for part in body:
        digest.update(part.data)
    return Record(kind, len(keys), sum(part.nbytes for part in body), digest.digest(), body)


def _packed(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _lengths(offsets: IntArray) -> U32Array:
    lengths = np.diff(offsets)
    if len(lengths) and int(lengths.max()) >= _U32_LIMIT:
        raise _too_long()
    return lengths.astype("<u4")


def _used(strings: Strings) -> U8Array:
    """The bytes of all strings, and no others."""
    return np.ascontiguousarray(strings.data[int(strings.offsets[0]) : int(strings.offsets[-1])])


def _too_long() -> InvalidValueError:
    return InvalidValueError(
        "a set has 2**32 or more tags, or a tag or key 4 GiB or more: it cannot be logged; split it"
    )


# -- decoding ----------------------------------------------------------------------------------------------------------


def decoded(records: Iterable[tuple[Header, bytes]], where: object) -> Iterator[Logged]:
    """The changes in records of the index `where`; small records that follow each other come as one chunk.

    IndexCorruptError: one has a right checksum, but holds no changes.
    """
    small: list[tuple[Header, bytes]] = []
    small_bytes = columns = 0
    try:
        for header, body in records:
            own_columns = header.kind & (_NAMED | _EXPIRING | _OF_KEYS | _ASKED)
            # It has one chunk, without indices, and one table
            is_small = len(body) <= _SMALL_BYTES and body.startswith(_ONE_CHUNK) and body[_INDEXED] == _NO_INDICES
            is_small &= not header.kind & _ASKED_TABLE
            if small and not (is_small and small_bytes < _JOINED_BYTES and own_columns == columns):
                yield _joined(small)
                small, small_bytes = [], 0
            if is_small:
                columns = own_columns
                small.append((header, body))
                small_bytes += len(body)
            else:
                yield _one(header, body)
        if small:
            yield _joined(small)
    except (ValueError, OverflowError, struct.error, pa.ArrowException) as error:
        if isinstance(error, TagMatchError | MemoryError):
            raise
        raise IndexCorruptError(
            f"the changes that are staged in {where} are none that tagmatch has logged: {error}; restore the index "
            "from a copy"
        ) from None


def _joined(records: list[tuple[Header, bytes]]) -> Logged:
    """Bodies with one chunk each, without indices, as one chunk: their columns are joined as bytes."""
    first = records[0][0]
    time_bytes, key_bytes = 8 * bool(first.kind & _EXPIRING), 4 if first.kind & _NAMED else 8
    of_keys, has_asked = bool(first.kind & _OF_KEYS), bool(first.kind & _ASKED)
    columns: list[list[bytes]] = [[] for _ in range(7)]
    add_times, add_keys, add_lengths, add_strings, add_data, add_names, add_kinds = (
        column.append for column in columns
    )
    asked: list[Asked | None] = []
    begin = _ALL_COUNTS.size
    for header, body in records:
        _, _, name_bytes, rows, tag_count, _, _, strings_count, data_bytes = _ALL_COUNTS.unpack_from(body)
        keys_at = begin + time_bytes * rows
        lengths_at = keys_at + key_bytes * rows
        strings_at = lengths_at + 4 * rows
        data_at = strings_at + 4 * tag_count
        names_at = data_at + data_bytes
        kinds_at = names_at + name_bytes
        asked_at = kinds_at + of_keys * rows
        if rows != header.rows or tag_count != strings_count or (len(body) != asked_at and not has_asked):
            raise ValueError("lengths do not fit")
        add_kinds(body[kinds_at:asked_at])
        if has_asked:
            asked += _asked_in(body[asked_at:], rows)
        add_times(body[begin:keys_at])
        add_keys(body[keys_at:lengths_at])
        add_lengths(body[lengths_at:strings_at])
        add_strings(body[strings_at:data_at])
        add_data(body[data_at:names_at])
        add_names(body[names_at:kinds_at])
    times, keys, lengths, strings, data, names, kinds = map(b"".join, columns)
    counts = np.array([header.rows for header, _ in records], np.int64)
    removed = np.repeat(np.array([header.kind & _REMOVED for header, _ in records], np.uint8), counts)
    tags = _strings(np.frombuffer(strings, "<u4"), np.frombuffer(data, np.uint8))
    named = first.kind & _NAMED
    return Logged(
        [TagLists(_offsets(np.frombuffer(lengths, "<u4"), len(tags)), tags)],
        _strings(np.frombuffer(keys, "<u4"), np.frombuffer(names, np.uint8)) if named else np.frombuffer(keys, "<u8"),
        _kinds(np.frombuffer(kinds, np.uint8)) if of_keys else removed,
        np.frombuffer(times, "<i8") if time_bytes else None,
        AskedRows.of(asked),
    )


def _kinds(kinds: U8Array) -> U8Array:
    if int(kinds.max(initial=0)) > ALSO_PUT:
        raise ValueError("a change is of no kind")
    return kinds


def _asked_in(data: bytes, rows: int) -> list[Asked]:
    """The texts that keys were put with, a length and a text for each row."""
    texts, place = [], 0
    for _ in range(rows):
        (length,) = struct.unpack_from("<I", data, place)
        place += 4 + length
        texts.append(data[place - length : place])
    if place != len(data):
        raise ValueError("lengths do not fit")
    return unpacked(texts)


def _one(header: Header, body: bytes) -> Logged:
    place = 0

    def take(dtype: str, count: int) -> npt.NDArray[Any]:
        """The next array of the body."""
        nonlocal place
        found = np.frombuffer(body, dtype, count, place) if count else np.zeros(0, dtype)
        place += found.nbytes
        return found

    chunk_count, table_count, name_bytes = take("<u8", 3).tolist()
    chunks = take("<u8", 4 * chunk_count).reshape(-1, 4).tolist()
    tables = take("<u8", 2 * table_count).reshape(-1, 2).tolist()
    times = take("<i8", header.rows) if header.kind & _EXPIRING else None
    keys: Any = take("<u4" if header.kind & _NAMED else "<u8", header.rows)
    rows = [(take("<u4", row_count), take("<u4", indexed * tags)) for row_count, tags, _, indexed in chunks]
    lengths = [take("<u4", count) for count, _ in tables]
    strings = [_strings(each, take("u1", size)) for each, (_, size) in zip(lengths, tables, strict=True)]
    if header.kind & _NAMED:
        keys = _strings(keys, take("u1", name_bytes))
    kinds = np.full(header.rows, header.kind & _REMOVED, np.uint8)
    if header.kind & _OF_KEYS:
        kinds = _kinds(take("u1", header.rows))
    asked = NOTHING_ASKED
    if header.kind & _ASKED_TABLE:
        asked = checked_rows(AskedRows(take("<i8", header.rows), pa.ipc.open_stream(body[place:]).read_all()))
        place = len(body)
    elif header.kind & _ASKED:
        asked = AskedRows.of(_asked_in(body[place:], header.rows))
        place = len(body)
    if place != len(body) or sum(row_count for row_count, *_ in chunks) != header.rows:
        raise ValueError("lengths do not fit")
    memos = [Memo() for _ in tables]
    found = []
    for (row_lengths, indices), (_, tag_count, table, indexed) in zip(rows, chunks, strict=True):
        if table >= len(strings) or (indexed and len(indices) and int(indices.max()) >= len(strings[table])):
            raise ValueError("a tag is in no table")
        if not indexed and tag_count != len(strings[table]):
            raise ValueError("lengths do not fit")
        offsets = _offsets(row_lengths, tag_count)
        found.append(TagLists(offsets, strings[table], indices if indexed else None, memos[table]))
    return Logged(found, keys, kinds, times, asked)


def _strings(lengths: U32Array, data: U8Array) -> Strings:
    strings = Strings(_offsets(lengths, len(data)), data)
    from_strings(strings).validate(full=True)  # that it is UTF-8
    return strings


def _offsets(lengths: U32Array, count: int) -> I64Array:
    """Offsets of lists of these lengths, which have `count` things in all."""
    offsets: I64Array = offsets_of(lengths)
    if offsets[-1] != count:
        raise ValueError("lengths do not fit")
    return offsets
