"""An index in a byte store: opened, saved, followed by newer snapshots; written once for folders and stores.

A writer puts the files of a snapshot there, and the manifest last: then it has become the current one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

import pyarrow as pa
import xxhash

from tagmatch.model.errors import (
    IndexChangedError,
    IndexCorruptError,
    IndexExistsError,
    IndexLockedError,
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
    TagMatchError,
)
from tagmatch.model.options import KeyType, check_snapshot_number
from tagmatch.model.storage.byte_store import ByteStore, ChangeableStore, Written, folder_for_copies
from tagmatch.model.storage.files import ADVICE, Entry, check_checksum, telling_errors, write_file
from tagmatch.model.storage.folders import ArrowFolder, LocalFolder, StoreOptions
from tagmatch.model.storage.format import (
    LOCK,
    MANIFEST,
    OF_SNAPSHOTS,
    OWNER,
    POSITIONS,
    SCRATCH_PREFIX,
    STAGED_PREFIX,
    UNFINISHED_PREFIX,
    WRITER,
    Commit,
    Manifest,
    alone,
    checked_manifest,
    files_in,
    files_of,
    kept_of,
    manifest_text,
    names_of,
    number_of,
    parse_manifest,
    snapshots_in,
    staged_of,
    succeed,
    within,
)
from tagmatch.model.storage.partial import InPlace, fetched_from, gone
from tagmatch.model.storage.tables import read_segments, write_segment, write_snapshot
from tagmatch.model.tables import Segment, Snapshot

T = TypeVar("T")

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_FILE = re.compile(r"file:(//(localhost)?)?(?P<path>/[^/].*)")

# What the folder of an index may have in it
_OURS = (f"{MANIFEST}.new", *OF_SNAPSHOTS, UNFINISHED_PREFIX, STAGED_PREFIX, LOCK, WRITER, POSITIONS)

# Segments that this process has written ahead: the address of the index, and their names in it
_ahead: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class Repository:
    """The location of an index, which may not be there yet; as text it is what messages show, without passwords."""

    files: ByteStore
    number: int | None = None  # of the snapshot to read; `None`: the current one
    writer: str | None = None  # of an index that is only followed: the program that changes it, in words

    @classmethod
    def at(cls, given: str | Path, options: StoreOptions | None = None) -> Repository:
        """The location at the path of a folder, or at the URI of a store; errors as `ArrowFolder.at`."""
        return cls(LocalFolder(given) if isinstance(given, Path) else ArrowFolder.at(given, options))

    def __str__(self) -> str:
        return str(self.files)

    @property
    def address(self) -> str:
        """The text that `location_of` takes for this location, perhaps with a password."""
        return self.files.address

    @property
    def changeable(self) -> ChangeableStore | None:
        """The place, if the index can be changed in it: it has logs of staged changes, and positions of clients."""
        return self.files.changeable if self.number is None and self.writer is None else None

    def absolute(self) -> Repository:
        """The same location for processes that work in another folder."""
        return replace(self, files=self.files.absolute())

    def numbered(self, number: int) -> Repository:
        """The location of one snapshot of the index, by its number; it is read-only."""
        return replace(self, number=number)

    def followed(self, writer: str) -> Repository:
        """The location of an index that another program changes, which messages name so; it is read-only."""
        return replace(self, writer=writer)

    # -- reading -------------------------------------------------------------------------------------------------------

    def has_index(self) -> bool:
        """Whether an index is there; IndexExistsError if something else is, so that no index can be written there."""
        if self.files.kind(MANIFEST) == "file":
            return True
        if self.files.kind() not in ("folder", None):
            raise IndexExistsError(f"{self} is a file, not an index folder; choose another path")
        if [name for name in self.files.names() if not name.startswith(_OURS)]:
            raise IndexExistsError(f"{self} is a folder with other files in it; choose an empty or a new folder")
        return False

    def manifest(self) -> Manifest:
        """The manifest of the current snapshot, or of the one by its number; errors as `open`."""
        return _of_one_moment(self._current_manifest, self._by_number)

    def _by_number(self, current: Manifest) -> Manifest:
        """The manifest of the snapshot with the number, by the current one."""
        if self.number in (None, number_of(current)):
            return current
        for entry in kept_of(current):
            if entry["number"] == self.number:
                return self._earlier(entry)
        *earlier, last = (info.number for info in snapshots_in(current))
        told = f"{last} only; set keep_snapshots to keep earlier ones from now on"
        if earlier:
            told = f"{', '.join(map(str, earlier))} and {last}, the current one"
        raise IndexNotFoundError(f"the index {self} does not keep a snapshot {self.number}; it has {told}")

    def _earlier(self, entry: Entry) -> Manifest:
        """The manifest of an earlier snapshot, by the current one's entry of it; IndexCorruptError, TagMatchError."""
        where = f"{self}/{entry['name']}"
        with telling_errors(where):
            text = self.files.read(entry["name"])
        check_checksum(xxhash.xxh3_64_hexdigest(text), where, entry)
        try:
            return checked_manifest(alone(json.loads(text)), where)
        except (ValueError, AttributeError, RecursionError):
            raise IndexCorruptError(f"{where} is damaged; {ADVICE}") from None

    def _current_manifest(self) -> Manifest:
        with contextlib.suppress(FileNotFoundError):
            return parse_manifest(self.files.read(MANIFEST), self)
        told = f"it has no {MANIFEST}; it is not an index, or its build did not finish"
        if self.files.in_place and (kind := self.files.kind()) != "folder":
            told = "it is a file, not a folder" if kind else "no such folder"
        elif {name[: len(STAGED_PREFIX)] for name in {*self.files.names()} - {LOCK, WRITER}} == {STAGED_PREFIX}:
            told = "it has only staged changes; consolidate() makes it an index"
        else:
            with contextlib.suppress(FileNotFoundError):  # a folder that has been moved here since is an index
                return parse_manifest(self.files.read(MANIFEST), self)
        raise IndexNotFoundError(f"there is no index at {self}: {told}")

    def open(self, earlier: Snapshot | None = None, current: Manifest | None = None) -> Snapshot:
        """The snapshot, verified; IndexNotFoundError, IndexVersionError, IndexCorruptError, TagMatchError.

        With an earlier one of the index, which stays open, it shares the tables that both have. `current` is the
        manifest, if it was just read.
        """
        return _of_one_moment(self.manifest, partial(self._verified, earlier), current)

    def _verified(self, earlier: Snapshot | None, manifest: Manifest) -> Snapshot:
        for entry in staged_of(manifest) if self.changeable else ():
            self.files.check(entry["name"], entry)
        return self._snapshot(manifest, earlier=earlier)

    def open_unverified(self, name: str) -> Snapshot:
        """The snapshot of that name, mapped but not read, so that damage may go unnoticed; errors as `open`."""
        return _of_one_moment(partial(self._manifest_of, name), partial(self._snapshot, verify=False))

    def in_place(self, name: str, *, records: bool = False) -> InPlace:
        """The snapshot of that name, whose rows are read as needed; no checksum is verified. Errors as `open`.

        Of a store, records of keys are there only if they are asked for, and are read as a whole.
        """
        manifest = self._manifest_of(name)
        if self.files.in_place:  # mapped files are read when they are looked at
            return InPlace(self.open_unverified(name), manifest)
        number = "" if self.number is None else f"-{self.number}"
        folder = folder_for_copies() / f"parts-{self.files.digest}{number}"
        return fetched_from(self.files, manifest, self.manifest, folder, records=records)

    def _manifest_of(self, name: str) -> Manifest:
        """The manifest of the snapshot of that name, for as long as the index has it."""
        manifest = self.manifest()
        if manifest["snapshot"] != name:
            raise gone(self, name)
        return manifest

    def verify(self, files: Mapping[str, Entry]) -> None:
        """Verify the checksums of some files, by their paths in the index, with what manifests say of each."""
        for name, expected in files.items():
            self.files.check(name, expected)

    def check_kept(self) -> None:
        """Verify the checksums of all files of the earlier snapshots that the index keeps; errors as `open`."""

        def check(current: Manifest) -> None:
            checked = files_in(current)
            for entry in kept_of(current):
                for name, expected in files_in(self._earlier(entry)).items():
                    if checked.setdefault(name, expected) is expected:
                        with telling_errors(f"{self}/{name}"):
                            check_checksum(self.files.checksum(name), f"{self}/{name}", expected)

        _of_one_moment(self.manifest, check)

    def _snapshot(self, manifest: Manifest, *, verify: bool = True, earlier: Snapshot | None = None) -> Snapshot:
        self.files.fetch_ahead(files_of(manifest["segments"]))
        segments = read_segments(self.files, manifest, verify=verify, earlier=earlier)
        self.files.forget(names_of(manifest))
        return Snapshot(segments, str(manifest["snapshot"]), number_of(manifest))

    # -- writing -------------------------------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """See that `save` can be called with `known` snapshots; InvalidValueError if the index is read-only here."""
        if self.writer is not None:
            raise InvalidValueError(
                f"cannot change {self}: this program only follows the index; make changes at {self.writer}"
            )
        if self.files.changeable is None:  # without locks, no program can tell whether another one writes
            raise InvalidValueError(
                f"cannot change {self}: an index on a store is read-only; change one in a folder and put it there with "
                "save(), or build it with tagmatch.spark.partition or `tagmatch-partition`"
            )
        if self.number is not None:
            raise InvalidValueError(
                f"cannot change snapshot {self.number} of the index {self}: snapshots opened by number are read-only; "
                "open the index without a number, or have save() write this snapshot to a path"
            )

    def check_reloadable(self) -> None:
        """See that the index may get newer snapshots; InvalidValueError if this is one of them, by its number."""
        if self.number is not None:
            raise InvalidValueError(
                f"there is nothing to reload: the index {self} was opened at snapshot {self.number}, which never "
                "changes; open it without a number to follow it"
            )

    def save(self, snapshot: Snapshot, commit: Commit | None = None, known: set[str] | None = None) -> Snapshot:
        """Make a snapshot the current one of the index, which is created if need be; its old contents are lost.

        All files are written, and replace those that are there and damaged. With the names of `known` snapshots that it
        comes from, files that the index has stay, and it is an IndexChangedError if the index has got another snapshot;
        they get the new name just before it becomes the current one: should this be interrupted, either may be.

        Returns the snapshot as it is saved, with names and its number. IndexExistsError if something that is not an
        index is there; TagMatchError if the files cannot be written, and the index stays as it was.
        """
        commit = commit or Commit()
        if known is not None:
            self.check_writable()
        with self.writing() as made:
            current = self._replaced()
            if known is not None and current is not None and current["snapshot"] not in known:
                raise IndexChangedError(
                    f"another program has saved changes to the index {self}; staged changes are still staged: call "
                    "reload() and then consolidate() again"
                )
            there = () if known is None else (*(current["segments"] if current else ()), *commit.ahead)
            written = write_snapshot(snapshot, made, there)
            manifest, kept = succeed(written, current, commit)
            if known is not None:
                known.add(manifest["snapshot"])
            self.commit(made, manifest, kept)
        names = [entry["name"] for entry in manifest["segments"]]
        saved = [replace(segment, name=name) for segment, name in zip(snapshot.segments, names, strict=True)]
        return Snapshot(tuple(saved), str(manifest["snapshot"]), number_of(manifest))

    @contextlib.contextmanager
    def written_ahead(self, segment: Segment) -> Iterator[Entry]:
        """Write the files of a segment ahead of the snapshot that will have it; errors as `save`."""
        self.check_writable()
        with contextlib.ExitStack() as stack:
            with self._telling():
                with self.files.lock():  # so that no program takes it for the files of a killed one
                    made = stack.enter_context(self.files.making())
                entry = write_segment(segment, made)
                name = entry["name"]
                _ahead.add((self.address, name))
                stack.callback(_ahead.discard, (self.address, name))
                with self.files.lock():  # another program may be about to save this very segment
                    if self.files.kind(name) is None:
                        stack.callback(self._remove_unless_saved, name)
                    self._put(made, files_of([entry]))
            yield entry

    def _remove_unless_saved(self, name: str) -> None:
        """Remove a segment that was written ahead, if no snapshot has got it."""
        with contextlib.suppress(OSError, TagMatchError), self.files.lock():
            needed = self._needed(self.manifest())
            if needed is not None and name not in needed:
                self.files.remove(name)

    def append(self, snapshot: Snapshot, base: str | None, marks: Manifest) -> None:
        """Make a snapshot that has the segments of the one named `base`, if any, and others the current one.

        Its manifest also gets `marks`. Errors as `switch`; also on a store.
        """
        with self.writing() as made:
            current = self._current_if(base)
            manifest = write_snapshot(snapshot, made, current["segments"] if current else ())
            self._succeed(made, manifest | marks, current, None)

    def switch(self, manifest: Manifest, base: str | None, written: Written) -> None:
        """Make the snapshot that `manifest_of` gave the current one; staged changes stay staged.

        IndexChangedError unless the index still has the snapshot named `base`, or none. `written` are files of the
        snapshot, which are moved there. On a store, only one program at a time may.
        """
        with self.writing() as made:
            self._succeed(made, manifest, self._current_if(base), written)

    def _current_if(self, base: str | None) -> Manifest | None:
        """The current manifest, which is that of a snapshot with this name, or `None` without one."""
        current = self.manifest() if self.has_index() else None
        if _name_of(current) != base:
            raise self.changed_meanwhile()
        return current

    def replaced_name(self) -> str | None:
        """The name of the snapshot that `replace` would replace; `None` without one that can be read."""
        return _name_of(self.replaceable())

    def replace(self, manifest: Manifest, base: str | None, written: Written) -> None:
        """`switch`, also if the current snapshot is damaged: then, and without one, the name of its base is `None`."""
        with self.writing() as made:
            if _name_of(current := self._replaced()) != base:
                raise self.changed_meanwhile()
            self._succeed(made, manifest, current, written)

    def changed_meanwhile(self) -> IndexChangedError:
        """What is raised if another program has saved changes since a job began."""
        return IndexChangedError(
            f"another program has saved changes to the index {self} in the meantime, and they stay; this one changed "
            "nothing: begin again"
        )

    @contextlib.contextmanager
    def scratch(self) -> Iterator[ByteStore]:
        """A place for the files of a job, which are removed afterwards; those of a killed job are removed now.

        IndexLockedError, if the other job lives.
        """
        existed = self.files.kind() is not None
        name = f"{SCRATCH_PREFIX}{uuid.uuid4().hex}"
        scratch = self.files.folder(name)
        with self._telling():
            for left in self.files.names():
                if left.startswith(SCRATCH_PREFIX):
                    if other := self.files.tenant(left):
                        raise IndexLockedError(
                            f"another job works on the index {self}: {other}; wait until it ends, or end it"
                        )
                    self.files.remove(left)
            try:
                scratch.create()
                with self.files.leased(name):
                    yield scratch
            finally:
                self.files.remove(name)
                if not existed:
                    self.files.remove_if_empty()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Path]:
        """Be the one that writes; gives a folder of this machine for files to `commit`. Errors as `save`."""
        new = not self.has_index()
        with self._telling(), self.files.writing(new=new) as made:
            yield made

    def commit(self, made: Path, manifest: Manifest, kept: Mapping[str, bytes]) -> None:
        """Make a snapshot of files that are made, and of some that are here, the current one; remove all others.

        `kept` has the manifest of the one before, if that is kept. Segments that are written ahead stay.
        """
        for name, text in kept.items():
            write_file(made / name, text)
        files = files_in(manifest)
        self._put(made, files)
        if self.files.in_place:  # one written ahead may have been removed by another program
            for name, expected in files.items():
                self.files.check(name, expected, wholly=False)
        self.files.write(MANIFEST, manifest_text(manifest))
        needed = self._needed(manifest)
        if needed is None:
            return  # nothing is removed that an earlier snapshot may need
        for name in self.files.names():
            if name.startswith(OF_SNAPSHOTS) and name not in needed and (self.address, name) not in _ahead:
                self.files.remove(name)

    def _needed(self, manifest: Manifest) -> set[str] | None:
        """Names of all that the snapshots of the index need; `None` if a manifest cannot be read, so none can tell."""
        kept, names = kept_of(manifest), names_of(manifest) | {MANIFEST}
        try:
            return names.union(*({entry["name"], *names_of(self._earlier(entry))} for entry in kept))
        except TagMatchError:
            return None

    def replaceable(self) -> Manifest | None:
        """The manifest of the index, `None` if it is missing or damaged; errors as `save`."""
        with contextlib.suppress(IndexCorruptError):
            return self.manifest() if self.has_index() else None
        return None

    def _replaced(self) -> Manifest | None:
        """`replaceable`, but where changes may be staged, a damaged manifest that counts them is an error."""
        if self.files.changeable is None:
            return self.replaceable()
        return self.manifest() if self.has_index() else None

    def _succeed(self, made: Path, manifest: Manifest, current: Manifest | None, written: Written | None) -> None:
        """Make the snapshot with this manifest follow the current one, with files that are written for it."""
        if written is not None:
            files = files_of(manifest["segments"])
            whole = {name for name in {path.partition("/")[0] for path in written.names} if self._has(files, name)}
            names = {name: path for path, name in written.names.items() if path.partition("/")[0] not in whole}
            self.files.adopt(written.files, names, made)
        self.commit(made, *succeed(manifest, current))

    def _has(self, files: dict[str, Entry], name: str) -> bool:
        """Whether those of the files that have this name, or are in the folder with it, are there undamaged."""
        own = within(files, name)
        return bool(own) and self.files.has_whole(own)

    def _put(self, made: Path, files: dict[str, Entry]) -> None:
        """Put files that are made in their places, unless those of a snapshot are there; positions come later."""
        for new in made.iterdir():
            if new.name not in (OWNER, POSITIONS) and not self._has(files, new.name):
                self.files.put(new, new.name)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise TagMatchError(f"cannot write the index {self}: {error}") from error


