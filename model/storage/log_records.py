"""Changes as bytes, and back: the records of a log of staged changes, as `docs/format.md` has them.

A record is a header of 64 bytes and a body, which has the changes of one call in columns: chunks of rows, whose tags
are in tables of strings. A chunk with indices has a dictionary as its table, which other chunks may share; one without
has its table, with a string for each tag.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tagmatch.model.arrays import (
    BoolArray,
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
from tagmatch.model.errors import IndexCorruptError, InvalidValueError, TagMatchError
from tagmatch.model.kernels.tag_table import areas_among, has_reserved
from tagmatch.model.options import KeyType
from tagmatch.model.tables import NEVER
from tagmatch.model.where.constraints import AREA_TAGS
from tagmatch.model.where.values import is_reserved

MAGIC = b"TMr1"
HEADER_BYTES = 64

_REMOVED, _NAMED, _EXPIRING, _CONSTRAINED, _LOCATED = 1, 2, 4, 8, 16
# What readers of older logs would not notice, with the format version that has them refuse the log; the last one first
_VERSIONS = ((_LOCATED, 4), (_CONSTRAINED, 3), (_EXPIRING, 2))

_FIELDS = struct.Struct("<4sIQQQQQ8s")
_COUNTS = struct.Struct("<3Q")
# Of a body with one chunk and one table
_ALL_COUNTS = struct.Struct("<9Q")
_ONE_CHUNK = struct.pack("<2Q", 1, 1)
_INDEXED = slice(48, 56)
_NO_INDICES = bytes(8)

_U32_LIMIT = 2**32
# Records up to this size are joined with their neighbours when they are read, up to this many bytes
_SMALL_BYTES = 1 << 16
_JOINED_BYTES = 1 << 25


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
    """What the header of a record says, in its order."""

    magic: bytes
    kind: int
    log: int
    number: int
    on_disk: int
    rows: int
    nbytes: int
    checksum: bytes

    @property
    def key_type(self) -> KeyType:
        """What the keys of the record are."""
        return "string" if self.kind & _NAMED else "integer"


class Logged(NamedTuple):
    """Changes that were logged, oldest first, as `StagedChanges.extend` takes them; arrays have a value a row."""

    chunks: list[TagLists]
    keys: U64Array | Strings
    removed: BoolArray  # whether the row is removed
    expires: I64Array | None  # when the key expires; `None` if none does


# -- encoding ----------------------------------------------------------------------------------------------------------


def single_record(tags: list[str], key: int | str, *, removed: bool, expires: int = NEVER) -> Record:
    """One change of a validated set and key; InvalidValueError if a tag or key has 4 GiB or more.

    `expires` is in microseconds since 1970, UTC.
    """
    texts = [tag.encode() for tag in tags]
    data = b"".join(texts)
    count = len(texts)
    name = key.encode() if isinstance(key, str) else None
    is_constrained = b"\0" in data and any(map(is_reserved, tags))
    is_located = is_constrained and any(tag.startswith(AREA_TAGS) for tag in tags)
    kind = removed * _REMOVED + is_constrained * _CONSTRAINED + is_located * _LOCATED
    time = b""
    if expires != NEVER:
        kind += _EXPIRING
        time = struct.pack("<q", expires)
    try:
        if name is None:
            lengths = struct.pack(f"<Q{count + 1}I", key, count, *map(len, texts))
            body = _ALL_COUNTS.pack(1, 1, 0, 1, count, 0, 0, count, len(data)) + time + lengths + data
        else:
            kind += _NAMED
            lengths = struct.pack(f"<{count + 2}I", len(name), count, *map(len, texts))
            body = _ALL_COUNTS.pack(1, 1, len(name), 1, count, 0, 0, count, len(data)) + time + lengths + data + name
    except struct.error:
        raise _too_long() from None
    return Record(kind, 1, len(body), xxhash.xxh3_64_digest(body), [body])


def bulk_record(
    chunks: list[TagLists], keys: U64Array | Strings, *, removed: bool, expires: I64Array | None = None
) -> Record:
    """A change for each row of all chunks, as `StagedChanges.extend` takes them; errors as `single_record`."""
    columns = _Columns()
    for chunk in chunks:
        columns.add(chunk)
    named = isinstance(keys, Strings)
    texts, names = (_lengths(keys.offsets), _used(keys)) if isinstance(keys, Strings) else (None, None)
    counts = [len(chunks), len(columns.strings), 0 if names is None else len(names), *columns.rows, *columns.sizes()]
    parts: list[npt.NDArray[Any]] = [
        np.array(counts, "<u8"),
        *([] if expires is None else [np.ascontiguousarray(expires, "<i8")]),
        np.ascontiguousarray(keys, "<u8") if texts is None else texts,
        *columns.lengths,
        *(_lengths(strings.offsets) for strings in columns.strings),
        *(_used(strings) for strings in columns.strings),
    ]
    if names is not None:
        parts.append(names)
    body = [part for part in parts if part.nbytes]
    digest = xxhash.xxh3_64()
    for part in body:
        digest.update(part.data)
    # A dictionary may have constraints that no row has
    is_constrained = any(map(has_reserved, columns.strings))
    is_located = is_constrained and any(areas_among(strings).any() for strings in columns.strings)
    kind = removed * _REMOVED + named * _NAMED + (expires is not None) * _EXPIRING + is_constrained * _CONSTRAINED
    kind += is_located * _LOCATED
    return Record(kind, len(keys), sum(part.nbytes for part in body), digest.digest(), body)


class _Columns:
    """Chunks of rows and the tables that they have their tags from, which chunks with one dictionary share."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.lengths: list[U32Array] = []
        self.strings: list[Strings] = []
        self._dictionaries: dict[int, int] = {}

    def add(self, chunk: TagLists) -> None:
        begin, end = int(chunk.offsets[0]), int(chunk.offsets[-1])
        self.lengths.append(_lengths(chunk.offsets))
        if chunk.indices is None:
            table = len(self.strings)
            self.strings.append(Strings(chunk.tags.offsets[begin : end + 1], chunk.tags.data))
        else:
            self.lengths.append(np.ascontiguousarray(chunk.indices[begin:end], "<u4"))
            table = self._dictionaries.setdefault(id(chunk.tags), len(self.strings))
            if table == len(self.strings):
                self.strings.append(chunk.tags)
        self.rows += [len(chunk), end - begin, table, chunk.indices is not None]

    def sizes(self) -> list[int]:
        found: list[int] = []
        for strings in self.strings:
            found += [len(strings), int(strings.offsets[-1]) - int(strings.offsets[0])]
        return found


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


