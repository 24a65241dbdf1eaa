"""Files and folders that survive a crash of the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def sync(path: Path) -> None:
    """Have a file's contents, or a folder's names, on disk."""
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


def replace_file(file: Path, text: bytes) -> None:
    """Replace a file's contents in one step."""
    new = file.with_name(file.name + ".new")
    try:
        write_file(new, text)
        sync(file.parent)
        new.replace(file)
    except BaseException:
        remove(new)
        raise
    sync(file.parent)


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
    with contextlib.suppress(PermissionError):  # of someone else, so not by a program of ours
        sync(there.parent)
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
    return missing