def _name_of(manifest: Manifest | None) -> str | None:
    return None if manifest is None else str(manifest["snapshot"])


def _of_one_moment(
    read_current: Callable[[], Manifest], use: Callable[[Manifest], T], current: Manifest | None = None
) -> T:
    """Use the current manifest, and again if files were missing because a newer snapshot was saved since."""
    while True:
        current = current or read_current()
        try:
            return use(current)
        except TagMatchError:
            if (newer := read_current()) == current:
                raise
            current = newer


def location_of(given: object, name: str, number: int | None = None, options: StoreOptions | None = None) -> Repository:
    """The location that a user gives as a path, which may begin with `~`, or as a URI; one that is made stays as it is.

    `name` is that of the argument, for messages, `number` that of the snapshot that the user wants, and `options` say
    how Arrow reaches the store of a URI (default: as the URI says).

    Examples
    --------
    >>> str(location_of("file:///data/animals.index", "path"))
    '/data/animals.index'
    """
    found = given if isinstance(given, Repository) else _location_of(given, name, options)
    if number is None:
        return found
    check_snapshot_number(number)
    return found.numbered(number)


def user_path(text: str) -> str:
    """A path as a person writes it; `~` is expanded, and InvalidValueError names an unknown user."""
    found = os.path.expanduser(text)
    if found.startswith("~"):
        raise InvalidValueError(
            f"{text}: there is no home folder for {found.partition('/')[0]}; give the whole path, or ./{text} for a "
            "name that begins so"
        )
    return found


