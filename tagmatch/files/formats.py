"""Formats of files, by name or by the suffix of a path; and bytes of files and streams, in blocks of rows of text.

All bytes are written, or an error comes; available bytes are read at once. Files appear under their names only if they
are whole.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import io
import itertools
import os
import re
import select
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

from tagmatch.model.errors import InputFileError, InvalidValueError, TagMatchError

if TYPE_CHECKING:
    from tagmatch.model.arrays import BoolArray, I64Array

STANDARD_STREAM = "-"

_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_parts = itertools.count()
_OPEN_ALREADY = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")


class Kind(StrEnum):
    """What a file holds, by the name that messages give it."""

    json_lines = "JSON Lines"
    csv = "CSV"
    parquet = "Parquet"


JSON_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json"})
PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})
CSV_SUFFIXES = frozenset({".csv"})
_KINDS = {
    **dict.fromkeys(JSON_SUFFIXES, Kind.json_lines),
    **dict.fromkeys(CSV_SUFFIXES, Kind.csv),
    **dict.fromkeys(PARQUET_SUFFIXES, Kind.parquet),
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, slots=True)
class Format:
    """How rows are written in a file."""

    kind: Kind
    compression: str | None = None  # Of the whole file


#: The formats, as a command line takes them
FormatName = Literal["jsonl", "jsonl.gz", "jsonl.zst", "csv", "csv.gz", "csv.zst", "parquet"]


def format_of(path: str, name: str | None = None) -> Format:
    """The format called `name`, or that of the path; streams are JSON Lines."""
    if not (path or name):
        raise InvalidValueError("the name of a file is empty; give a path, or - for a standard stream")
    found = format_of_suffix(Path(f"-.{name}" if name else path))
    if found is None and not is_stream(path):
        known = f"{', '.join(sorted(_KINDS))} (all but Parquet also with {' or '.join(_COMPRESSIONS)})"
        raise InputFileError(f"{path}: cannot tell the format; the name must end in {known}, or give the format")
    return found or Format(Kind.json_lines)


def format_of_suffix(path: Path) -> Format | None:
    """The format of a path by its suffix alone; `None` if it is not known."""
    compression = _COMPRESSIONS.get(path.suffix.lower())
    kind = _KINDS.get((Path(path.stem) if compression else path).suffix.lower())
    return None if kind is None or (compression and kind == Kind.parquet) else Format(kind, compression)


def open_already(path: str, standard: int) -> int | None:
    """The descriptor of that path, where this process has it open."""
    if path == STANDARD_STREAM:
        return standard
    found = _OPEN_ALREADY.fullmatch(path)
    return int(found[1]) if found else _STANDARD.get(path)


def is_stream(path: str) -> bool:
    """Whether bytes at the path come and go in order: standard streams, open files, pipes and devices."""
    if path == STANDARD_STREAM or open_already(path, 0) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


BLOCK_BYTES = 8 << 20
# As much as any user may ask for; a pipe's own 64 KiB make small batches
_PIPE_BYTES = 1 << 20

STANDARD_INPUT, STANDARD_OUTPUT = "standard input", "standard output"

Read = Callable[[int], bytes]


class Output(io.FileIO):
    """A descriptor as a file: `write` writes everything, even if the descriptor takes a part at a time."""

    def __init__(self, descriptor: int, label: str) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._label = label

    def write(self, data: Any) -> int:
        """Write all of `data`; waits while there is no room."""
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            with _named(self._label):
                try:
                    left = left[os.write(self.fileno(), left) :]
                except BlockingIOError:
                    _is_ready(self.fileno(), select.POLLOUT)
        return size


def whole_text(descriptor: int, name: str) -> io.TextIOWrapper:
    """A descriptor as a text file that loses nothing, in place of `sys.stdout`."""
    output = io.BufferedWriter(Output(descriptor, name))
    return io.TextIOWrapper(output, encoding="utf-8", errors="surrogateescape", line_buffering=os.isatty(descriptor))


@contextlib.contextmanager
def _opened(path: str, standard: int, flags: int) -> Iterator[int]:
    """Give the descriptor of a file or stream, which is closed at the end if it was not open before."""
    found = open_already(path, standard)
    descriptor = os.open(path, flags) if found is None else found
    try:
        yield descriptor
    finally:
        if found is None:
            os.close(descriptor)


@contextlib.contextmanager
def input_descriptor(path: str) -> Iterator[int]:
    """Give the descriptor of a file or stream, to be read from."""
    with _opened(path, 0, os.O_RDONLY) as descriptor:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            with contextlib.suppress(AttributeError, OSError):  # it is faster only, and macOS lacks it
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        yield descriptor


def input_name(path: str) -> str:
    """What messages call the file or stream at a path."""
    return STANDARD_INPUT if open_already(path, 0) == 0 else path


def at_hand(descriptor: int, name: str) -> Read:
    """A function that reads at most the bytes asked for, as many as are available; waits only for the first one."""

    def some(size: int) -> bytes:
        while True:
            with _named(name):
                try:
                    return os.read(descriptor, size)
                except BlockingIOError:
                    _is_ready(descriptor, select.POLLIN)

    def read(size: int) -> bytes:
        parts = [some(size)]
        got = len(parts[0])
        while parts[-1] and got < size and _is_ready(descriptor, select.POLLIN, 0):
            parts.append(some(size - got))
            got += len(parts[-1])
        return b"".join(parts)

    return read


def _is_ready(descriptor: int, event: int, wait_ms: int | None = None) -> bool:
    """Whether a descriptor can be read from, or written to; waits for that, at most so long."""
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(wait_ms))


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Give an `OSError` the name of the file it is about."""
    try:
        yield
    except OSError as error:
        what = "it is closed" if error.errno == errno.EBADF else error.strerror
        raise OSError(error.errno, what, name) from None


