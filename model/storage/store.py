"""An index on a store that Arrow reaches: S3, Google Cloud Storage, Azure, HDFS.

An index there has the files of one in a folder. A reader copies them to this machine, once for all processes of
an executor; a writer uploads them, and the manifest last: then the new snapshot has become the index's.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs
import xxhash

from tagmatch.model.errors import IndexCorruptError, IndexExistsError, InvalidValueError, TagMatchError
from tagmatch.model.storage.file_lock import locked
from tagmatch.model.storage.folder import Folder
from tagmatch.model.storage.format import (
    MANIFEST,
    OF_SNAPSHOTS,
    SCRATCH_PREFIX,
    Entry,
    are_whole,
    check_contents,
    files_of,
    manifest_missing,
    manifest_text,
    names_of,
    parse_manifest,
    reject_changed,
    reject_other_files,
)
from tagmatch.model.storage.snapshots import write_snapshot
from tagmatch.model.storage.store_folder import StoreFolder, in_a_line
from tagmatch.model.tables import Snapshot


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of a store with an index, or for one.

    Attributes
    ----------
    folder : StoreFolder
    """

    folder: StoreFolder

    @classmethod
    def at(cls, uri: str) -> Store:
        """The index at a URI; errors as `StoreFolder.reach`."""
        folder = StoreFolder(uri)
        folder.reach()
        return cls(folder)

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def address(self) -> str:
        """As `Location` says."""
        return self.folder.uri

    @property
    def log_folder(self) -> None:
        """As `Location` says: nobody can change an index on a store."""

    def absolute(self) -> Store:
        """As `Location` says."""
        return self

    # -- reading -----------------------------------------------------------------------------------------------------

    def has_index(self) -> bool:
        """As `Location` says."""
        if self.folder.kind() == pa.fs.FileType.File:
            raise IndexExistsError(f"{self} is a file, not an index folder; choose another path")
        names = self.folder.names()
        if MANIFEST in names:
            return True
        reject_other_files(self, names)
        return False

    def manifest(self) -> dict[str, Any]:
        """As `Location` says."""
        try:
            return parse_manifest(self.folder.read(MANIFEST), self)
        except FileNotFoundError:
            raise manifest_missing(self) from None

    def open(self) -> Snapshot:
        """As `Location` says; of a copy on this machine."""
        return self.local_copy().open()

    def open_unverified(self, name: str) -> Snapshot:
        """As `Location` says; of a copy on this machine."""
        return self.local_copy().open_unverified(name)

    def local_copy(self) -> Folder:
        """A copy in a folder of this machine, made anew if the index has another snapshot by now; errors as `open`."""
        try:
            copy = Folder(_local_folder() / f"index-{_hash(self.folder)}")
            if _holds(copy, self.manifest()):
                return copy
            with _one_process(copy.path):
                while not _holds(copy, manifest := self.manifest()):
                    try:
                        self._copy(manifest, copy)
                    except (FileNotFoundError, TagMatchError) as error:
                        # The writer of a newer snapshot has removed the files of this one.
                        if self.manifest() != manifest:
                            continue
                        if isinstance(error, FileNotFoundError):
                            raise IndexCorruptError(f"{self} lacks a file: {in_a_line(error)}") from None
                        if isinstance(error, IndexCorruptError):
                            raise IndexCorruptError(f"a copy of {self} is damaged: {error}") from None
                        raise
            return copy
        except OSError as error:
            raise TagMatchError(
                f"cannot copy {self} to this machine: {in_a_line(error)}; the variable TMPDIR says in which folder"
            ) from error

    def _copy(self, manifest: dict[str, Any], copy: Folder) -> None:
        """Copy the files that the copy does not have yet of an earlier snapshot."""
        copy.path.mkdir(exist_ok=True)
        here = os.listdir(copy.path)
        with copy.unfinished() as unfinished:
            for path, expected in files_of(manifest["segments"]).items():
                if path.partition("/")[0] not in here:
                    (unfinished / path).parent.mkdir(exist_ok=True)
                    self.folder.download(path, unfinished / path)
                    check_contents(unfinished / path, expected)
            copy.commit(unfinished, manifest)

    # -- writing -----------------------------------------------------------------------------------------------------

    def check_writable(self) -> NoReturn:
        """As `Location` says: stores have no locks, so nobody can see whether another program writes."""
        raise InvalidValueError(
            f"cannot change {self}: an index on a store is read-only; change one in a folder and put it there with "
            "save(), or build it with tagmatch.spark.partition or `tagmatch-partition`"
        )

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """As `Location` says: is refused."""
        self.check_writable()

    def written_ahead(self, *_: Any) -> NoReturn:
        """As `Location` says: is refused."""
        self.check_writable()

    def save(self, snapshot: Snapshot) -> None:
        """As `Location` says; only one program at a time may."""
        self.has_index()
        self._commit(self.prepare(snapshot, ()))

    def prepare(self, snapshot: Snapshot, there: Sequence[Entry]) -> dict[str, Any]:
        """As `Location` says. The files are made on this machine, and uploaded."""
        try:
            with tempfile.TemporaryDirectory(prefix="tagmatch-", dir=_local_folder()) as path:
                made = Path(path)
                manifest = write_snapshot(snapshot, made, there)
                for file in made.iterdir():
                    self._upload(made, file.name, manifest)
                return manifest
        except (OSError, pa.ArrowException) as error:
            raise TagMatchError(f"cannot write the index {self}: {in_a_line(error)}") from error

    def switch(self, manifest: dict[str, Any], base: str | None) -> None:
        """As `Location` says; only one program at a time may, as nobody can see whether another is about to."""
        reject_changed(self, self.manifest() if self.has_index() else {}, base)
        self._commit(manifest)

    def _commit(self, manifest: dict[str, Any]) -> None:
        self.folder.write(MANIFEST, manifest_text(manifest))
        wanted = names_of(manifest["segments"])
        for other in self.folder.names():
            if other.startswith(OF_SNAPSHOTS) and other not in wanted:
                self.folder.folder(other).try_to_remove()

    def _upload(self, made: Path, name: str, manifest: dict[str, Any]) -> None:
        """Upload a file, or the files of a segment, unless there: some stores truncate a file that is written again."""
        files = {path: each for path, each in files_of(manifest["segments"]).items() if path.partition("/")[0] == name}
        place = self.folder.folder(name)
        existed = place.kind() != pa.fs.FileType.NotFound
        if existed and are_whole(files, self.folder.checksum):
            return
        try:
            if (made / name).is_dir():
                place.create()
            for path in files:
                self.folder.upload(made / path, path)
        except BaseException:
            if not existed:
                place.try_to_remove()
            raise

    @contextlib.contextmanager
    def scratch(self) -> Iterator[StoreFiles]:
        """A folder beside the snapshots, which is removed afterwards, as are those of scratch that was left there."""
        existed = self.folder.kind() == pa.fs.FileType.Directory
        for name in self.folder.names():
            if name.startswith(SCRATCH_PREFIX):
                self.folder.folder(name).try_to_remove()
        folder = self.folder.folder(f"{SCRATCH_PREFIX}{uuid.uuid4().hex}")
        try:
            folder.create()
            yield StoreFiles(folder)
        finally:
            folder.try_to_remove()
            with contextlib.suppress(TagMatchError):
                # Stores may keep a mark of the folder; what was there may be a whole bucket
                if not existed and not self.folder.names():
                    self.folder.remove()


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
        file = self.local_folder() / (f"{_hash(self.folder)}-{name}" if keep else uuid.uuid4().hex)
        if not keep:
            try:
                self.folder.download(name, file)
                return pa.memory_map(str(file))
            finally:
                file.unlink(missing_ok=True)
        with _one_process(file):
            if not file.exists():
                part = file.with_name(uuid.uuid4().hex)
                self.folder.download(name, part)
                os.replace(part, file)
        return pa.memory_map(str(file))

    def local_folder(self) -> Path:
        """A folder of this machine."""
        return _local_folder()


def _holds(copy: Folder, manifest: dict[str, Any]) -> bool:
    return (copy.path / MANIFEST).exists() and copy.manifest() == manifest


def _hash(folder: StoreFolder) -> str:
    return xxhash.xxh3_64_hexdigest(f"{folder.uri}\n{folder.below}".encode())


@functools.cache
def _local_folder() -> Path:
    """Folder for copies: our own or, in a worker of Spark, one of its executor, which removes it when it ends."""
    executors = Path(os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0])
    if executors.name.startswith("blockmgr-"):
        folder = executors / "tagmatch"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = Path(tempfile.mkdtemp(prefix="tagmatch-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _one_process(path: Path) -> contextlib.AbstractContextManager[None]:
    """Have one process of this machine at a time make what belongs at a path."""
    return locked(path.with_name(f"{path.name}.lock"))
