"""Where an index lies: a folder that machines mount, or a store that they reach through Arrow."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa

from tagmatch.model.errors import InvalidTypeError, TagMatchError
from tagmatch.model.storage.format import SCRATCH_PREFIX, index_exists, is_uri, read_manifest, save_snapshot
from tagmatch.model.storage.remote import RemoteIndex
from tagmatch.model.tables import Snapshot

_FILE = re.compile(r"file:(//(localhost)?)?(?P<path>/[^/].*)")


class Files(Protocol):
    """Files that processes on several machines leave for each other; each appears under its name whole, at once."""

    def new(self, name: str) -> AbstractContextManager[Path]:
        """Give a path of this machine, at which to write the file of that name; it appears when it is whole."""

    def map(self, name: str, *, keep: bool = False) -> pa.MemoryMappedFile:
        """Map a file into memory; `keep` if other processes of this machine need it, too."""

    def local_folder(self) -> Path:
        """Return a folder of this machine with room for files, which their maker removes."""


class Place(Protocol):
    """The place of an index, which is the same on all machines."""

    def index_exists(self) -> bool:
        """As `storage.format.index_exists`."""

    def manifest(self) -> dict[str, Any]:
        """As `storage.format.read_manifest`."""

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """As `storage.format.save_snapshot`."""

    def local_index(self) -> Path:
        """Folder of this machine with the index as it is now; errors as `open_snapshot`."""

    def scratch(self) -> AbstractContextManager[Files]:
        """A place for files, which are removed afterwards. What a killed one has left is removed now."""


@dataclass(frozen=True, slots=True)
class MountedIndex:
    """An index in a folder that all machines mount under the same path.

    Attributes
    ----------
    path : Path
    """

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def index_exists(self) -> bool:
        """As `Place` says."""
        return index_exists(self.path)

    def manifest(self) -> dict[str, Any]:
        """As `Place` says."""
        return read_manifest(self.path)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """As `Place` says."""
        save_snapshot(snapshot, self.path)

    def local_index(self) -> Path:
        """As `Place` says: the folder itself."""
        return self.path

    @contextlib.contextmanager
    def scratch(self) -> Iterator[MountedFiles]:
        """As `Place` says: a folder in that of the index."""
        created = not self.path.exists()
        folder = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for left in self.path.glob(f"{SCRATCH_PREFIX}*"):
                shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=self.path))
            folder.chmod(0o777)  # other machines' processes may be another user's
            yield MountedFiles(folder)
        except OSError as error:
            raise TagMatchError(f"cannot write the index {self}: {error}") from error
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            if created:
                with contextlib.suppress(OSError):
                    self.path.rmdir()  # which only an empty folder lets be done to it


@dataclass(frozen=True, slots=True)
class MountedFiles:
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


def place_of(index: str | os.PathLike[str]) -> Place:
    """Return the place of an index that is given as a path, or as a URI.

    Raises
    ------
    InvalidTypeError
        It is neither.
    InvalidValueError, TagMatchError
        It is a URI of something that Arrow does not reach.
    """
    if not isinstance(index, str | os.PathLike) or not isinstance(text := os.fspath(index), str):
        raise InvalidTypeError(f"index must be a path, not {index!r}")
    if not is_uri(text):
        return MountedIndex(Path(text).absolute())
    if not isinstance(index, str):
        raise InvalidTypeError(f"a URI must be a str, not a {type(index).__name__}, which changes its slashes")
    if file := _FILE.match(text):
        return MountedIndex(Path(unquote(file["path"])))
    return RemoteIndex.at(text)
