"""A folder of this machine, or one that several machines mount under the same path."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa

from tagmatch.model.errors import IndexCorruptError, TagMatchError
from tagmatch.model.storage.byte_store import ByteStore, ChangeableStore, Kind, Lock, Log
from tagmatch.model.storage.files import (
    Entry,
    FileLock,
    locked,
    make_folder,
    open_lock,
    open_plain,
    plain_file,
    remove,
    sync,
    write_file,
)
from tagmatch.model.storage.format import LOCK, OWNER, POSITIONS, SCRATCH_PREFIX, UNFINISHED_PREFIX, WRITER

# Who only looks holds a lock for a moment
_PATIENCE_S, _PAUSE_S = 10.0, 0.001

# The most buffers that Linux takes at once
_MOST_PIECES = 1024

# Folders that this process is about to write
_unfinished: set[Path] = set()


@dataclass(frozen=True, slots=True)
class LocalFolder(ChangeableStore):
    """A folder whose files are read in their places."""

    place: Path
    in_place: ClassVar[bool] = True

    def __str__(self) -> str:
        return str(self.place)

    @property
    def address(self) -> str:
        return str(self.place)

    def absolute(self) -> LocalFolder:
        return LocalFolder(self.place.absolute())

    def folder(self, name: str) -> LocalFolder:
        return LocalFolder(self.place / name)

    # -- reading -------------------------------------------------------------------------------------------------------

    def kind(self, name: str = "") -> Kind | None:
        path = self.place / name
        with self._looking():
            if path.is_dir():
                return "folder"
            return "file" if path.is_file() else "other" if path.exists() else None

    def names(self) -> list[str]:
        with self._looking(), contextlib.suppress(FileNotFoundError):
            return os.listdir(self.place)
        return []

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TagMatchError(f"cannot look into {self}: {error.strerror or error}") from error

    def open(self, name: str) -> AbstractContextManager[Any]:
        """See `ByteStore`; OSError."""
        return plain_file(self.place, name)

    def descriptor(self, name: str, expected: Entry) -> int:  # noqa: ARG002
        """See `ByteStore`: the file itself."""
        return open_plain(self.place, name)

    @contextlib.contextmanager
    def pinned(self, names: Iterable[str]) -> Iterator[ByteStore]:
        """See `ByteStore`: they are open."""
        with contextlib.ExitStack() as stack:
            try:
                opened = {name: stack.enter_context(self.open(name)) for name in names}
            except FileNotFoundError:
                raise
            except OSError as error:
                raise TagMatchError(f"cannot read the index {self}: {error}") from error
            yield _Opened(self.place, opened)

    def map(self, name: str, *, keep: bool = False) -> pa.MemoryMappedFile:  # noqa: ARG002
        return pa.memory_map(str(self.place / name))

    def kept(self, name: str, expected: Entry | None = None) -> Path:  # noqa: ARG002
        return self.place / name

    def forget(self, names: set[str]) -> None:
        """See `ByteStore`: there are no copies."""

    def local_folder(self) -> Path:
        """See `ByteStore`: the folder itself, which this machine may lack."""
        if not self.place.is_dir():
            raise TagMatchError(
                f"{os.uname().nodename} has no folder {self.place}, which another machine has made: an index must be "
                "where all machines mount the same folder, or on a store that all of them reach"
            )
        return self.place

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, name: str, text: bytes) -> None:
        """See `ByteStore`: the names of all files that were put here before last then, too."""
        file, new = self.place / name, self.place / f"{name}.new"
        try:
            write_file(new, text)
            sync(file.parent)
            new.replace(file)
        except BaseException:
            remove(new)
            raise
        sync(file.parent)

    def put(self, made: Path, name: str) -> None:
        """See `ByteStore`: moves synced files within this file system; their names last from `sync` on."""
        there = self.place / name
        if made.is_dir() or there.is_dir():
            remove(there)
        made.replace(there)

    def adopt(self, source: Self, names: Mapping[str, str], made: Path) -> None:
        """See `ByteStore`: moves files, which are synced, in this file system."""
        for name, there in names.items():
            place = made / there
            if not place.parent.exists():
                place.parent.mkdir()
                place.parent.chmod(0o755)
            (source.place / name).rename(place)
        for parent in {(made / there).parent for there in names.values()}:
            sync(parent)

    def sync(self) -> None:
        sync(self.place)

    def remove(self, name: str) -> None:
        remove(self.place / name)

    def create(self) -> None:
        """See `ByteStore`: processes of other machines may be another user's."""
        make_folder(self.place.parent)
        self.place.mkdir()
        self.place.chmod(0o777)

    def remove_if_empty(self) -> None:
        with contextlib.suppress(OSError):
            self.place.rmdir()  # which only an empty folder lets be done to it

    def prepare(self) -> None:
        """See `ByteStore`: its name is on the disk then."""
        make_folder(self.place)

    def lock(self) -> AbstractContextManager[object]:
        """See `ByteStore`: waits for another holder."""
        return locked(self.place, LOCK)

    def lock_at_once(self, name: str) -> Lock | None:
        lock = open_lock(self.place, name)
        try:
            end = time.monotonic() + _PATIENCE_S
            while not lock.take(fcntl.LOCK_EX):
                # The lock that many can have at once is that of those who look, as `is_locked` does
                if not lock.take(fcntl.LOCK_SH) or time.monotonic() > end:
                    lock.close()
                    return None
                fcntl.flock(lock, fcntl.LOCK_UN)
                time.sleep(_PAUSE_S)
        except BaseException:
            lock.close()
            raise
        return lock

    def is_locked(self, name: str) -> bool:
        """See `ByteStore`: keeps no other program from taking the lock."""
        with FileLock(self.place, name, "rb") as lock:
            return not lock.take(fcntl.LOCK_SH)

    def log(self, name: str, *, new: bool = False) -> Log:
        """See `ByteStore`: whatever has the name of a new one goes, and is not written to: it may be a link."""
        if new:
            remove(self.place / name)
        return _Log(name, "x+" if new else "r+", opener=partial(open_plain, self.place))

    def state(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.place)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    @contextlib.contextmanager
    def writing(self, *, new: bool) -> Iterator[Path]:
        """See `ByteStore`: a new folder goes again if nothing could be written."""
        created = make_folder(self.place) if new else []
        try:
            with self.lock():
                self._remove_unfinished()
                with self.making() as made:
                    yield made
        except Exception:
            if created:
                with contextlib.suppress(OSError):
                    if {LOCK, WRITER}.issuperset(os.listdir(self.place)):
                        for lock in (LOCK, WRITER):
                            (self.place / lock).unlink(missing_ok=True)
                self.remove_if_empty()
            raise

    @contextlib.contextmanager
    def making(self, *, as_job: bool = False) -> Iterator[Path]:
        """See `ByteStore`: a folder in this one."""
        made = self.place / f"{SCRATCH_PREFIX if as_job else UNFINISHED_PREFIX}{uuid.uuid4().hex}"
        _unfinished.add(made)  # before others can see it
        try:
            made.mkdir(mode=0o700)
            with locked(self.place, f"{made.name}/{OWNER}"):
                yield made
        finally:
            remove(made)
            _unfinished.discard(made)

    def _remove_unfinished(self) -> None:
        """Remove what a writer that was killed has left. Jobs on several machines do that for their own files."""
        for left in self.place.glob(f"{UNFINISHED_PREFIX}*"):
            if not left.name.startswith(SCRATCH_PREFIX) and left not in _unfinished and _is_abandoned(left):
                remove(left)
        remove(self.place / f"{POSITIONS}.new")


