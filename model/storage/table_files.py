"""The file of a table, an Arrow IPC file, which is cut into parts where it is large; a reader maps them side by side.

A part is a file with the next `PART_BYTES` bytes, so that parts may be written by many processes at once, and on many
machines: which bytes a part has follows from the shape of the table alone. Parts are whole pages, all but the last. So
a reader has them mapped into one range of addresses, where each column is one array, as in a file that is not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import xxhash

from tagmatch.model.arrays import I64Array, offsets_of
from tagmatch.model.parallel import reject_given_up, threads_of_arrow
from tagmatch.model.storage.durable import sync
from tagmatch.model.storage.format import Entry
from tagmatch.model.storage.mapped import OpenFile, mapped

#: Of each part but the last: whole pages of all machines, and what stores take in one request
PART_BYTES = 1 << 26

# Written and hashed at once, while it is in the cache
_BLOCK = 1 << 20


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
        """As `Piece` says."""
        return memoryview(self.buffer).cast("B")[first:last]


@dataclass(frozen=True, slots=True, eq=False)
class TableFile:
    """A table as a file that is yet to be written.

    Attributes
    ----------
    name : str
        Of the file, `tagsets.arrow`; parts have a number behind it.
    pieces : tuple of Piece
        Its bytes.
    part_bytes : int
        Where it is cut.
    """

    name: str
    pieces: tuple[Piece, ...]
    part_bytes: int

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
            assert len(given) == len(piece)
        return cls(name, pieces, part_bytes or max(1, sum(map(len, pieces))))

    @property
    def parts(self) -> int:
        """How many there are."""
        return -(-int(self._starts[-1]) // self.part_bytes)

    def part_name(self, number: int) -> str:
        """The name of a part."""
        return self.name if self.parts == 1 else f"{self.name}.{number:05}"

    def part_size(self, number: int) -> int:
        """Bytes of a part."""
        return min(self.part_bytes, int(self._starts[-1]) - number * self.part_bytes)

    def write(self, number: int, file: Path) -> Entry:
        """Write and sync a part; returns what manifests say of it."""
        starts, digest = self._starts, xxhash.xxh3_64()
        first = number * self.part_bytes
        last = first + self.part_size(number)
        with file.open("wb") as sink:
            for place in range(int(np.searchsorted(starts, first, "right")) - 1, len(self.pieces)):
                start = int(starts[place])
                if start >= last:
                    break
                stop = min(last, int(starts[place + 1])) - start
                for block in _blocks(self.pieces[place].read(max(first - start, 0), stop)):
                    reject_given_up()
                    digest.update(block)
                    sink.write(block)
        sync(file)
        return {"bytes": last - first, "xxh3_64": digest.hexdigest()}

    @property
    def _starts(self) -> I64Array:
        starts: I64Array = offsets_of(np.array([len(piece) for piece in self.pieces], np.int64))
        return starts


def _blocks(some: Any) -> Iterator[memoryview]:
    view = memoryview(some).cast("B")
    return (view[first : first + _BLOCK] for first in range(0, len(view), _BLOCK))


class _Pieces:
    """Takes, as a file, what is written to it, without looking at it: Arrow hands buffers over as they are."""

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


def read_table_file(files: Sequence[OpenFile], read: Callable[[Sequence[OpenFile]], pa.Buffer] = mapped) -> pa.Table:
    """The table of a file, memory-mapped, or of its parts in their order.

    Raises
    ------
    IndexCorruptError
        They cannot be parts of one file.
    ArrowException, OSError
        One cannot be read.
    """
    with threads_of_arrow():
        return pa.ipc.open_file(pa.BufferReader(read(files))).read_all()
