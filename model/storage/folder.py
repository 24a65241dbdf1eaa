"""An index in a folder of this machine, or in one that several machines mount under the same path."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tagmatch.model.errors import (
    IndexChangedError,
    IndexCorruptError,
    IndexExistsError,
    IndexNotFoundError,
    TagMatchError,
)
from tagmatch.model.storage.durable import make_folder, replace
from tagmatch.model.storage.file_lock import locked
from tagmatch.model.storage.format import (
    LOCK,
    MANIFEST,
    SCRATCH_PREFIX,
    SNAPSHOT_PREFIX,
    UNFINISHED_PREFIX,
    check_contents,
    check_size,
    checksum_of_file,
    is_whole,
    manifest_missing,
    manifest_text,
    parse_manifest,
    reject_other_files,
)
from tagmatch.model.storage.snapshot_files import Check, read_files, write_files
from tagmatch.model.tables import Snapshot


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with an index, or for one.

    Attributes
    ----------
    path : Path
    """

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def address(self) -> str:
        """As `Location` says."""
        return str(self.path)

    def absolute(self) -> Folder:
        """As `Location` says."""
        return Folder(self.path.absolute())

    # -- reading -----------------------------------------------------------------------------------------------------

    def has_index(self) -> bool:
        """As `Location` says."""
        try:
            if (self.path / MANIFEST).is_file():
                return True
            if self.path.exists() and not self.path.is_dir():
                raise IndexExistsError(f"{self} is a file, not an index folder; choose another path")
            if self.path.is_dir():
                reject_other_files(self, os.listdir(self.path))
            return False
        except OSError as error:
            raise TagMatchError(f"cannot look into {self}: {error.strerror or error}") from error

    def manifest(self) -> dict[str, Any]:
        """As `Location` says."""
        file = self.path / MANIFEST
        try:
            if not self.path.exists():
                raise IndexNotFoundError(f"there is no index at {self}: no such folder")
            if not self.path.is_dir():
                raise IndexNotFoundError(f"there is no index at {self}: it is a file, not a folder")
            return parse_manifest(file.read_bytes(), self)
        except FileNotFoundError:
            raise manifest_missing(self) from None
        except OSError as error:
            raise TagMatchError(f"cannot read {file}: {error}") from error

    def open(self) -> Snapshot:
        """As `Location` says."""
        while True:
            manifest = self.manifest()
            try:
                return self._snapshot(manifest, check_contents)
            except IndexCorruptError:
                # Another process may have made a newer snapshot current and removed the files of this one.
                if self.manifest() == manifest:
                    raise

    def open_unverified(self, name: str) -> Snapshot:
        """As `Location` says."""
        manifest = self.manifest()
        if manifest["snapshot"] == name:
            try:
                return self._snapshot(manifest, check_size)
            except IndexCorruptError:
                if self.manifest() == manifest:
                    raise
        raise IndexNotFoundError(f"the index {self} no longer has {name}: a newer snapshot was saved; ask again")

    def _snapshot(self, manifest: dict[str, Any], check: Check) -> Snapshot:
        name = str(manifest["snapshot"])
        return Snapshot((read_files(self.path / name, manifest, check),), name)

    # -- writing -----------------------------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """As `Location` says: a folder can be changed, unless the system says otherwise when it is."""

    def save(self, snapshot: Snapshot) -> None:
        """As `Location` says. Another writer is waited for, and what one that was killed has left is removed."""
        self._save(snapshot, set(), lambda: None)

    def update(self, snapshot: Snapshot, known: set[str]) -> str:
        """As `Location` says."""

        def is_known() -> None:
            if self.has_index() and self.manifest()["snapshot"] not in known:
                raise IndexChangedError(
                    f"another program has saved changes to the index {self}; staged changes are still staged: call "
                    "reload() and then consolidate() again"
                )

        return self._save(snapshot, known, is_known)

    def _save(self, snapshot: Snapshot, known: set[str], check: Callable[[], None]) -> str:
        has_index = self.has_index()
        created: list[Path] = []
        try:
            if not has_index:
                created = make_folder(self.path)
            with locked(self.path / LOCK):
                check()
                self._remove_unfinished()
                with self.unfinished() as folder:
                    manifest = write_files(snapshot.only, folder)
                    known.add(manifest["snapshot"])
                    self.commit(folder, manifest)
                    return str(manifest["snapshot"])
        except (OSError, pa.ArrowException) as error:
            if created:
                with contextlib.suppress(OSError):
                    (self.path / LOCK).unlink(missing_ok=True)
                    self.path.rmdir()
            raise TagMatchError(f"cannot write the index {self}: {error}") from error

    def _remove_unfinished(self) -> None:
        """Remove what a writer that was killed has left. Jobs on several machines do that for their own files."""
        for left in self.path.glob(f"{UNFINISHED_PREFIX}*"):
            if not left.name.startswith(SCRATCH_PREFIX):
                shutil.rmtree(left, ignore_errors=True)

    @contextlib.contextmanager
    def unfinished(self) -> Iterator[Path]:
        """A new folder in this one, for the files of a snapshot; is removed if it is not committed."""
        unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED_PREFIX, dir=self.path))
        try:
            yield unfinished
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def commit(self, unfinished: Path, manifest: dict[str, Any]) -> None:
        """Make the files in the folder `unfinished` the current snapshot, and remove older ones."""
        folder = self.path / manifest["snapshot"]
        if not is_whole(manifest, lambda name: checksum_of_file(folder / name)):
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
        replace(self.path / MANIFEST, manifest_text(manifest))
        for entry in self.path.iterdir():
            if entry.name != manifest["snapshot"] and entry.name.startswith(SNAPSHOT_PREFIX):
                shutil.rmtree(entry, ignore_errors=True)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[FolderFiles]:
        """As `Location` says: a folder in that of the index."""
        created = not self.path.exists()
        folder = None
        try:
            make_folder(self.path)
            for left in self.path.glob(f"{SCRATCH_PREFIX}*"):
                shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=self.path))
            folder.chmod(0o777)  # other machines' processes may be another user's
            yield FolderFiles(folder)
        except OSError as error:
            raise TagMatchError(f"cannot write the index {self}: {error}") from error
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            if created:
                with contextlib.suppress(OSError):
                    self.path.rmdir()  # which only an empty folder lets be done to it


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
