"""An index on a store that Arrow reaches: S3, Google Cloud Storage, Azure, HDFS.

An index there has the files of one in a folder. A reader copies them to this machine, once for all processes of
an executor; a writer uploads them, and the manifest last: then the new snapshot has become the index's.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs

from tagmatch.model.errors import IndexCorruptError, IndexExistsError, InvalidValueError, TagMatchError
from tagmatch.model.storage.folder import Folder
from tagmatch.model.storage.format import (
    MANIFEST,
    OF_SNAPSHOTS,
    SCRATCH_PREFIX,
    Entry,
    Manifest,
    are_whole,
    check_contents,
    files_of,
    gone,
    manifest_missing,
    manifest_text,
    parse_manifest,
    reject_changed,
    reject_other_files,
    within,
)
from tagmatch.model.storage.history import (
    alone,
    check_kept,
    manifest_by_number,
    names_needed,
    reject_number,
    succeed,
    with_staged,
)
from tagmatch.model.storage.partial import InPlace, fetched_from
from tagmatch.model.storage.shared_files import StoreFiles, Written, folder_for_copies, one_process, temporary_folder
from tagmatch.model.storage.stores import StoreFolder, StoreOptions, in_a_line
from tagmatch.model.storage.tables import check_file, write_snapshot
from tagmatch.model.tables import Snapshot


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of a store with an index, or for one.

    Attributes
    ----------
    folder : StoreFolder
    number : int, optional
        Of the one snapshot that is to be read; `None`: the current one, whichever that is.
    """

    folder: StoreFolder
    number: int | None = None

    @classmethod
    def at(cls, uri: str, options: StoreOptions | None = None) -> Store:
        """The index at a URI; errors as `StoreFolder.reach`."""
        folder = StoreFolder(uri, options=options)
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

    def numbered(self, number: int) -> Store:
        """As `Location` says."""
        return replace(self, number=number)

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

    def manifest(self) -> Manifest:
        """As `Location` says."""
        return manifest_by_number(self.number, self._current_manifest, self.folder.read, self)

    def _current_manifest(self) -> Manifest:
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

    def in_place(self, name: str) -> InPlace:
        """As `Location` says; what was fetched stays on this machine, for as long as copies do."""
        manifest = self.manifest()
        if manifest["snapshot"] != name:
            raise gone(self, name)
        return fetched_from(self.folder, manifest, self.manifest, folder_for_copies() / f"parts-{self._name_of_copy}")

    def local_copy(self) -> Folder:
        """A copy in a folder of this machine, made anew if the index has another snapshot by now; errors as `open`."""
        try:
            copy = Folder(folder_for_copies() / f"index-{self._name_of_copy}")
            if _holds(copy, self._manifest_alone()):
                return copy
            with one_process(copy.path):
                while not _holds(copy, manifest := self._manifest_alone()):
                    try:
                        self._copy(manifest, copy)
                    except (FileNotFoundError, TagMatchError) as error:
                        # The writer of a newer snapshot has removed the files of this one.
                        if self._manifest_alone() != manifest:
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

    @property
    def _name_of_copy(self) -> str:
        return self.folder.digest + ("" if self.number is None else f"-{self.number}")

    def _manifest_alone(self) -> Manifest:
        return alone(self.manifest())

    def _copy(self, manifest: Manifest, copy: Folder) -> None:
        """Copy the files that the copy does not have yet of an earlier snapshot."""
        copy.path.mkdir(exist_ok=True)
        here = os.listdir(copy.path)
        with copy.unfinished() as unfinished:
            for path, expected in files_of(manifest["segments"]).items():
                if path.partition("/")[0] not in here:
                    (unfinished / path).parent.mkdir(exist_ok=True)
                    self.folder.download(path, unfinished / path)
                    check_file(unfinished, path, expected, check_contents)
            copy.commit(unfinished, manifest, {})

    def verify(self, files: Mapping[str, Entry]) -> None:
        """As `Location` says; of a copy on this machine."""
        self.local_copy().verify(files)

    def check_kept(self) -> None:
        """As `Location` says."""
        check_kept(self.manifest, self.folder.read, self.folder.checksum, self)

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

    def check_reloadable(self) -> None:
        """As `Location` says."""
        reject_number(self.number, self)

    def save(self, snapshot: Snapshot, keep: int | None = None) -> None:
        """As `Location` says; only one program at a time may."""
        current = self.replaceable()
        self.commit(*succeed(self.prepare(snapshot, ()), current, keep))

    def prepare(self, snapshot: Snapshot, there: Sequence[Entry]) -> Manifest:
        """As `Location` says. The files are made on this machine, and uploaded."""
        try:
            with temporary_folder() as made:
                manifest = write_snapshot(snapshot, made, there)
                files = files_of(manifest["segments"])
                for name in os.listdir(made):
                    own = within(files, name)
                    place = self.folder.folder(name)
                    if place.kind() == pa.fs.FileType.NotFound or not are_whole(own, self.folder.checksum):
                        self.upload(made, name, own)
                return manifest
        except (OSError, pa.ArrowException) as error:
            raise TagMatchError(f"cannot write the index {self}: {in_a_line(error)}") from error

    def switch(self, manifest: Manifest, base: str | None, written: Written | None = None) -> None:
        """As `Location` says; only one program at a time may, as nobody can see whether another is about to."""
        if written is not None:
            self._take(written, manifest)
        current = self.manifest() if self.has_index() else None
        reject_changed(self, current or {}, base)
        next_one, kept = succeed(manifest, current)
        self.commit(with_staged(next_one, current), kept)

    def replace(self, manifest: Manifest, written: Written) -> None:
        """As `Location` says; only one program at a time may."""
        current = self.replaceable()
        self._take(written, manifest)
        self.commit(*succeed(manifest, current))

    def _take(self, written: Written, manifest: Manifest) -> None:
        """Move files to their places, unless those of a snapshot are there."""
        assert isinstance(written.files, StoreFiles)
        files, sources = files_of(manifest["segments"]), written.files.folder
        for name in {path.partition("/")[0] for path in written.names}:
            place, own = self.folder.folder(name), within(files, name)
            if place.kind() == pa.fs.FileType.NotFound or not are_whole(own, self.folder.checksum):
                sources.move({written.names[path]: path for path in own}, self.folder)

    def replaceable(self) -> Manifest | None:
        """The manifest of the index, if there is one that is not damaged; errors as `save`."""
        with contextlib.suppress(IndexCorruptError):
            return self.manifest() if self.has_index() else None
        return None

    def commit(self, manifest: Manifest, kept: Mapping[str, bytes]) -> None:
        """Make a snapshot the current one, whose files are there; others are removed. `kept` as of `Folder.commit`."""
        for name, text in kept.items():
            self.folder.write(name, text)
        self.folder.write(MANIFEST, manifest_text(manifest))
        needed = names_needed(manifest, self.folder.read, self)
        if needed is None:
            return  # nothing is removed that an earlier snapshot may need
        for other in self.folder.names():
            if other.startswith(OF_SNAPSHOTS) and other not in needed:
                self.folder.folder(other).try_to_remove()

    def upload(self, made: Path, name: str, files: Iterable[str]) -> None:
        """Upload what lies in the folder `made`: the file with this name, or a folder with these files."""
        place = self.folder.folder(name)
        existed = place.kind() != pa.fs.FileType.NotFound
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


def _holds(copy: Folder, manifest: Manifest) -> bool:
    return (copy.path / MANIFEST).exists() and copy.manifest() == manifest
