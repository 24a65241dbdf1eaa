"""Files below the folder of an index, which may be a stranger's: only plain files are opened, and through no link."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from io import FileIO
from pathlib import Path

from tagmatch.model.errors import IndexCorruptError

# Of a link or, opened for writing, of a pipe without a reader, a socket or a folder
_NO_PLAIN_FILE = {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR}
_A_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# To open a pipe would wait until its other end is open
_A_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_plain(folder: Path, name: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file by its name below a folder, `keys.arrow` or `segment/keys.arrow`; returns the descriptor.

    The path of the folder itself may have links in it.

    Raises
    ------
    IndexCorruptError
        It is a link or a pipe, a device, a folder, or the folder that it should be in is a link.
    OSError
        It cannot be opened.
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


def read_plain(folder: Path, name: str) -> bytes:
    """The contents of a plain file below a folder; errors as `open_plain`."""
    with plain_file(folder, name) as file:
        return file.readall()


def _rejected(folder: Path, name: str) -> IndexCorruptError:
    return IndexCorruptError(
        f"{folder / name} is a link, or no plain file: an index has only plain files in it; restore the index from a "
        "copy that has the file itself"
    )