def header_in(data: bytes, log: int) -> Header | None:
    """The header with which these bytes begin, if it is one of a record of this log and has its checksum."""
    fields = data[: _FIELDS.size]
    if not data.startswith(MAGIC) or xxhash.xxh3_64_digest(fields) != data[_FIELDS.size : HEADER_BYTES]:
        return None
    header = Header(*_FIELDS.unpack(fields))
    return header if header.log == log else None


def decoded(records: Iterable[tuple[Header, bytes]], where: object) -> Iterator[Logged]:
    """What records of the index `where` have logged; small ones that follow each other come as one chunk.

    IndexCorruptError: one has a right checksum, but holds no changes.
    """
    try:
        yield from _decoded(records)
    except (ValueError, OverflowError, struct.error, pa.ArrowException) as error:
        if isinstance(error, TagMatchError | MemoryError):
            raise
        raise IndexCorruptError(
            f"the changes that are staged in {where} are none that tagmatch has logged: {error}; restore the index "
            "from a copy"
        ) from None


def _decoded(records: Iterable[tuple[Header, bytes]]) -> Iterator[Logged]:
    joined: list[tuple[Header, bytes]] = []
    joined_bytes = 0
    for header, body in records:
        is_small = len(body) <= _SMALL_BYTES and _has_one_chunk(body)
        fits = is_small and joined_bytes < _JOINED_BYTES
        if joined and not (fits and _columns_of(header) == _columns_of(joined[0][0])):
            yield _joined(joined)
            joined, joined_bytes = [], 0
        if is_small:
            joined.append((header, body))
            joined_bytes += len(body)
        else:
            yield _one(header, body)
    if joined:
        yield _joined(joined)


def _is_named(header: Header) -> bool:
    return bool(header.kind & _NAMED)


def _columns_of(header: Header) -> int:
    """Says which columns a body has."""
    return header.kind & (_NAMED | _EXPIRING)


