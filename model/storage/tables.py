"""Snapshots in files: the tables of each segment, memory-mapped when they are read, and one for its deletions.

A table is an Arrow IPC file, which is cut into parts if it is large, of `PART_BYTES` bytes, so that they may be written
by many processes at once, and on many machines: which bytes a part has follows from the shape of the table alone. Parts
are whole pages, all but the last. So a reader has them mapped side by side into one range of addresses, where each
column is one array, as in a file that is not cut.

What another program does to a mapped file, the memory shows at once: of a file that was cut short, the end of the last
page reads as zeros, and to read pages behind that ends the process. Descriptors stay open, so that each file can be
looked at, even after its name is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from tagmatch.model.arrays import Strings, offsets_of
from tagmatch.model.arrow import from_lists, from_strings, from_words, to_lists, to_numbers, to_strings, to_words
from tagmatch.model.asked import AS_GIVEN, reject_other_columns
from tagmatch.model.errors import IndexCorruptError, IndexVersionError, InvariantError
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS, signatures_of
from tagmatch.model.kernels.tag_table import areas_among, has_reserved
from tagmatch.model.layouts import check_bounds, rules_of
from tagmatch.model.options import KeyType, LayoutOptions
from tagmatch.model.parallel import reject_given_up, threads_of_arrow
from tagmatch.model.storage.byte_store import ByteStore
from tagmatch.model.storage.files import (
    ADVICE,
    Entry,
    check_file,
    checksum_of_descriptor,
    sync,
    telling_errors,
)
from tagmatch.model.storage.format import (
    ALWAYS,
    AREAS,
    CONSTRAINTS,
    DELETED_PREFIX,
    EXPIRES,
    FORMAT_VERSION,
    RECORDS,
    SEGMENT_PREFIX,
    SNAPSHOT_PREFIX,
    TABLE_SUFFIX,
    Manifest,
    declared_entries,
    declared_in,
    files_of,
    key_type_of,
    parts_of,
    version_for,
)
from tagmatch.model.tables import LONG_AGO, Deletions, KeyTable, RecordTable, Segment, Snapshot, TagsetTable, Vocabulary

#: Of each part but the last: whole pages of all machines, and what stores take in one request
PART_BYTES = 1 << 26

# Written and hashed at once, while it is in the cache
_BLOCK = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

# -- files, written ----------------------------------------------------------------------------------------------------


class Piece(Protocol):
    """Consecutive bytes of a file."""

    def __len__(self) -> int:
        """How many they are."""

    def __getitem__(self, some: slice) -> Any:
        """Those from one place to another: an object with a buffer."""


@dataclass(frozen=True, slots=True, eq=False)
class TableFile:
    """A table as a file that is yet to be written."""

    name: str  # of the file, `tagsets.arrow`; parts have a number behind it
    pieces: tuple[Piece, ...]  # its bytes
    part_bytes: int  # the size of a part
    starts: list[int]  # where each piece begins, and where the last one ends

    @classmethod
    def of(
        cls, name: str, table: pa.Table, part_bytes: int | None = None, elsewhere: Mapping[int, Piece] | None = None
    ) -> TableFile:
        """The file of a table, whose memory it shares; without `part_bytes` it is not cut.

        Buffers of the table may only have the right length: `elsewhere` has the bytes of each of these, by its address.
        """
        written = _Written()
        with pa.ipc.new_file(pa.PythonFile(written, mode="w"), table.schema) as writer:
            writer.write_table(table)
        pieces: list[Piece] = [*written]
        if elsewhere:
            for place, given in enumerate(written):
                if isinstance(given, pa.Buffer):
                    pieces[place] = elsewhere[given.address]  # KeyError: Arrow has copied a buffer
                    assert len(given) == len(pieces[place])
        starts = offsets_of(np.array(list(map(len, written)), np.int64)).tolist()
        return cls(name, tuple(pieces), part_bytes or max(1, starts[-1]), starts)

    @property
    def parts(self) -> int:
        """How many there are."""
        return -(-self.starts[-1] // self.part_bytes)

    def part_name(self, number: int) -> str:
        """The name of a part."""
        return self.name if self.parts == 1 else f"{self.name}.{number:05}"

    def part_size(self, number: int) -> int:
        """Bytes of a part."""
        return min(self.part_bytes, self.starts[-1] - number * self.part_bytes)

    def write(self, number: int, file: Path) -> Entry:
        """Write and sync a part; returns what manifests say of it."""
        starts, digest = self.starts, xxhash.xxh3_64()
        first = number * self.part_bytes
        last = first + self.part_size(number)
        reject_given_up()
        with file.open("wb") as sink:
            for place in range(bisect_right(starts, first) - 1, len(self.pieces)):
                start = starts[place]
                if start >= last:
                    break
                stop = min(last, starts[place + 1]) - start
                some = memoryview(self.pieces[place][max(first - start, 0) : stop]).cast("B")
                for begin in range(0, len(some), _BLOCK):
                    block = some[begin : begin + _BLOCK]
                    digest.update(block)
                    sink.write(block)
        sync(file)
        return {"bytes": last - first, "xxh3_64": digest.hexdigest()}


class _Written(list[Any]):
    """A file that keeps written buffers without looking at them: Arrow hands them over as they are."""

    write, closed = list.append, False


# -- files, read -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, weakref_slot=True)
class OpenFile:
    """A file that is open for as long as this object is there."""

    name: str  # as messages have it
    descriptor: int
    checksum: str  # that it has to have
    _seen: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        # Not at exit: threads may read on until the process is gone
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        self._seen = self._look()

    @classmethod
    def at(cls, path: Path) -> OpenFile:
        """Open a file that we have written, by its path."""
        return cls(str(path), os.open(path, os.O_RDONLY | os.O_CLOEXEC), "")

    @property
    def size(self) -> int:
        """Bytes of the file when it was opened."""
        return self._seen[0]

    def verify(self) -> None:
        """See that the file is as it was opened: by size and time or, where these differ, by its checksum."""
        if (now := self._look()) == self._seen:
            return
        if now[0] != self.size or checksum_of_descriptor(self.descriptor) != self.checksum:
            raise IndexCorruptError(
                f"{self.name} was overwritten or cut short while the index was open: it does not have the sets "
                "and keys that were saved; restore the index from a copy and call reload(), or open it again"
            )
        self._seen = now

    def _look(self) -> tuple[int, int]:
        found = os.fstat(self.descriptor)
        return found.st_size, found.st_mtime_ns


def mapped(files: Sequence[OpenFile]) -> pa.Buffer:
    """Files in memory one behind the other, as one buffer, while that is in use; OSError, IndexCorruptError."""
    sizes = [file.size for file in files]
    for file, size in zip(files[:-1], sizes, strict=False):
        if size % mmap.PAGESIZE:
            raise IndexCorruptError(
                f"{file.name} has {size} bytes, which are not whole pages of {mmap.PAGESIZE} bytes, as parts of a "
                f"table are on this machine; {ADVICE}"
            )
    if not all(sizes):
        raise IndexCorruptError(f"{files[sizes.index(0)].name} is empty; {ADVICE}")
    # Addresses are kept free for all of them at first, and then each takes its place among these
    kept = _Addresses(sum(sizes))
    starts = offsets_of(np.array(sizes, np.int64)).tolist()
    for file, size, start in zip(files, sizes, starts, strict=False):
        _map(kept.first + start, size, mmap.MAP_SHARED | _MAP_FIXED, file.descriptor)
    return pa.foreign_buffer(kept.first, sum(sizes), kept)


def in_memory(files: Sequence[OpenFile]) -> pa.Buffer:
    """As `mapped`, but a copy, which stays as it is when the files change."""
    return pa.py_buffer(b"".join(os.pread(file.descriptor, file.size, 0) for file in files))


class _Addresses:
    """A range of addresses of this process; it goes with this object."""

    def __init__(self, size: int) -> None:
        self.first = _map(None, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        weakref.finalize(self, _libc.munmap, self.first, size).atexit = False


def _map(address: int | None, size: int, flags: int, descriptor: int) -> int:
    found: int | None = _libc.mmap(address, size, mmap.PROT_READ, flags, descriptor, 0)
    if found is None or found == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found


def read_table_file(files: Sequence[OpenFile], read: Callable[[Sequence[OpenFile]], pa.Buffer] = mapped) -> pa.Table:
    """The table of a file, or of its parts in their order; ArrowException, and errors as `mapped`."""
    with threads_of_arrow():
        return pa.ipc.open_file(pa.BufferReader(read(files))).read_all()


# -- whether a table can be looked at: its columns are those of such a table, and lie within the file ------------------

_U32, _U64, _I32, _I64 = pa.uint32(), pa.uint64(), pa.int32(), pa.int64()
_WORDS = pa.list_(_U64, SIGNATURE_WORDS)


def _lists_of(*values: pa.DataType) -> tuple[pa.DataType, ...]:
    return tuple(kind(value) for value in values for kind in (pa.list_, pa.large_list))


_OF_RECORDS, _OF_LONG_RECORDS = (pa.schema([("key", kind), *AS_GIVEN, ("sets", _U64)]) for kind in (_U32, _U64))
#: By the name of a table, its columns, each with the types that it may have
_COLUMNS: dict[str, list[dict[str, tuple[pa.DataType, ...]]]] = {
    "vocabulary": [{"tag": (pa.string(), pa.large_string()), "hash": (_U64,), "frequency": (_U32, _U64)}],
    "tagsets": [{"signature": (_WORDS,), "ranks": _lists_of(_U32)}],
    "keys": [{"keys": _lists_of(_U32, _U64)}],
    "key_names": [{"name": (pa.large_string(), pa.string())}],
    "expires": [{"expires": (_I64,)}],
    "partitions": [{"mask": (_WORDS,), "first_row": (_I64,), "rows": (_I64,)}, {"first_row": (_I32, _I64)}],
    "deleted": [{"deleted": (pa.bool_(),)}],
}


def checked_columns(name: str, table: pa.Table) -> dict[str, pa.Array]:
    """The columns of the table of this name, each one an array; ValueError if it has others, or some lack values.

    Of their values, only the first and last offsets of lists and strings are looked at, which may be zeros yet.
    """
    table.validate()  # lengths of buffers, which reading does not compare with what the table says
    names = table.column_names
    if name == RECORDS:
        reject_other_columns(table.schema, _OF_RECORDS if table.schema.field(0).type == _U32 else _OF_LONG_RECORDS)
        return {each: _only_chunk(each, table) for each in names}
    for columns in _COLUMNS[name]:
        if names == [*columns] and all(_is_any(table.schema.field(each).type, columns[each]) for each in columns):
            break
    else:
        raise ValueError(f"the columns are {', '.join(f'{field.name} ({field.type})' for field in table.schema)[:200]}")
    found = {}
    for each in names:
        array = _only_chunk(each, table)
        arrays = [array, array.values] if pa.types.is_nested(array.type) else [array]
        if array.offset or any(some.buffers()[0] is not None for some in arrays):
            raise ValueError(f"the column {each} has nulls")
        found[each] = array
    return found


def _only_chunk(name: str, table: pa.Table) -> pa.Array:
    column = table.column(name)
    if column.num_chunks > 1:
        raise ValueError(f"the column {name} has {column.num_chunks} chunks")
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _is_any(kind: pa.DataType, kinds: tuple[pa.DataType, ...]) -> bool:
    if pa.types.is_nested(kind):  # the name of the field within makes no difference
        return any(type(kind) is type(each) and kind.value_type == each.value_type for each in kinds) and (
            not pa.types.is_fixed_size_list(kind) or kind.list_size == SIGNATURE_WORDS
        )
    return kind in kinds


# -- snapshots, written ------------------------------------------------------------------------------------------------


def write_snapshot(snapshot: Snapshot, folder: Path, there: Iterable[Entry]) -> Manifest:
    """Write and sync, to a folder, what an index that has the segments `there` lacks of a snapshot; its manifest.

    IndexCorruptError if files that tables are mapped from have changed.
    """
    known, entries = {entry["name"]: entry for entry in there}, []
    for segment in snapshot.segments:
        entry = {**known[segment.name]} if segment.name in known else write_segment(segment, folder)
        entry.pop("deleted", None)
        if segment.deletions is not None:
            file = folder / "deleted"
            entry["deleted"] = write_deletions(segment.deletions, len(segment), file)
            file.rename(folder / entry["deleted"]["name"])
        entries.append(entry)
    snapshot.verify()  # both the tables that were written, and those that stay
    return manifest_of(entries, snapshot.segments[0].options, snapshot.key_type)


def manifest_of(entries: Sequence[Entry], options: LayoutOptions, key_type: KeyType) -> Manifest:
    """The manifest of a snapshot that says this of the segments, without its own checksum."""
    deleted = sum(entry.get("deleted", {"rows": 0})["rows"] for entry in entries)
    # A snapshot is its layout and the contents of its files; names identify contents
    names = [(entry["name"], entry.get("deleted", {}).get("name")) for entry in entries]
    said = declared_entries(options)
    text = f"{options.layout} {options.max_partition_size} {names}{f' {said}' if said else ''}"
    identity = xxhash.xxh3_64_hexdigest(text.encode())
    return {
        **said,
        "format": FORMAT_VERSION if said else version_for(entries),
        "layout": options.layout,
        "max_partition_size": options.max_partition_size,
        "key_type": key_type,
        "sets": sum(entry["rows"] for entry in entries) - deleted,
        "segments": [*entries],
        "snapshot": SNAPSHOT_PREFIX + identity,
    }


def write_segment(segment: Segment, folder: Path) -> Entry:
    """Write and sync the tables, in a new folder in this one; returns what manifests say of the segment."""
    unnamed = folder / "segment"
    unnamed.mkdir()
    unnamed.chmod(0o755)
    entry = write_segment_files(segment, lambda name: contextlib.nullcontext(unnamed / name))
    sync(unnamed)
    unnamed.rename(folder / entry["name"])
    return entry


def write_segment_files(segment: Segment, new: Callable[[str], AbstractContextManager[Path]]) -> Entry:
    """The same, each file where `new` says."""
    files = {}
    for table_name, table in tables_of(segment):
        whole = table_file(table_name, table)
        for number in range(whole.parts):
            with new(whole.part_name(number)) as path:
                files[whole.part_name(number)] = whole.write(number, path)
    entry = segment_entry(files, len(segment), len(segment.vocabulary), segment.vocabulary.seed)
    return entry | kinds_of(segment.vocabulary.tags)


def table_file(table: str, columns: pa.Table, elsewhere: Mapping[int, Piece] | None = None) -> TableFile:
    """The file of a table with this name, cut if it is large; `elsewhere` as in `TableFile.of`."""
    return TableFile.of(f"{table}{TABLE_SUFFIX}", columns, PART_BYTES, elsewhere)


def segment_entry(files: Mapping[str, Entry], rows: int, tags: int, seed: int) -> Entry:
    """What manifests say of a segment with these files, in the order of the tables, except `kinds_of`."""
    whole = xxhash.xxh3_64()
    for name, written in files.items():
        whole.update(f"{name} {written['xxh3_64']}\n".encode())
    name = SEGMENT_PREFIX + whole.hexdigest()
    return {"name": name, "rows": rows, "seed": seed, "tags": tags, "files": dict(files)}


def kinds_of(tags: Strings) -> Entry:
    """What manifests say of a segment with tags of constraints, or of areas."""
    if not has_reserved(tags):
        return {}
    return {CONSTRAINTS: True, **({AREAS: True} if areas_among(tags).any() else {})}


def write_deletions(deletions: Deletions, rows: int, file: Path) -> Entry:
    """Write and sync which of the rows of a segment are deleted; returns what manifests say of that file."""
    flags = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(deletions.bits)])
    written = TableFile.of(DELETED_PREFIX, table_of(deleted=flags)).write(0, file)
    name = f"{DELETED_PREFIX}{written['xxh3_64']}.arrow"
    return {"name": name, "rows": deletions.count, **written}


def tables_of(segment: Segment) -> Iterator[tuple[str, pa.Table]]:
    """The tables as they are written, by the names of their files."""
    vocabulary, tagsets = segment.vocabulary, segment.tagsets
    tags, hashes = from_strings(vocabulary.tags), vocabulary.hashes
    yield "vocabulary", table_of(tag=tags, hash=pa.array(hashes), frequency=pa.array(segment.frequencies))
    signatures = tagsets.signatures
    if signatures is None:
        signatures = signatures_of(tagsets.ranks, hashes)
    yield "tagsets", table_of(signature=from_words(signatures), ranks=from_lists(tagsets.ranks))
    yield "keys", table_of(keys=from_lists(segment.keys.keys))
    if segment.keys.names is not None:
        yield "key_names", table_of(name=from_strings(segment.keys.names))
    if segment.keys.expires is not None:
        yield Path(EXPIRES).stem, table_of(expires=pa.array(segment.keys.expires))
    if segment.records is not None:
        yield RECORDS, records_table(segment.records)
    yield "partitions", table_of(**rules_of(segment.options).to_arrow(segment.partitions))


def records_table(records: RecordTable) -> pa.Table:
    """The table of records as it is written."""
    return records.columns.add_column(0, "key", pa.array(records.keys)).replace_schema_metadata()


def table_of(**columns: pa.Array) -> pa.Table:
    """A table with these columns."""
    return pa.table([*columns.values()], pa.schema([(name, array.type) for name, array in columns.items()]))


# -- snapshots, read ---------------------------------------------------------------------------------------------------

#: Reads a table of some name, at some path within the index, of whose files manifests say this; gives its columns, and
#: the files that these are mapped from
Read: TypeAlias = Callable[[str, str, dict[str, Entry]], tuple[dict[str, pa.Array], list[OpenFile]]]


def read_segments(
    store: ByteStore, manifest: Manifest, *, verify: bool, earlier: Snapshot | None = None
) -> tuple[Segment, ...]:
    """The segments whose files an index has, each as long as it has to be; IndexCorruptError, IndexVersionError.

    To verify them, all is read: files have their checksums, and no number in tables points out of them. Of segments
    that an earlier snapshot has, with sound files, only deletions are read: equal names mean equal contents.
    """
    read = partial(_mapped_table, store, verify)
    known = {} if earlier is None else {(each.name, each.options): each for each in earlier.segments if each.is_sound}
    options = _options_of(manifest)
    found = []
    for entry in manifest["segments"]:
        segment = None
        if (old := known.get((entry["name"], options))) is not None:
            segment = _with_deletions(old, entry, read)
        is_new = segment is None
        if segment is None:
            segment = _segment(entry, options, key_type_of(manifest) == "string", read, LONG_AGO)
        if verify:
            try:
                check_bounds(segment, entry["rows"], entry["tags"], tables=is_new)
            except InvariantError as error:
                raise IndexCorruptError(f"{store}/{entry['name']} is no segment: {error}") from None
        if CONSTRAINTS not in entry and is_new:
            reject_reserved(segment.vocabulary.tags, f"{store}/{entry['name']}")
        found.append(segment)
    return tuple(found)


def _with_deletions(old: Segment, entry: Entry, read: Read) -> Segment | None:
    """A segment with the very tables of an earlier one; `None` if it has rows again that were deleted there.

    Of the same tables more and more rows are deleted; if some come back, it is another segment, though its name is
    the same.
    """
    deletions = _deletions(entry, read)
    if old.deletions is not None and not old.deletions.are_within(deletions):
        return None
    # Not its `earliest`: rows that it lacks, as their keys have expired, may still be there
    return replace(old, deletions=deletions, earliest=LONG_AGO)


def _deletions(entry: Entry, read: Read) -> Deletions | None:
    if not (deleted := entry.get("deleted")):
        return None
    found, _ = read("deleted", deleted["name"], files_of([entry]))
    flags = found["deleted"]
    bits = np.frombuffer(flags.buffers()[1] or b"", np.uint8)[: -(-len(flags) // 8)]
    return Deletions(bits, deleted["rows"])


def reject_reserved(tags: Strings, path: object) -> None:
    """Reject tags of constraints of the segment at a path whose manifest says of none; IndexVersionError."""
    if has_reserved(tags):
        raise IndexVersionError(
            f"{path} has tags that begin with U+0000 and +, - or =, which format 5 reserves for constraints; with "
            "the version of tagmatch that wrote the index, store these sets with other tags"
        )


def segments_of(manifest: Manifest, read: Read, earliest: int = LONG_AGO) -> tuple[Segment, ...]:
    """The segments that a manifest names, in their order, of tables that are read so; `earliest` as in `Segment`."""
    options, has_names = _options_of(manifest), key_type_of(manifest) == "string"
    return tuple(_segment(entry, options, has_names, read, earliest) for entry in manifest["segments"])


def _options_of(manifest: Manifest) -> LayoutOptions:
    return LayoutOptions(manifest["layout"], manifest["max_partition_size"], *declared_in(manifest))


def _segment(entry: Entry, options: LayoutOptions, has_names: bool, read: Read, earliest: int) -> Segment:
    files, mapped_from = files_of([entry]), list[OpenFile]()

    def columns(name: str) -> dict[str, pa.Array]:
        found, opened = read(name, f"{entry['name']}/{name}{TABLE_SUFFIX}", files)
        mapped_from.extend(opened)
        return found

    def verify() -> None:
        for file in mapped_from:
            with telling_errors(file.name):
                file.verify()

    vocabulary, tagsets, keys, partitions = map(columns, ALWAYS)
    names = to_strings(columns("key_names")["name"]) if has_names else None
    expires = to_numbers(columns(Path(EXPIRES).stem)["expires"]) if parts_of(entry["files"], EXPIRES) else None
    deletions, records = _deletions(entry, read), None
    if parts_of(entry["files"], f"{RECORDS}{TABLE_SUFFIX}"):
        found = columns(RECORDS)
        records = RecordTable(to_numbers(found.pop("key")), pa.table(found))
    hashes, frequencies = to_numbers(vocabulary["hash"]), to_numbers(vocabulary["frequency"])
    return Segment(
        options,
        Vocabulary(to_strings(vocabulary["tag"]), hashes, frequencies, entry["seed"]),
        TagsetTable(to_words(tagsets["signature"]), to_lists(tagsets["ranks"])),
        KeyTable(to_lists(keys["keys"]), names, expires),
        rules_of(options).from_arrow(partitions, len(tagsets["ranks"])),
        deletions,
        entry["name"],
        earliest,
        verify,
        records,
    )


def _mapped_table(
    store: ByteStore, verify: bool, name: str, path: str, files: dict[str, Entry]
) -> tuple[dict[str, pa.Array], list[OpenFile]]:
    """A table of an index, each column one chunk of the memory-mapped file or of its parts; see `Read`."""
    opened = []
    for part in parts_of(files, path):
        where = f"{store}/{part}"
        with telling_errors(where):
            file = OpenFile(where, store.descriptor(part, files[part]), files[part]["xxh3_64"])
            # The very file that has passed is mapped, even if another program replaces its name
            check_file(file.descriptor, where, files[part], wholly=verify)
            opened.append(file)
    is_mapped = name != "deleted"  # which is small, and goes with each change, while the tables stay
    with telling_errors(f"{store}/{path}"):
        try:
            columns = checked_columns(name, read_table_file(opened, mapped if is_mapped else in_memory))
        except MemoryError:
            raise
        except (ValueError, OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the system's, not Arrow's
            raise IndexCorruptError(f"{store}/{path} is no table of an index: {str(error)[:400]}; {ADVICE}") from None
    return columns, opened if is_mapped else []
