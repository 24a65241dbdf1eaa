"""Files mapped into memory, one behind the other, and whether they still are as they were when they were mapped.

What another program does to such a file, the memory shows at once: of a file that was cut short, the end of the last
page reads as zeros, and to read pages behind that ends the process. Descriptors stay open, so that each file can be
looked at, even after its name is gone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import offsets_of
from tagmatch.model.errors import IndexCorruptError
from tagmatch.model.storage.format import ADVICE, checksum_of_descriptor

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


@dataclass(slots=True, eq=False, weakref_slot=True)
class OpenFile:
    """A file that is open for as long as this object is there.

    Attributes
    ----------
    path : Path
    descriptor : int
    checksum : str
        That it has to have, as manifests have it.
    """

    path: Path
    descriptor: int
    checksum: str
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
        """See that the file is as it was opened: by size and time or, where these differ, by its checksum.

        Raises
        ------
        IndexCorruptError
            It is not.
        """
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
    """Files in memory one behind the other, as one buffer, for as long as that is in use.

    Raises
    ------
    IndexCorruptError
        They cannot be parts of one file.
    OSError
        One cannot be mapped.
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
    """A range of addresses of this process; it goes when nobody has this object any more."""

    def __init__(self, size: int) -> None:
        self.first = _map(None, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        weakref.finalize(self, _libc.munmap, self.first, size).atexit = False


def _map(address: int | None, size: int, flags: int, descriptor: int) -> int:
    found: int | None = _libc.mmap(address, size, mmap.PROT_READ, flags, descriptor, 0)
    if found is None or found == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found
