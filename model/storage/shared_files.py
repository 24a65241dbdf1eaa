"""Files that processes on several machines leave for each other, and where copies lie on this machine."""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tagmatch.model.errors import TagMatchError
from tagmatch.model.storage.files import locked, remove
from tagmatch.model.storage.stores import StoreFolder

# Folders for copies of this process and those that it was forked from; the last one is in use
_made: list[Path] = []


class Files(Protocol):
    """Files that processes on several machines leave for each other; each appears under its name whole, at once."""

    def new(self, name: str) -> AbstractContextManager[Path]:
        """Give a path of this machine, at which to write the file of that name; it appears when it is whole."""

    def map(self, name: str, *, keep: bool = False) -> pa.MemoryMappedFile:
        """Map a file into memory; `keep` if other processes of this machine need it, too."""

    def kept(self, name: str) -> Path:
        """The path on this machine of a file that other processes here need, too."""

    def local_folder(self) -> Path:
        """Return a folder of this machine with room for files, which their maker removes."""


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """Files in a folder that all machines mount under the same path.

    Attributes
    ----------
    folder : Path
    """

    folder: Path

    @contextlib.contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """As `Files` says."""
        part = self.local_folder() / f"{name}.{uuid.uuid4().hex}"
        yield part
        os.replace(part, self.folder / name)

    def map(self, name: str, *, keep: bool = False) -> pa.MemoryMappedFile:  # noqa: ARG002
        """As `Files` says."""
        return pa.memory_map(str(self.folder / name))

    def kept(self, name: str) -> Path:
        """As `Files` says."""
        return self.folder / name

    def local_folder(self) -> Path:
        """As `Files` says: the folder itself.

        Raises
        ------
        TagMatchError
            This machine does not have the folder.
        """
        if not self.folder.is_dir():
            raise TagMatchError(
                f"{os.uname().nodename} has no folder {self.folder}, which another machine has made: an index must be "
                "where all machines mount the same folder, or on a store that all of them reach"
            )
        return self.folder


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """Files on a store, which are copied to this machine when they are needed.

    Attributes
    ----------
    folder : StoreFolder
    """

    folder: StoreFolder

    @contextlib.contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """Give a path of this machine; what is written there is uploaded afterwards."""
        part = self.local_folder() / uuid.uuid4().hex
        try:
            yield part
            self.folder.upload(part, name)
        finally:
            part.unlink(missing_ok=True)

    def map(self, name: str, *, keep: bool = False) -> pa.MemoryMappedFile:
        """Map a copy into memory, which goes with what maps it or, with `keep`, stays for other processes."""
        if keep:
            return pa.memory_map(str(self.kept(name)))
        file = self.local_folder() / uuid.uuid4().hex
        try:
            self.folder.download(name, file)
            return pa.memory_map(str(file))
        finally:
            file.unlink(missing_ok=True)

    def kept(self, name: str) -> Path:
        """As `Files` says: of a copy."""
        file = self.local_folder() / f"{self.folder.digest}-{name}"
        if not file.exists():
            with one_process(file):
                if not file.exists():
                    part = file.with_name(uuid.uuid4().hex)
                    self.folder.download(name, part)
                    os.replace(part, file)
        return file

    def local_folder(self) -> Path:
        """A folder of this machine."""
        return folder_for_copies()


@dataclass(frozen=True, slots=True)
class Written:
    """Files that are whole, and are to become those of an index.

    Attributes
    ----------
    files : Files
        As the index's `scratch` gives them.
    names : dict of str to str
        By their paths within the index, their names among `files`.
    """

    files: Files
    names: dict[str, str]


def folder_for_copies() -> Path:
    """A folder for copies: our own or, in a worker of Spark, one of its executor, which removes it when it ends.

    Forked children share it, and leave it to the process that made it.
    """
    executors = Path(os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0])
    if executors.name.startswith("blockmgr-"):
        folder = executors / "tagmatch"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    if not (_made and _made[-1].is_dir()):  # the process that made it has ended
        _made.append(folder_of_this_process())
    return _made[-1]


def folder_of_this_process() -> Path:
    """A new folder of this machine, which goes when this process ends, but not when a forked child of it does."""
    folder = Path(tempfile.mkdtemp(prefix="tagmatch-"))
    atexit.register(_remove_own, folder, os.getpid())
    return folder


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder among the copies, for the block; one of `tempfile` would go when a forked child ends, too."""
    folder, maker = Path(tempfile.mkdtemp(prefix="tagmatch-", dir=folder_for_copies())), os.getpid()
    try:
        yield folder
    finally:
        _remove_own(folder, maker)


def _remove_own(folder: Path, maker: int) -> None:
    if os.getpid() == maker:
        remove(folder)


def one_process(path: Path) -> contextlib.AbstractContextManager[None]:
    """Have one process of this machine at a time make what belongs at a path."""
    return locked(path.parent, f"{path.name}.lock")
