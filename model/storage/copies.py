"""Safety copies of an index, and the way back: its snapshot, what is staged in it, and where clients are.

Changes that are staged go, as their logs have them, to files that the manifest of the copy names. So the manifest says
all that there is, and when it replaces another one, in one step, the place has the copy instead of what it had before.
They are staged when the copy is opened, before those that its own logs have.

Positions, which no snapshot has, are a file beside it, made ready before that step and put in its place right after it.
What is copied without them, such as an earlier snapshot, takes away those that there were.

An index in a folder is copied while programs write to it. Its files are opened first, and the manifest is read before
and after that: if it is the same, they are files of one moment, and stay readable though a newer snapshot removes them.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Protocol, TypeAlias

from tagmatch.model.errors import (
    IndexChangedError,
    IndexCorruptError,
    IndexExistsError,
    IndexLockedError,
    TagMatchError,
)
from tagmatch.model.storage.files import lock_at_once, plain_file, remove, sync, write_file
from tagmatch.model.storage.folder import Folder
from tagmatch.model.storage.format import (
    ADVICE,
    POSITIONS,
    WRITER,
    Entry,
    Manifest,
    are_whole,
    checksum_in,
    checksum_of,
    files_in,
    first_log_of,
    names_of,
    number_of,
    staged_of,
    within,
)
from tagmatch.model.storage.history import alone, succeed
from tagmatch.model.storage.location import Location
from tagmatch.model.storage.log_files import generations_in, log_path, logs_as_files, remove_logs
from tagmatch.model.storage.positions import check_positions
from tagmatch.model.storage.shared_files import temporary_folder
from tagmatch.model.storage.store import Store
from tagmatch.model.storage.stores import in_a_line

_BLOCK = 1 << 24


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy has.

    Attributes
    ----------
    number : int
        Of the snapshot, in the copy.
    sets : int
        Stored sets.
    staged : int
        Changes that are staged.
    new_bytes, old_bytes : int
        Bytes of files that were copied, and of those that were there already.
    """

    number: int
    sets: int
    staged: int
    new_bytes: int
    old_bytes: int


def backup(source: Location, target: Location, keep: int | None = None) -> Copied:
    """Copy an index to where nothing is, or an earlier backup.

    Parameters
    ----------
    keep
        How many earlier backups stay, as snapshots of the target; default: as it has it, at first none.

    Raises
    ------
    IndexNotFoundError, IndexCorruptError, IndexVersionError
        The index is not there, or damaged, or of a newer version; or so is the earlier backup.
    IndexExistsError
        At the target is something else.
    IndexLockedError
        A program has changes staged at the target.
    TagMatchError
        A file cannot be read or written; the target stays as it was.
    """

    def terms(place: _Place, found: Manifest) -> _Terms:
        if place.is_taken and (place.has_logs or "backup" not in (place.current or {})):
            raise IndexExistsError(
                f"there is an index at {target} that is no backup, was changed since it was one, or is damaged; back "
                "up to another folder"
            )
        return keep, {"backup": {"keep_snapshots": _kept_by(found)}}

    with _original(source) as original:
        return _copy(original, target, terms)


def restore(source: Location, target: Location, *, replace: bool = False) -> Copied:
    """Copy a backup, or any index, to where nothing is, or with `replace` to where an index is, which is lost.

    Errors as `backup`.
    """

    def terms(place: _Place, found: Manifest) -> _Terms:
        if place.is_taken and not replace:
            raise IndexExistsError(
                f"there is an index at {target} already; with `replace` it is lost, and what is staged in it"
            )
        return (_kept_by(found) if place.current is None else None), {}

    with _original(source) as original:
        original.check()
        return _copy(original, target, terms)


def _kept_by(manifest: Manifest) -> int:
    """How many earlier snapshots an index keeps, or the one of which it is a backup."""
    of: Manifest = manifest.get("backup", manifest)
    return of.get("keep_snapshots", 0)  # type: ignore[no-any-return]