def _has_one_chunk(body: bytes) -> bool:
    """Whether a body has one chunk, without indices, and one table."""
    return body.startswith(_ONE_CHUNK) and body[_INDEXED] == _NO_INDICES


def _joined(records: list[tuple[Header, bytes]]) -> Logged:
    """Bodies with one chunk each, without indices, as one chunk: their columns are joined as bytes."""
    named = _is_named(records[0][0])
    time_bytes = 8 * bool(records[0][0].kind & _EXPIRING)
    begin = _ALL_COUNTS.size
    key_bytes = 4 if named else 8
    times: list[bytes] = []
    keys: list[bytes] = []
    rows: list[bytes] = []
    strings: list[bytes] = []
    data: list[bytes] = []
    names: list[bytes] = []
    for header, body in records:
        _, _, name_bytes, row_count, tag_count, _, _, strings_count, data_bytes = _ALL_COUNTS.unpack_from(body)
        end_times = begin + time_bytes * row_count
        end_keys = end_times + key_bytes * row_count
        end_rows = end_keys + 4 * row_count
        end_strings = end_rows + 4 * tag_count
        end_data = end_strings + data_bytes
        if row_count != header.rows or tag_count != strings_count or len(body) != end_data + name_bytes:
            raise ValueError("lengths do not fit")
        times.append(body[begin:end_times])
        keys.append(body[end_times:end_keys])
        rows.append(body[end_keys:end_rows])
        strings.append(body[end_rows:end_strings])
        data.append(body[end_strings:end_data])
        names.append(body[end_data:])
    counts = np.array([header.rows for header, _ in records], np.int64)
    removed = np.array([header.kind & _REMOVED for header, _ in records], np.bool_)
    tags = _strings(_array(strings, "<u4"), _array(data, "u1"))
    return Logged(
        [TagLists(_offsets(_array(rows, "<u4"), len(tags)), tags)],
        _strings(_array(keys, "<u4"), _array(names, "u1")) if named else _array(keys, "<u8"),
        np.repeat(removed, counts),
        _array(times, "<i8") if time_bytes else None,
    )


def _one(header: Header, body: bytes) -> Logged:
    take = _Columnar(body)
    chunk_count, table_count, name_bytes = (int(count) for count in take.next("<u8", _COUNTS.size // 8))
    chunks = take.next("<u8", 4 * chunk_count).reshape(-1, 4).tolist()
    tables = take.next("<u8", 2 * table_count).reshape(-1, 2).tolist()
    named = _is_named(header)
    times = take.next("<i8", header.rows) if header.kind & _EXPIRING else None
    keys = take.next("<u4" if named else "<u8", header.rows)
    rows = [(take.next("<u4", row_count), take.next("<u4", indexed * tags)) for row_count, tags, _, indexed in chunks]
    lengths = [take.next("<u4", count) for count, _ in tables]
    strings = [_strings(each, take.next("u1", size)) for each, (_, size) in zip(lengths, tables, strict=True)]
    memos = [Memo() for _ in tables]
    named_keys = _strings(keys, take.next("u1", name_bytes)) if named else None
    if take.rest or sum(row_count for row_count, *_ in chunks) != header.rows:
        raise ValueError("lengths do not fit")
    found = []
    for (row_lengths, indices), (_, tag_count, table, indexed) in zip(rows, chunks, strict=True):
        if table >= len(strings) or (indexed and len(indices) and int(indices.max()) >= len(strings[table])):
            raise ValueError("a tag is in no table")
        if not indexed and tag_count != len(strings[table]):
            raise ValueError("lengths do not fit")
        offsets = _offsets(row_lengths, tag_count)
        found.append(TagLists(offsets, strings[table], indices if indexed else None, memos[table]))
    return Logged(
        found,
        keys if named_keys is None else named_keys,
        np.full(header.rows, bool(header.kind & _REMOVED)),
        times,
    )


class _Columnar:
    """Arrays that lie one behind the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._begin = 0

    def next(self, dtype: str, count: int) -> npt.NDArray[Any]:
        found = np.frombuffer(self._data, dtype, count, self._begin) if count else np.zeros(0, dtype)
        self._begin += found.nbytes
        return found

    @property
    def rest(self) -> int:
        """Bytes behind the last array."""
        return len(self._data) - self._begin


def _array(parts: list[bytes], dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(b"".join(parts), dtype)


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