def _location_of(given: object, name: str, options: StoreOptions | None) -> Repository:
    if not isinstance(given, str | os.PathLike) or not isinstance(text := os.fspath(given), str):
        raise InvalidTypeError(f"{name} must be a string or a path, not {given!r}")
    if not text:
        raise InvalidValueError(f"{name} is empty; give the path of a folder")
    if not _URI.match(text):
        return Repository.at(Path(_possible(user_path(text), name)))
    if not isinstance(given, str):
        raise InvalidTypeError(f"a URI must be a str, not a {type(given).__name__}, which changes its slashes")
    if file := _FILE.match(text):
        return Repository.at(Path(_possible(unquote(file["path"]), name)))
    if text.startswith("grpc"):
        raise InvalidValueError(
            f"{name} must be a folder or the URI of a store; "
            f"a service, as at {text!r:.80}, is called by tagmatch.connect"
        )
    return Repository.at(_possible(text, name), options)


def _possible(text: str, name: str) -> str:
    """A path or URI that the system can take; InvalidValueError."""
    with contextlib.suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(text):
            return text
    raise InvalidValueError(f"{name} must have neither U+0000 nor half of a surrogate pair, which {text!r:.80} has")


def open_with(
    location: Repository,
    key_type: KeyType | None,
    earlier: Snapshot | None = None,
    current: Manifest | None = None,
) -> Snapshot:
    """`Repository.open` for keys of this type, if one is given; another is an `InvalidValueError`."""
    snapshot = location.open(earlier, current)
    if key_type not in (None, found := snapshot.key_type):
        raise InvalidValueError(
            f'the keys of the index {location} have key_type "{found}", not "{key_type}"; leave out key_type'
        )
    return snapshot