def _copy(original: _Original, target: Location, terms: Callable[[_Place, Manifest], _Terms]) -> Copied:
    with _place(target) as place:
        found = original.manifest
        keep, marks = terms(place, found)
        files, new, old = files_in(found), 0, 0
        for name in sorted(names_of(found)):
            own = within(files, name)
            nbytes = sum(expected["bytes"] for expected in own.values())
            if place.has(own):
                old += nbytes
                continue
            for path, expected in own.items():
                file = place.unfinished / path
                file.parent.mkdir(exist_ok=True)
                original.fetch(path, file)
                _check(original.name, path, expected, checksum_in(place.unfinished, path))
                sync(file)
            if name not in own:
                sync(place.unfinished / name)
            place.put(name, own)
            new += nbytes
        if original.positions is not None:
            check_positions(original.positions, f"the positions in {original.name}/{POSITIONS}")
            new += len(original.positions)
        logged = logs_as_files(original.logs, first_log_of(found), place.unfinished, original.name)
        for entry in logged:
            place.put(entry["name"], {entry["name"]: entry})
            new += entry["bytes"]
        manifest, kept = succeed(alone(found), place.current, keep, least=number_of(found))
        manifest |= marks
        if staged := [*staged_of(found), *logged]:
            manifest["staged"] = staged
        place.ready_positions(original.positions)
        place.commit(manifest, kept)
        place.put_positions(original.positions)
    return Copied(manifest["number"], manifest["sets"], sum(entry["changes"] for entry in staged), new, old)


def _check(original: str, path: str, expected: Entry, checksum: str) -> None:
    if checksum != expected["xxh3_64"]:
        raise IndexCorruptError(
            f"{original}/{path} does not have the checksum that it was written with; nothing was copied; {ADVICE}"
        )


#: How many earlier snapshots the place is to keep (default: as it does), and what the manifest says besides
_Terms: TypeAlias = tuple[int | None, Manifest]

# -- what is copied ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Original:
    """An index at one moment.

    Attributes
    ----------
    name : str
        The index, as messages have it.
    manifest : dict
    check : callable
        Sees that all files have their checksums, where these can be read without copying them.
    fetch : callable
        Copies the file with this path within the index to a file of this machine.
    logs : sequence of (str, file)
        Names and contents of the logs that count.
    positions : bytes, optional
        The file that says where clients are.
    """

    name: str
    manifest: Manifest
    check: Callable[[], None]
    fetch: Callable[[str, Path], None]
    logs: Sequence[tuple[str, FileIO]]
    positions: bytes | None


def _original(location: Location) -> contextlib.AbstractContextManager[_Original]:
    if isinstance(location, Folder):
        return _in_folder(location)
    assert isinstance(location, Store)
    return _on_store(location)


@contextlib.contextmanager
def _in_folder(folder: Folder) -> Iterator[_Original]:
    def logs_of_index() -> list[int]:
        # What was staged when there was an earlier snapshot is in later ones
        return [] if folder.number is not None else generations_in(folder.path)

    with contextlib.ExitStack() as stack:
        while True:
            manifest, missing, paths = folder.manifest(), "", list[Path]()
            first = first_log_of(manifest)
            try:
                paths = [log_path(folder.path, generation) for generation in logs_of_index() if generation >= first]
                files = {path: stack.enter_context(plain_file(folder.path, path)) for path in files_in(manifest)}
                logs = [(path.name, stack.enter_context(plain_file(folder.path, path.name))) for path in paths]
            except FileNotFoundError as error:
                missing = str(error.filename)
            except OSError as error:
                raise TagMatchError(f"cannot read the index {folder}: {error}") from error
            # A log without changes goes when its program has nothing staged any more; another may take its name
            if folder.manifest() == manifest and missing not in map(str, paths):
                break
            stack.close()
        if missing:
            raise IndexCorruptError(f"{missing} is missing; {ADVICE}")

        def check() -> None:
            for path, expected in files_in(manifest).items():
                _check(str(folder), path, expected, checksum_of(files[path]))
                files[path].seek(0)

        def fetch(path: str, file: Path) -> None:
            with file.open("wb") as to:
                shutil.copyfileobj(files[path], to, _BLOCK)

        positions = _if_there(lambda: folder.read(POSITIONS)) if folder.number is None else None
        yield _Original(str(folder), manifest, check, fetch, logs, positions)


@contextlib.contextmanager
def _on_store(store: Store) -> Iterator[_Original]:
    def fetch(path: str, file: Path) -> None:
        try:
            store.folder.download(path, file)
        except FileNotFoundError as error:
            if store.manifest() != manifest:
                raise IndexChangedError(f"the index {store} was replaced while it was copied; do it again") from None
            raise IndexCorruptError(f"{store} lacks a file: {in_a_line(error)}") from None

    manifest = store.manifest()
    positions = _if_there(lambda: store.folder.read(POSITIONS)) if store.number is None else None
    yield _Original(str(store), manifest, lambda: None, fetch, [], positions)