def text_only(read: Read, name: str) -> Read:
    """The same function, which refuses what begins as UTF-16 or UTF-32 does."""
    is_first = True

    def checked(size: int) -> bytes:
        nonlocal is_first
        data = read(size)
        if is_first and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
            raise InputFileError(f"{name}: is UTF-16 or UTF-32, as its first bytes tell; write it as UTF-8")
        is_first = False
        return data

    return checked


_BLANK = b" \t\r\n"


class Block(NamedTuple):
    """Some rows of a text file, without lines that are blank, which are none."""

    data: bytes
    begins: I64Array  # Where each row begins, and where the next line does
    ends: I64Array
    lines: I64Array  # The lines on which rows begin, the first one of the block being 0
    odd: BoolArray  # Rows to read one by one, as Arrow's readers have other rules for them, or no rule
    line_count: int  # Lines of the block

    def part(self, first: int, last: int) -> bytes:
        """The bytes of rows from one to before another."""
        return self.data[self.begins[first] : self.ends[last - 1]]

    def rows(self, chosen: BoolArray | slice) -> Block:
        """The block with some of its rows only."""
        begins, ends, lines = (each[chosen] for each in (self.begins, self.ends, self.lines))
        return Block(self.data, begins, ends, lines, self.odd[chosen], self.line_count)


def block_of(data: bytes, begins: I64Array, ends: I64Array, lines: I64Array, odd: BoolArray, line_count: int) -> Block:
    """A block of the rows that are not blank; those with zero bytes are odd."""
    import numpy as np  # not before: help comes at once

    array = np.frombuffer(data, np.uint8)
    if b"\0" in data:
        odd = odd.copy()
        odd[np.searchsorted(ends, np.flatnonzero(array == 0), side="right")] = True
    found = Block(data, begins, ends, lines, odd, line_count)
    is_blank = np.isin(array[begins], list(_BLANK))
    for place in np.flatnonzero(is_blank).tolist():
        is_blank[place] = not data[begins[place] : ends[place]].strip(_BLANK)
    return found.rows(~is_blank) if is_blank.any() else found


def first_line(error: BaseException) -> str:
    """The first line of an error of Arrow, which may go on with where in Arrow it was raised."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def seekable(descriptor: int) -> Iterator[str]:
    """Give the path of a file with the bytes of a descriptor: its own, or that of a copy if it is a stream."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        yield f"/dev/fd/{descriptor}"
        return
    with tempfile.TemporaryFile() as copy, os.fdopen(os.dup(descriptor), "rb") as source:
        shutil.copyfileobj(source, copy)
        copy.flush()
        yield f"/dev/fd/{copy.fileno()}"


@contextlib.contextmanager
def write_whole(target: Path, own: str = "") -> Iterator[Path]:
    """A hidden path to write to, which gets the name `target` at the end, on disk, or is removed after an error.

    Those who write to one target at once have an `own` part of its name each.
    """
    from tagmatch.model.storage.files import sync  # not before: help comes at once

    if target.is_dir():
        raise TagMatchError(f"{target} is a folder; give the name of a file")
    part = target.with_name(f".{target.name}{own}.part")
    try:
        yield part
        sync(part)
        part.replace(target)
    except OSError as error:
        raise TagMatchError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


Stream = BinaryIO | Output


@contextlib.contextmanager
def open_output(path: str, compression: str | None = None) -> Iterator[Stream]:
    """Open a stream, such as a pipe or standard output (`-`), or a file that appears only when it is whole."""
    with contextlib.ExitStack() as stack:
        stream: Stream
        if is_stream(path):
            descriptor = stack.enter_context(_opened(path, 1, os.O_WRONLY))
            stream = Output(descriptor, STANDARD_OUTPUT if descriptor == 1 else path)
        else:
            part = stack.enter_context(write_whole(Path(path), f".{os.getpid()}-{next(_parts)}"))
            stream = stack.enter_context(part.open("wb"))
        if compression is None:
            yield stream
        else:
            import pyarrow as pa  # not before: help comes at once

            with pa.CompressedOutputStream(pa.PythonFile(stream, "w"), compression) as compressed:
                yield compressed
