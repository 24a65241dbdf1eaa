"""Files of this machine: durable writes, plain files, locks, and checksums.

The folder of an index may be a stranger's: only plain files in it are opened, and through no link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

import xxhash

from tagmatch.model.errors import IndexCorruptError, TagMatchError
from tagmatch.model.parallel import reject_given_up

#: What a manifest says of a file, or of a segment
Entry: TypeAlias = dict[str, Any]

#: What to do about damage
ADVICE = "build the index again or restore it from a copy"

# To clear a small one takes no longer than to read a small file
_BLOCK = 1 << 20

# Of a link or, opened for writing, of a pipe without a reader, a socket or a folder
_NO_PLAIN_FILE = {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR}
# macOS has no O_PATH: there, folders have to be readable
_A_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# To open a pipe would wait until its other end is open
_A_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

# Of the modes of files, what those may do who do not own them
_READ, _WRITE = 0o044, 0o022

# -- on disk -----------------------------------------------------------------------------------------------------------


def sync(path: Path) -> None:
    """Put a file's contents, or a folder's names, on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(file: Path, text: bytes) -> None:
    """Write and sync a new file, but not its name. Whatever has its name goes: to write to a link would follow it."""
    remove(file)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as new:
        new.write(text)
    sync(file)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it, or leave it to the next that comes by; of a link, the link.

    Ctrl-C while a folder is removed ends this when all of it is gone; a second one leaves the rest.
    """
    if path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path, ignore_errors=True)
        except KeyboardInterrupt:
            shutil.rmtree(path, ignore_errors=True)
            raise
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def make_folder(path: Path) -> list[Path]:
    """Make a folder and those that it is in, each synced before the next; returns which were not there.

    The last one that is there may have been made by a program that was killed before it synced it.
    """
    path = path.absolute()
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    there = missing[-1].parent if missing else path
    with contextlib.suppress(PermissionError):  # it belongs to another user, so tagmatch did not make it
        sync(there.parent)
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
    return missing


# -- plain files -------------------------------------------------------------------------------------------------------


def open_plain(folder: Path, name: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file by its name below a folder, `keys.arrow` or `segment/keys.arrow`; returns the descriptor.

    IndexCorruptError: the file is a link or no plain file, or the folder below that it is in is a link; OSError.
    """
    *above, last = name.split("/")
    try:
        at = os.open(folder, _A_FOLDER)
    except OSError as error:
        error.filename = str(folder / name)
        raise
    try:
        for part in above:
            inner = os.open(part, _A_FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        opened = os.open(last, flags | _A_FILE, mode, dir_fd=at)
    except OSError as error:
        if error.errno in _NO_PLAIN_FILE:
            raise _rejected(folder, name) from None
        error.filename = str(folder / name)
        raise
    finally:
        os.close(at)
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise _rejected(folder, name)


def plain_file(folder: Path, name: str, mode: str = "rb") -> FileIO:
    """A plain file below a folder, opened; errors as `open_plain`."""
    return FileIO(name, mode, opener=partial(open_plain, folder))


def _rejected(folder: Path, name: str) -> IndexCorruptError:
    return IndexCorruptError(
        f"{folder / name} is a link, or no plain file: an index has only plain files in it; restore the index from a "
        "copy that has the file itself"
    )


# -- locks between processes: one at a time holds the lock of a file ---------------------------------------------------


@contextlib.contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of a file below a folder, which is made if need be and stays; wait for another holder.

    The lock goes with the process that holds it, however it ends. Errors as `open_plain`.
    """
    with FileLock(folder, name) as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


class FileLock(FileIO):
    """The lock of a file, which is closed to users without the right to write it: to open a file is enough to lock it.

    One that is opened to look whether it is locked stays as it is. See `Lock`.
    """

    def __init__(self, folder: Path, name: str, mode: str = "ab") -> None:
        super().__init__(name, mode, opener=partial(open_plain, folder))
        self._path = folder / name
        try:
            found = os.fstat(self.fileno())
            mode_found = stat.S_IMODE(found.st_mode)
            readers = _READ & ~((mode_found & _WRITE) << 1)
            if mode == "ab" and mode_found & readers and found.st_nlink == 1:
                with contextlib.suppress(OSError):  # of another user
                    os.fchmod(self.fileno(), mode_found & ~readers)
        except BaseException:
            self.close()
            raise

    def take(self, kind: int) -> bool:
        """Take the lock, alone or as one of many, if it can be had at once."""
        try:
            fcntl.flock(self, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @property
    def is_there(self) -> bool:
        """See `Lock`."""
        try:
            return os.path.samestat(os.fstat(self.fileno()), self._path.stat())
        except OSError:
            return False


# -- checksums ---------------------------------------------------------------------------------------------------------


def checksum_of(source: Any, block_size: int = _BLOCK) -> str:
    """XXH3-64 of the rest of an open file, as manifests have it."""
    digest = xxhash.xxh3_64()
    block = bytearray(block_size)
    view = memoryview(block)
    while count := source.readinto(block):
        reject_given_up()
        digest.update(view[:count])
    return digest.hexdigest()


def checksum_of_descriptor(descriptor: int) -> str:
    """The checksum of an open file, from its first byte on."""
    with open(descriptor, "rb", buffering=0, closefd=False) as source:
        source.seek(0)
        return checksum_of(source)


def check_file(descriptor: int, name: object, expected: Entry, *, wholly: bool = True) -> None:
    """Reject an open file of another size or, wholly, checksum than a manifest says; IndexCorruptError."""
    size = os.fstat(descriptor).st_size
    if size != expected["bytes"]:
        raise IndexCorruptError(f"{name} has {size} bytes instead of {expected['bytes']}; {ADVICE}")
    if wholly:
        check_checksum(checksum_of_descriptor(descriptor), name, expected)


def check_checksum(found: str, name: object, expected: Entry) -> None:
    """Reject a file with another checksum than a manifest says; IndexCorruptError."""
    if found != expected["xxh3_64"]:
        raise IndexCorruptError(f"{name} does not have the checksum that it was written with; {ADVICE}")


@contextlib.contextmanager
def telling_errors(name: object) -> Iterator[None]:
    """Tell which file of an index is missing or cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise IndexCorruptError(f"{name} is missing; {ADVICE}") from None
    except OSError as error:
        raise TagMatchError(f"cannot read {name}: {error}") from error
