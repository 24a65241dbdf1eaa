"""An index in a folder of this machine, or in one that several machines mount under the same path."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from tagmatch.model.errors import (
    IndexChangedError,
    IndexCorruptError,
    IndexExistsError,
    IndexNotFoundError,
    InvalidValueError,
    TagMatchError,
)
from tagmatch.model.storage.files import (
    lock_at_once,
    locked,
    make_folder,
    read_plain,
    remove,
    replace_file,
    sync,
    write_file,
)
from tagmatch.model.storage.format import (
    LOCK,
    MANIFEST,
    OF_SNAPSHOTS,
    POSITIONS,
    SCRATCH_PREFIX,
    UNFINISHED_PREFIX,
    WRITER,
    Entry,
    Manifest,
    are_whole,
    check_contents,
    check_size,
    checksum_in,
    files_in,
    files_of,
    gone,
    manifest_missing,
    manifest_text,
    number_of,
    parse_manifest,
    reject_changed,
    reject_other_files,
    staged_of,
    within,
)
from tagmatch.model.storage.history import (
    Commit,
    check_kept,
    manifest_by_number,
    names_needed,
    reject_number,
    succeed,
    with_staged,
)
from tagmatch.model.storage.partial import InPlace, constrained
from tagmatch.model.storage.shared_files import FolderFiles, Written
from tagmatch.model.storage.tables import Check, check_file, read_segments, write_segment, write_snapshot
from tagmatch.model.tables import Segment, Snapshot

# A file in a folder that is not finished; its lock is held by the program that writes there
_OWNER = "owner"

# Folders that this process is about to write, and of segments that it has written ahead
_in_use: set[Path] = set()


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with an index, or for one.

    Attributes
    ----------
    path : Path
    number : int, optional
        Of the one snapshot that is to be read; `None`: the current one, whichever that is.
    """

    path: Path
    number: int | None = None

    def __str__(self) -> str:
        return str(self.path)

    def numbered(self, number: int) -> Folder:
        """As `Location` says."""
        return replace(self, number=number)

    @property
    def address(self) -> str:
        """As `Location` says."""
        return str(self.path)

    @property
    def log_folder(self) -> Path | None:
        """As `Location` says."""
        return self.path if self.number is None else None

    def absolute(self) -> Folder:
        """As `Location` says."""
        return replace(self, path=self.path.absolute())

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

    def manifest(self) -> Manifest:
        """As `Location` says."""
        return manifest_by_number(self.number, self._current_manifest, self.read, self)

    def _current_manifest(self) -> Manifest:
        try:
            if not self.path.exists():
                raise IndexNotFoundError(f"there is no index at {self}: no such folder")
            if not self.path.is_dir():
                raise IndexNotFoundError(f"there is no index at {self}: it is a file, not a folder")
            return parse_manifest(self.read(MANIFEST), self)
        except FileNotFoundError:
            raise manifest_missing(self) from None
        except OSError as error:
            raise TagMatchError(f"cannot read {self.path / MANIFEST}: {error}") from error

    def read(self, name: str) -> bytes:
        """The contents of a file of the index; FileNotFoundError, TagMatchError."""
        try:
            return read_plain(self.path, name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise TagMatchError(f"cannot read {self.path / name}: {error}") from error

    def open(self) -> Snapshot:
        """As `Location` says."""
        while True:
            manifest = self.manifest()
            try:
                self.verify({entry["name"]: entry for entry in staged_of(manifest)})
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
        raise gone(self, name)

    def in_place(self, name: str) -> InPlace:
        """As `Location` says; what is mapped into memory is read when it is looked at."""
        manifest = self.manifest()
        if manifest["snapshot"] != name:
            raise gone(self, name)
        return InPlace(self.open_unverified(name), constrained(manifest))

    def _snapshot(self, manifest: Manifest, check: Check) -> Snapshot:
        return Snapshot(read_segments(self.path, manifest, check), str(manifest["snapshot"]), number_of(manifest))

    def verify(self, files: Mapping[str, Entry]) -> None:
        """As `Location` says."""
        for name, expected in files.items():
            check_file(self.path, name, expected, check_contents)

    def check_kept(self) -> None:
        """As `Location` says."""
        check_kept(self.manifest, self.read, partial(checksum_in, self.path), self)

    # -- writing -----------------------------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """As `Location` says: a folder can be changed, unless the system says otherwise when it is."""
        if self.number is not None:
            raise InvalidValueError(
                f"cannot change snapshot {self.number} of the index {self}: what is opened by its number is read-only; "
                "open the index without a number, or have save() write this snapshot to a path"
            )

    def check_reloadable(self) -> None:
        """As `Location` says."""
        reject_number(self.number, self)

    def save(self, snapshot: Snapshot, keep: int | None = None) -> None:
        """As `Location` says. Another writer is waited for, and what one that was killed has left is removed."""
        # All files are written, and replace those that are there and damaged
        nameless = Snapshot(tuple(replace(segment, name=None) for segment in snapshot.segments))
        self._save(nameless, None, Commit(keep=keep))

    def update(self, snapshot: Snapshot, known: set[str], commit: Commit) -> Snapshot:
        """As `Location` says."""
        self.check_writable()
        return self._save(snapshot, known, commit)

    @contextlib.contextmanager
    def written_ahead(self, segment: Segment) -> Iterator[Entry]:
        """As `Location` says."""
        self.check_writable()
        with contextlib.ExitStack() as stack:
            try:
                with locked(self.path, LOCK):  # so that nobody takes it for what a killed one has left
                    folder = stack.enter_context(self.unfinished())
                entry = write_segment(segment, folder)
                there = self.path / entry["name"]
                _in_use.add(there)
                stack.callback(_in_use.discard, there)
                with locked(self.path, LOCK):  # another program may be about to save this very segment
                    if not there.exists():
                        stack.callback(self._remove_unless_saved, there)
                    self._move(folder, files_of([entry]))
            except (OSError, pa.ArrowException) as error:
                raise TagMatchError(f"cannot write the index {self}: {error}") from error
            yield entry

    def _remove_unless_saved(self, there: Path) -> None:
        """Remove a segment that was written ahead, if no snapshot has got it."""
        with contextlib.suppress(OSError, TagMatchError), locked(self.path, LOCK):
            needed = names_needed(self.manifest(), self.read, self)
            if needed is not None and there.name not in needed:
                remove(there)

    def _save(self, snapshot: Snapshot, known: set[str] | None, commit: Commit) -> Snapshot:
        """`update`; without `known`, whatever the index has now."""
        with self.writing() as folder:
            current = self.manifest() if self.has_index() else None
            if known is not None and current is not None and current["snapshot"] not in known:
                raise IndexChangedError(
                    f"another program has saved changes to the index {self}; staged changes are still staged: call "
                    "reload() and then consolidate() again"
                )
            there = [*(current["segments"] if current else ()), *commit.ahead]
            made = write_snapshot(snapshot, folder, there)
            # What merges segments, which are written ahead, changes no set
            manifest, kept = succeed(made, current, commit.keep, same_sets=bool(commit.ahead))
            if known is not None:
                known.add(manifest["snapshot"])
            self.commit(folder, with_staged(manifest, current, commit.log), kept)
        names = [entry["name"] for entry in manifest["segments"]]
        saved = [replace(segment, name=name) for segment, name in zip(snapshot.segments, names, strict=True)]
        return Snapshot(tuple(saved), str(manifest["snapshot"]), number_of(manifest))

    @contextlib.contextmanager
    def writing(self) -> Iterator[Path]:
        """Be the one that writes; gives a new folder in this one for files that are to be committed.

        This folder is made if need be, and goes again if it was and nothing could be written. Errors as `save`.
        """
        has_index = self.has_index()
        created: list[Path] = []
        try:
            if not has_index:
                created = make_folder(self.path)
            with locked(self.path, LOCK):
                self._remove_unfinished()
                with self.unfinished() as folder:
                    yield folder
        except (OSError, pa.ArrowException, TagMatchError) as error:
            if created and not (self.path / MANIFEST).exists():
                with contextlib.suppress(OSError):
                    for lock in (LOCK, WRITER):
                        (self.path / lock).unlink(missing_ok=True)
                    self.path.rmdir()
            if isinstance(error, TagMatchError):
                raise
            raise TagMatchError(f"cannot write the index {self}: {error}") from error

    def prepare(self, snapshot: Snapshot, there: Sequence[Entry]) -> Manifest:
        """As `Location` says."""
        try:
            with self.unfinished(SCRATCH_PREFIX) as folder:  # which no other writer removes
                manifest = write_snapshot(snapshot, folder, there)
                with locked(self.path, LOCK):
                    self._move(folder, files_of(manifest["segments"]))
                return manifest
        except (OSError, pa.ArrowException) as error:
            raise TagMatchError(f"cannot write the index {self}: {error}") from error

    def switch(self, manifest: Manifest, base: str | None, written: Written | None = None) -> None:
        """As `Location` says. Another writer is waited for."""
        self._switch(manifest, written, lambda current: reject_changed(self, current or {}, base))

    def replace(self, manifest: Manifest, written: Written) -> None:
        """As `Location` says. Another writer is waited for."""
        self._switch(manifest, written, lambda _: None)

    def _switch(self, manifest: Manifest, written: Written | None, check: Callable[[Manifest | None], None]) -> None:
        with self.writing() as folder:
            current = self.manifest() if self.has_index() else None
            check(current)
            if written is not None:
                _take(written, folder)
            next_one, kept = succeed(manifest, current)
            self.commit(folder, with_staged(next_one, current), kept)

    def replaceable(self) -> Manifest | None:
        """The manifest of the index, if there is one that is not damaged; errors as `save`."""
        with contextlib.suppress(IndexCorruptError):
            return self.manifest() if self.has_index() else None
        return None

    def _remove_unfinished(self) -> None:
        """Remove what a writer that was killed has left. Jobs on several machines do that for their own files."""
        for left in self.path.glob(f"{UNFINISHED_PREFIX}*"):
            if not left.name.startswith(SCRATCH_PREFIX) and left not in _in_use and _is_abandoned(left):
                remove(left)
        remove(self.path / f"{POSITIONS}.new")

    @contextlib.contextmanager
    def unfinished(self, prefix: str = UNFINISHED_PREFIX) -> Iterator[Path]:
        """A new folder in this one, for the files of a snapshot; is removed if it is not committed."""
        unfinished = self.path / f"{prefix}{uuid.uuid4().hex}"
        _in_use.add(unfinished)  # before others can see it
        try:
            unfinished.mkdir(mode=0o700)
            with locked(self.path, f"{unfinished.name}/{_OWNER}"):
                yield unfinished
        finally:
            remove(unfinished)
            _in_use.discard(unfinished)

    def commit(self, unfinished: Path, manifest: Manifest, kept: Mapping[str, bytes]) -> None:
        """Make a snapshot of files in the folder `unfinished`, and of some that are here, the current one.

        Others are removed, but for segments that are written ahead. `kept` has the manifest of the one before, if that
        is kept.
        """
        for name, text in kept.items():
            write_file(unfinished / name, text)
        self._move(unfinished, files_in(manifest))
        for name, expected in files_in(manifest).items():
            # One written ahead may have been removed by another program
            check_file(self.path, name, expected, check_size)
        replace_file(self.path / MANIFEST, manifest_text(manifest))
        needed = names_needed(manifest, self.read, self)
        if needed is None:
            return  # nothing is removed that an earlier snapshot may need
        for entry in self.path.iterdir():
            if entry.name.startswith(OF_SNAPSHOTS) and entry.name not in needed and entry not in _in_use:
                remove(entry)

    def _move(self, unfinished: Path, files: dict[str, Entry]) -> None:
        """Move files to their places, unless those of a snapshot are there."""
        for new in unfinished.iterdir():
            if new.name == _OWNER:
                continue
            there = self.path / new.name
            own = within(files, new.name)
            if not own or not are_whole(own, partial(checksum_in, self.path)):
                remove(there)
                new.rename(there)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[FolderFiles]:
        """As `Location` says: a folder in that of the index."""
        created = not self.path.exists()
        folder = None
        try:
            make_folder(self.path)
            for left in self.path.glob(f"{SCRATCH_PREFIX}*"):
                remove(left)
            folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=self.path))
            folder.chmod(0o777)  # other machines' processes may be another user's
            yield FolderFiles(folder)
        except OSError as error:
            raise TagMatchError(f"cannot write the index {self}: {error}") from error
        finally:
            if folder is not None:
                remove(folder)
            if created:
                with contextlib.suppress(OSError):
                    self.path.rmdir()  # which only an empty folder lets be done to it


def _take(written: Written, folder: Path) -> None:
    """Move files, which are synced, from a folder of the same file system to this one."""
    assert isinstance(written.files, FolderFiles)
    for path, name in written.names.items():
        place = folder / path
        if not place.parent.exists():
            place.parent.mkdir()
            place.parent.chmod(0o755)
        (written.files.folder / name).rename(place)
    for parent in {(folder / path).parent for path in written.names}:
        sync(parent)


def _is_abandoned(unfinished: Path) -> bool:
    """Whether nobody lives that writes to this folder, which was seen with the lock of the index held."""
    try:
        lock = lock_at_once(unfinished.parent, f"{unfinished.name}/{_OWNER}")
    except (OSError, IndexCorruptError):  # it is gone, or not one that we make, or no one here may write there
        return True
    if lock is not None:
        lock.close()
    return lock is not None
