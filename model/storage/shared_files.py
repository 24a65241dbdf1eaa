"""Files that processes on several machines leave for each other, and where copies lie on this machine."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tagmatch.model.errors import TagMatchError
from tagmatch.model.storage.file_lock import locked
from tagmatch.model.storage.store_folder import StoreFolder


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


@functools.cache
def folder_for_copies() -> Path:
    """A folder for copies: our own or, in a worker of Spark, one of its executor, which removes it when it ends."""
    executors = Path(os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0])
    if executors.name.startswith("blockmgr-"):
        folder = executors / "tagmatch"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = Path(tempfile.mkdtemp(prefix="tagmatch-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def one_process(path: Path) -> contextlib.AbstractContextManager[None]:
    """Have one process of this machine at a time make what belongs at a path."""
    return locked(path.with_name(f"{path.name}.lock"))
