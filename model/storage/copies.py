"""Safety copies of an index, and the way back: its snapshot, its staged changes, and the positions of clients.

Changes that are staged go, as their logs have them, to files that the manifest of the copy names. So the manifest names
everything, and when it replaces another one, in one step, the target has the copy instead of its old contents.
They are staged when the copy is opened, before those that its own logs have.

Positions, which no snapshot has, are a file next to it, made ready before that step and put in its place right after.
A copy without them, as of an earlier snapshot, removes those of the target.

An index in a folder is copied while programs write to it. Its files are opened first, and the manifest is read before
and after that: if it is the same, they are files of one moment, and stay readable though a newer snapshot removes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tagmatch.model.errors import IndexChangedError, IndexCorruptError, IndexExistsError, IndexLockedError
from tagmatch.model.storage.byte_store import ByteStore, in_a_line
from tagmatch.model.storage.files import ADVICE, Entry, remove, sync, write_file
from tagmatch.model.storage.folders import LocalFolder
from tagmatch.model.storage.format import (
    CHANGES_PREFIX,
    POSITIONS,
    WRITER,
    Commit,
    Manifest,
    alone,
    files_in,
    first_log_of,
    names_of,
    number_of,
    staged_of,
    succeed,
    within,
)
from tagmatch.model.storage.log import generations_in, log_name, remove_logs, scan
from tagmatch.model.storage.positions import read_positions
from tagmatch.model.storage.repository import Repository


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


def backup(source: Repository, target: Repository, keep: int | None = None) -> Copied:
    """Copy an index to an empty place or an earlier backup, which keeps `keep` others; see `tagmatch.backup`."""
    with _original(source) as original, _target(target) as place:
        if place.is_taken and (place.has_logs or "backup" not in (place.current or {})):
            raise IndexExistsError(
                f"there is an index at {target} that is no backup, was changed since it was one, or is damaged; back "
                "up to another folder"
            )
        return _copy(original, place, keep, {"backup": {"keep_snapshots": _kept_by(original.manifest)}})


def restore(source: Repository, target: Repository, *, replace: bool = False) -> Copied:
    """Copy a backup, or any index, to an empty place or, with `replace`, over an index, which is lost."""
    with _original(source) as original:
        if source.files.in_place:  # else to check all files would be to copy them
            for path, expected in files_in(original.manifest).items():
                original.check(path, expected, original.files.checksum(path))
        with _target(target) as place:
            if place.is_taken and not replace:
                raise IndexExistsError(
                    f"there is an index at {target} already; `replace` deletes it and its staged changes"
                )
            return _copy(original, place, _kept_by(original.manifest) if place.current is None else None, {})


def _kept_by(manifest: Manifest) -> int:
    """How many earlier snapshots an index keeps, or the one that it is a backup of."""
    of: Manifest = manifest.get("backup", manifest)
    return of.get("keep_snapshots", 0)  # type: ignore[no-any-return]


def _copy(original: _Original, place: _Target, keep: int | None, marks: Manifest) -> Copied:
    """Copy an index there; the copy keeps `keep` earlier snapshots (default: as before) and has its own marks."""
    found, made, there = original.manifest, place.made, place.index.files
    files, new, old = files_in(found), 0, 0
    for name in sorted(names_of(found)):
        own = within(files, name)
        nbytes = sum(expected["bytes"] for expected in own.values())
        if there.holds(own):
            old += nbytes
            continue
        for path, expected in own.items():
            file = made / path
            file.parent.mkdir(exist_ok=True)
            original.fetch(path, file)
            original.check(path, expected, LocalFolder(made).checksum(path))
            if there.in_place:  # on a store, these are not the files that have to last
                sync(file)
        if name not in own and there.in_place:
            sync(made / name)
        place.put(name)
        new += nbytes
    logged = _logs_as_files(original, made)
    for entry in logged:
        place.put(entry["name"])
        new += entry["bytes"]
    positions, ready = original.positions, made / POSITIONS
    if positions is not None:
        read_positions(positions, f"the positions in {original.index}/{POSITIONS}")
        write_file(ready, positions)
        new += len(positions)
    staged = [*staged_of(found), *logged]
    # The logs that are there do not count any more
    log = max([first_log_of(place.current or {}) - 1, *place.logs]) + 1
    commit = Commit(log=log if log > 1 else 0, keep=keep, staged=staged)
    manifest, kept = succeed(alone(found), place.current, commit, least=number_of(found))
    # In one step, and then the positions; what the manifest does not name goes
    place.index.commit(made, manifest | marks, kept)
    remove_logs(there, log)
    if positions is not None:
        there.put(ready, POSITIONS)
    else:
        there.remove(POSITIONS)
    there.sync()
    return Copied(manifest["number"], manifest["sets"], sum(entry["changes"] for entry in staged), new, old)


def _logs_as_files(original: _Original, folder: Path) -> list[Entry]:
    """Write and sync files in a folder that have the changes of logs; returns what manifests say of them, in order."""
    copies = LocalFolder(folder / "logs")
    copies.place.mkdir()
    for name in original.logs:
        original.files.fetch(name, copies.place / name)
    try:
        found = [log for log in scan(copies, first_log_of(original.manifest)) if log.records]
    except IndexCorruptError as error:
        raise IndexCorruptError(str(error).replace(str(copies), str(original.index))) from None
    entries = []
    for log in found:
        log.cut()  # programs may be writing to the last one, and some of it may not have been written wholly
        checksum = copies.checksum(log.name)
        name = f"{CHANGES_PREFIX}{checksum}.log"
        (copies.place / log.name).rename(folder / name)
        entries.append({"name": name, "changes": log.rows, "bytes": log.end, "xxh3_64": checksum})
    remove(copies.place)
    return entries


# -- the original ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Original:
    """An index at one moment."""

    index: Repository
    manifest: Manifest
    files: ByteStore
    logs: list[str]  # names of the logs that count
    positions: bytes | None  # the file that says where clients are

    def fetch(self, path: str, file: Path) -> None:
        """Copy the file with this path within the index to a file of this machine."""
        try:
            self.files.fetch(path, file)
        except FileNotFoundError as error:
            if self.index.manifest() != self.manifest:
                raise IndexChangedError(
                    f"the index {self.index} was replaced while it was copied; do it again"
                ) from None
            raise IndexCorruptError(f"{self.index} lacks a file: {in_a_line(error)}") from None

    def check(self, path: str, expected: Entry, checksum: str) -> None:
        """See that a file has its checksum."""
        if checksum != expected["xxh3_64"]:
            raise IndexCorruptError(
                f"{self.index}/{path} does not have the checksum that it was written with; nothing was copied; {ADVICE}"
            )


@contextlib.contextmanager
def _original(index: Repository) -> Iterator[_Original]:
    """The files of an index, of one moment if they are on this machine."""
    with contextlib.ExitStack() as stack:
        while True:
            manifest, missing = index.manifest(), ""
            # What was staged when there was an earlier snapshot is in later ones
            numbers, first = generations_in(index.files) if index.changeable else [], first_log_of(manifest)
            logs = [log_name(number) for number in numbers if number >= first]
            try:
                files = stack.enter_context(index.files.pinned([*files_in(manifest), *logs]))
            except FileNotFoundError as error:
                missing = str(error.filename)
            # A log without changes goes when its program has nothing staged any more; another may take its name
            if index.manifest() == manifest and not missing.endswith(tuple(logs)):
                break
            stack.close()
        if missing:
            raise IndexCorruptError(f"{missing} is missing; {ADVICE}")
        positions = None
        if index.number is None:
            with contextlib.suppress(FileNotFoundError):
                positions = index.files.read(POSITIONS)
        yield _Original(index, manifest, files, logs, positions)


# -- the target --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Target:
    """A place for a copy."""

    index: Repository
    made: Path  # a folder of this machine for its files
    current: Manifest | None  # of the index that is there, if it is not damaged
    logs: list[int]  # generations of logs that are there
    has_logs: bool  # whether changes are staged there
    is_taken: bool  # whether there is an index, or changes are staged for one

    def put(self, name: str) -> None:
        """Move a file made under this name to its store, if that is remote, so that this machine needs less room."""
        if not self.index.files.in_place:
            self.index.files.put(self.made / name, name)
            remove(self.made / name)


@contextlib.contextmanager
def _target(index: Repository) -> Iterator[_Target]:
    """The place for a copy, for the one that writes there and stages no changes."""
    with index.writing() as made, contextlib.ExitStack() as stack:
        if (files := index.files.changeable) is not None:
            lock = files.lock_at_once(WRITER)
            if lock is None:
                raise IndexLockedError(f"a program has changes staged for the index {index}; close it there")
            stack.callback(lock.close)
        logs, current = generations_in(index.files), index.replaceable()
        has_logs = any(generation >= first_log_of(current or {}) for generation in logs)
        yield _Target(index, made, current, logs, has_logs, index.has_index() or has_logs)