@dataclass(frozen=True, slots=True)
class _Opened(LocalFolder):
    """Some files of a folder, which are open."""

    files: dict[str, FileIO]

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Any]:
        self.files[name].seek(0)
        yield self.files[name]


class _Log(FileIO):
    """See `Log`."""

    def put(self, pieces: list[Any], at: int, nbytes: int) -> None:
        end = at + nbytes
        while written := os.pwritev(self.fileno(), pieces[:_MOST_PIECES], at):
            at += written
            if at == end:
                return
            pieces = _rest(pieces, written)
        raise OSError("the file takes no more bytes")

    def cut(self, end: int) -> None:
        os.ftruncate(self.fileno(), end)

    @property
    def sync(self) -> Callable[[], object]:
        return partial(os.fsync, self.fileno())


def _rest(pieces: list[Any], count: int) -> list[Any]:
    """Pieces without their first bytes."""
    for i, piece in enumerate(pieces):
        view = memoryview(piece)
        if count < view.nbytes:
            return [view.cast("B")[count:], *pieces[i + 1 :]]
        count -= view.nbytes
    return []


def _is_abandoned(unfinished: Path) -> bool:
    """Whether no program lives that writes to this folder, which was seen with the lock of the index held."""
    try:
        lock = LocalFolder(unfinished.parent).lock_at_once(f"{unfinished.name}/{OWNER}")
    except (OSError, IndexCorruptError):  # it is gone, or not one that we make, or no one here may write there
        return True
    if lock is not None:
        lock.close()
    return lock is not None