def _if_there(read: Callable[[], bytes]) -> bytes | None:
    try:
        return read()
    except FileNotFoundError:
        return None


# -- where it is copied to ---------------------------------------------------------------------------------------------


class _Place(Protocol):
    """A place for a copy, for the one that writes there.

    Attributes
    ----------
    is_taken : bool
        Whether an index is there, or changes are staged for one.
    has_logs : bool
        Whether changes are staged there.
    current : dict, optional
        Its manifest, if that is not damaged.
    unfinished : Path
        A folder of this machine for files.
    """

    is_taken: bool
    has_logs: bool
    current: Manifest | None
    unfinished: Path

    def has(self, own: dict[str, Entry]) -> bool:
        """Whether these files are there."""

    def put(self, name: str, own: dict[str, Entry]) -> None:
        """Take the file in `unfinished` with this name, or the folder with these files."""

    def commit(self, manifest: Manifest, kept: dict[str, bytes]) -> None:
        """Have this manifest, in one step, and drop what it does not name."""

    def ready_positions(self, text: bytes | None) -> None:
        """Take what `put_positions` is to put there."""

    def put_positions(self, text: bytes | None) -> None:
        """Have this file of positions, or none."""


@contextlib.contextmanager
def _place(location: Location) -> Iterator[_Place]:
    if isinstance(location, Folder):
        with location.writing() as unfinished:
            lock = lock_at_once(location.path, WRITER)
            if lock is None:
                raise IndexLockedError(f"a program has changes staged for the index {location}; close it there")
            with lock:
                try:
                    yield _InFolder(location, unfinished)
                finally:
                    remove(location.path / f"{POSITIONS}.new")
    else:
        assert isinstance(location, Store)
        try:
            with temporary_folder() as made:
                yield _OnStore(location, made)
        except OSError as error:
            raise TagMatchError(
                f"cannot make the files that {location} is to have: {error}; the variable TMPDIR says in which folder"
            ) from error


class _InFolder:
    def __init__(self, folder: Folder, unfinished: Path) -> None:
        self.unfinished = unfinished
        self._folder, self._logs = folder, generations_in(folder.path)
        self.current = folder.replaceable()
        self.has_logs = any(generation >= first_log_of(self.current or {}) for generation in self._logs)
        self.is_taken = folder.has_index() or self.has_logs

    def has(self, own: dict[str, Entry]) -> bool:
        return are_whole(own, partial(checksum_in, self._folder.path))

    def put(self, name: str, own: dict[str, Entry]) -> None:
        """Nothing: `commit` does that."""

    def commit(self, manifest: Manifest, kept: dict[str, bytes]) -> None:
        # What is in these logs does not count any more
        log = max([first_log_of(self.current or {}) - 1, *self._logs]) + 1
        if log > 1:
            manifest["log"] = log
        self._folder.commit(self.unfinished, manifest, kept)
        remove_logs(self._folder.path, log)

    def ready_positions(self, text: bytes | None) -> None:
        if text is not None:
            write_file(self._folder.path / f"{POSITIONS}.new", text)

    def put_positions(self, text: bytes | None) -> None:
        file = self._folder.path / POSITIONS
        if text is not None:
            file.with_name(f"{POSITIONS}.new").replace(file)
        else:
            file.unlink(missing_ok=True)
        sync(self._folder.path)


class _OnStore:
    def __init__(self, store: Store, unfinished: Path) -> None:
        self.unfinished = unfinished
        self._store, self.has_logs = store, False
        self.is_taken = store.has_index()
        self.current = store.replaceable()

    def has(self, own: dict[str, Entry]) -> bool:
        """By their sizes, as to read them is to copy them here; names come from contents, and files appear whole."""
        return self._store.folder.sizes(own) == {path: expected["bytes"] for path, expected in own.items()}

    def put(self, name: str, own: dict[str, Entry]) -> None:
        self._store.upload(self.unfinished, name, own)
        for path in own:
            (self.unfinished / path).unlink()

    def commit(self, manifest: Manifest, kept: dict[str, bytes]) -> None:
        self._store.commit(manifest, kept)

    def ready_positions(self, text: bytes | None) -> None:
        """Nothing: a store has files whole or not at all."""

    def put_positions(self, text: bytes | None) -> None:
        if text is not None:
            self._store.folder.write(POSITIONS, text)
        else:
            self._store.folder.folder(POSITIONS).try_to_remove()
