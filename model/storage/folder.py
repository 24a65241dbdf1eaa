"""An index in a folder of this machine, or in one that several machines mount under the same path."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from tagmatch.model.storage.durable import make_folder, remove, replace_file
from tagmatch.model.storage.file_lock import locked
from tagmatch.model.storage.format import (
    LOCK,
    MANIFEST,
    OF_SNAPSHOTS,
    SCRATCH_PREFIX,
    UNFINISHED_PREFIX,
    Entry,
    are_whole,
    check_contents,
    check_size,
    checksum_of_file,
    files_of,
    manifest_missing,
    manifest_text,
    names_of,
    parse_manifest,
    reject_changed,
    reject_other_files,
)
from tagmatch.model.storage.segment_files import Check, read_segments, write_segment
from tagmatch.model.storage.snapshots import write_snapshot
from tagmatch.model.tables import Segment, Snapshot

# Folders that this process is about to write, and of segments that it has written ahead
_in_use: set[Path] = set()


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

    @property
    def log_folder(self) -> Path:
        """As `Location` says."""
        return self.path

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
        return Snapshot(read_segments(self.path, manifest, check), str(manifest["snapshot"]))

    # -- writing -----------------------------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """As `Location` says: a folder can be changed, unless the system says otherwise when it is."""

    def save(self, snapshot: Snapshot) -> None:
        """As `Location` says. Another writer is waited for, and what one that was killed has left is removed."""
        # All files are written, and replace those that are there and damaged
        nameless = Snapshot(tuple(replace(segment, name=None) for segment in snapshot.segments))
        self._save(nameless, set(), (), None, lambda _: None)

    def update(
        self, snapshot: Snapshot, known: set[str], ahead: Sequence[Entry] = (), log: int | None = None
    ) -> Snapshot:
        """As `Location` says."""

        def is_known(manifest: dict[str, Any] | None) -> None:
            if manifest is not None and manifest["snapshot"] not in known:
                raise IndexChangedError(
                    f"another program has saved changes to the index {self}; staged changes are still staged: call "
                    "reload() and then consolidate() again"
                )

        return self._save(snapshot, known, ahead, log, is_known)

    @contextlib.contextmanager
    def written_ahead(self, segment: Segment) -> Iterator[Entry]:
        """As `Location` says."""
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(self.unfinished())
                entry = write_segment(segment, folder)
                there = self.path / entry["name"]
                _in_use.add(there)
                stack.callback(_in_use.discard, there)
                if not there.exists():
                    stack.callback(self._remove_unless_saved, there)
                self._move(folder, [entry])
            except (OSError, pa.ArrowException) as error:
                raise TagMatchError(f"cannot write the index {self}: {error}") from error
            yield entry

    def _remove_unless_saved(self, there: Path) -> None:
        """Remove a segment that was written ahead, if no snapshot has got it."""
        with contextlib.suppress(OSError, TagMatchError), locked(self.path / LOCK):
            if there.name not in names_of(self.manifest()["segments"]):
                remove(there)

    def _save(
        self,
        snapshot: Snapshot,
        known: set[str],
        ahead: Sequence[Entry],
        log: int | None,
        check: Callable[[dict[str, Any] | None], None],
    ) -> Snapshot:
        has_index = self.has_index()
        created: list[Path] = []
        try:
            if not has_index:
                created = make_folder(self.path)
            with locked(self.path / LOCK):
                current = self.manifest() if self.has_index() else None
                check(current)
                self._remove_unfinished()
                with self.unfinished() as folder:
                    there = [*current["segments"], *ahead] if current else ahead
                    manifest = write_snapshot(snapshot, folder, there)
                    first_log = max(log or 0, current.get("log", 0) if current else 0)
                    if first_log:
                        manifest["log"] = first_log
                    known.add(manifest["snapshot"])
                    self.commit(folder, manifest)
            names = [entry["name"] for entry in manifest["segments"]]
            saved = [replace(segment, name=name) for segment, name in zip(snapshot.segments, names, strict=True)]
            return Snapshot(tuple(saved), str(manifest["snapshot"]))
        except (OSError, pa.ArrowException) as error:
            if created:
                with contextlib.suppress(OSError):
                    (self.path / LOCK).unlink(missing_ok=True)
                    self.path.rmdir()
            raise TagMatchError(f"cannot write the index {self}: {error}") from error

    def prepare(self, snapshot: Snapshot, there: Sequence[Entry]) -> dict[str, Any]:
        """As `Location` says."""
        try:
            with self.unfinished(SCRATCH_PREFIX) as folder:  # which no other writer removes
                manifest = write_snapshot(snapshot, folder, there)
                self._move(folder, manifest["segments"])
                return manifest
        except (OSError, pa.ArrowException) as error:
            raise TagMatchError(f"cannot write the index {self}: {error}") from error

    def switch(self, manifest: dict[str, Any], base: str | None) -> None:
        """As `Location` says. Another writer is waited for."""
        try:
            with locked(self.path / LOCK), self.unfinished() as nothing:
                current = self.manifest() if self.has_index() else {}
                reject_changed(self, current, base)
                if "log" in current:
                    manifest = {**manifest, "log": current["log"]}
                self.commit(nothing, manifest)
        except OSError as error:
            raise TagMatchError(f"cannot write the index {self}: {error}") from error

    def _remove_unfinished(self) -> None:
        """Remove what a writer that was killed has left. Jobs on several machines do that for their own files."""
        for left in self.path.glob(f"{UNFINISHED_PREFIX}*"):
            if not left.name.startswith(SCRATCH_PREFIX) and left not in _in_use:
                shutil.rmtree(left, ignore_errors=True)

    @contextlib.contextmanager
    def unfinished(self, prefix: str = UNFINISHED_PREFIX) -> Iterator[Path]:
        """A new folder in this one, for the files of a snapshot; is removed if it is not committed."""
        unfinished = self.path / f"{prefix}{uuid.uuid4().hex}"
        _in_use.add(unfinished)  # before others can see it
        try:
            unfinished.mkdir(mode=0o700)
            yield unfinished
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            _in_use.discard(unfinished)

    def commit(self, unfinished: Path, manifest: dict[str, Any]) -> None:
        """Make a snapshot of files in the folder `unfinished`, and of some that are here, the current one.

        Others are removed, but for segments that are written ahead.
        """
        self._move(unfinished, manifest["segments"])
        for name in names_of(manifest["segments"]):
            if not (self.path / name).exists():  # such as one written ahead, if another program has removed it
                raise FileNotFoundError(errno.ENOENT, "a file that the snapshot needs is gone", name)
        replace_file(self.path / MANIFEST, manifest_text(manifest))
        wanted = names_of(manifest["segments"])
        for entry in self.path.iterdir():
            if entry.name.startswith(OF_SNAPSHOTS) and entry.name not in wanted and entry not in _in_use:
                remove(entry)

    def _move(self, unfinished: Path, segments: Sequence[Entry]) -> None:
        """Move files of segments to their places, unless they are there."""
        files = files_of(segments)
        for new in unfinished.iterdir():
            there = self.path / new.name
            own = {path: expected for path, expected in files.items() if path.partition("/")[0] == new.name}
            if not are_whole(own, lambda path: checksum_of_file(self.path / path)):
                shutil.rmtree(there, ignore_errors=True)
                new.rename(there)

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
