"""The file of a table, an Arrow IPC file, which is cut into parts if it is large; a reader maps them side by side.

A part is a file with the next `PART_BYTES` bytes, so that parts may be written by many processes at once, and on many
machines: which bytes a part has follows from the shape of the table alone. Parts are whole pages, all but the last. So
a reader has them mapped into one range of addresses, where each column is one array, as in a file that is not cut.

What another program does to a mapped file, the memory shows at once: of a file that was cut short, the end of the last
page reads as zeros, and to read pages behind that ends the process. Descriptors stay open, so that each file can be
looked at, even after its name is gone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import xxhash

from tagmatch.model.arrays import offsets_of
from tagmatch.model.errors import IndexCorruptError
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS
from tagmatch.model.parallel import reject_given_up, threads_of_arrow
from tagmatch.model.storage.files import ADVICE, Entry, checksum_of_descriptor, sync

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

# -- written -----------------------------------------------------------------------------------------------------------


class Piece(Protocol):
    """Consecutive bytes of a file."""

    def __len__(self) -> int:
        """How many they are."""

    def read(self, first: int, last: int) -> Any:
        """Those from `first` to `last`: an object with a buffer."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes in memory."""

    buffer: Any

    def __len__(self) -> int:
        return len(self.buffer)

    def read(self, first: int, last: int) -> memoryview:
        """See `Piece`."""
        return memoryview(self.buffer).cast("B")[first:last]


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
        """The file of a table, whose memory it shares; of the columns only their shapes are looked at.

        Without `part_bytes` it is not cut. Buffers of the table may only have the right length: `elsewhere` has the
        bytes of each of these, by its address.
        """
        sink, known = _Pieces(), elsewhere or {}
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), table.schema) as writer:
            writer.write_table(table)
        pieces = tuple(known.get(getattr(piece, "address", 0)) or Held(piece) for piece in sink.pieces)
        for given, piece in zip(sink.pieces, pieces, strict=True):
            assert not known or not (isinstance(piece, Held) and isinstance(given, pa.Buffer)), (
                "Arrow has copied a buffer"
            )
            assert not known or len(given) == len(piece)
        starts = offsets_of(np.array([len(given) for given in sink.pieces], np.int64)).tolist()
        return cls(name, pieces, part_bytes or max(1, starts[-1]), starts)

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
        with file.open("wb") as sink:
            for place in range(bisect_right(starts, first) - 1, len(self.pieces)):
                start = starts[place]
                if start >= last:
                    break
                stop = min(last, starts[place + 1]) - start
                some = memoryview(self.pieces[place].read(max(first - start, 0), stop)).cast("B")
                for begin in range(0, len(some), _BLOCK):
                    reject_given_up()
                    block = some[begin : begin + _BLOCK]
                    digest.update(block)
                    sink.write(block)
        sync(file)
        return {"bytes": last - first, "xxh3_64": digest.hexdigest()}


class _Pieces:
    """A file that keeps written buffers without looking at them: Arrow hands them over as they are."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self._place = 0

    def write(self, piece: Any) -> int:
        self.pieces.append(piece)
        self._place += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._place

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True


# -- read --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, weakref_slot=True)
class OpenFile:
    """A file that is open for as long as this object is there."""

    path: Path
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
        return cls(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC), "")

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
                f"{self.path} was overwritten or cut short while the index was open: it does not have the sets "
                "and keys that were saved; restore the index from a copy and call reload(), or open it again"
            )
        self._seen = now

    def _look(self) -> tuple[int, int]:
        found = os.fstat(self.descriptor)
        return found.st_size, found.st_mtime_ns


def mapped(files: Sequence[OpenFile]) -> pa.Buffer:
    """Files in memory one behind the other, as one buffer, for as long as that is in use; OSError.

    IndexCorruptError: they cannot be parts of one file.
    """
    sizes = [file.size for file in files]
    for file, size in zip(files[:-1], sizes, strict=False):
        if size % mmap.PAGESIZE:
            raise IndexCorruptError(
                f"{file.path} has {size} bytes, which are not whole pages of {mmap.PAGESIZE} bytes, as parts of a "
                f"table are on this machine; {ADVICE}"
            )
    if not all(sizes):
        raise IndexCorruptError(f"{files[sizes.index(0)].path} is empty; {ADVICE}")
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

    Of their values, only the first and last offsets of lists and strings are looked at.
    """
    table.validate()  # lengths of buffers, which reading does not compare with what the table says
    return _checked(name, table, lambda array: array.null_count == 0)


def columns_of(name: str, table: pa.Table) -> dict[str, pa.Array]:
    """`checked_columns` of a table whose values are not there yet."""
    return _checked(name, table, lambda array: array.buffers()[0] is None)


def _checked(name: str, table: pa.Table, is_whole: Callable[[pa.Array], bool]) -> dict[str, pa.Array]:
    names = table.column_names
    for columns in _COLUMNS[name]:
        if names == [*columns] and all(_is_any(table.schema.field(each).type, columns[each]) for each in columns):
            break
    else:
        raise ValueError(f"the columns are {', '.join(f'{field.name} ({field.type})' for field in table.schema)[:200]}")
    found = {}
    for each in names:
        column = table.column(each)
        if column.num_chunks > 1:
            raise ValueError(f"the column {each} has {column.num_chunks} chunks")
        array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        values = array.values if pa.types.is_nested(array.type) else None
        if not (_has_room(array) and (values is None or _has_room(values))):
            raise ValueError(f"the column {each} is shorter than it says")
        if array.offset or not is_whole(array) or (values is not None and not is_whole(values)):
            raise ValueError(f"the column {each} has nulls")
        found[each] = array
    return found


def _has_room(array: pa.Array) -> bool:
    """Whether the buffers of an array have as many bytes as its length asks for."""
    kind, buffers, count = array.type, array.buffers(), len(array) + array.offset
    if pa.types.is_fixed_size_list(kind):
        return bool(len(array.values) >= count * kind.list_size)
    if pa.types.is_large_list(kind) or pa.types.is_large_string(kind):
        bits = 64 * (count + 1)
    elif pa.types.is_list(kind) or pa.types.is_string(kind):
        bits = 32 * (count + 1)
    else:
        bits = kind.bit_width * count
    return count == 0 or (buffers[1] is not None and 8 * buffers[1].size >= bits)


def _is_any(kind: pa.DataType, kinds: tuple[pa.DataType, ...]) -> bool:
    if pa.types.is_nested(kind):  # the name of the field within makes no difference
        return any(type(kind) is type(each) and kind.value_type == each.value_type for each in kinds) and (
            not pa.types.is_fixed_size_list(kind) or kind.list_size == SIGNATURE_WORDS
        )
    return kind in kinds
