"""Where an index lies: in a folder, or on a store that Arrow reaches; `location_of` takes what users write."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.options import KeyType, check_snapshot_number
from tagmatch.model.storage.folder import Folder
from tagmatch.model.storage.format import Entry, Manifest
from tagmatch.model.storage.history import Commit
from tagmatch.model.storage.partial import InPlace
from tagmatch.model.storage.shared_files import Files, Written
from tagmatch.model.storage.store import Store
from tagmatch.model.storage.stores import StoreOptions
from tagmatch.model.tables import Segment, Snapshot

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_FILE = re.compile(r"file:(//(localhost)?)?(?P<path>/[^/].*)")


class Location(Protocol):
    """The location of an index, which may not be there yet; as text it is what messages show, without passwords."""

    @property
    def address(self) -> str:
        """What `location_of` takes for this location, but for options; it may have a password in it."""

    @property
    def log_folder(self) -> Path | None:
        """Where staged changes are logged; `None` where none can be made."""

    def absolute(self) -> Location:
        """The same location for processes that work in another folder."""

    def numbered(self, number: int) -> Location:
        """The location of one snapshot of the index, by its number; it is read-only."""

    def has_index(self) -> bool:
        """Whether an index is there.

        Raises
        ------
        IndexExistsError
            Something else is, so that no index can be written there.
        TagMatchError
            It cannot be seen what is.
        """

    def manifest(self) -> Manifest:
        """The manifest of the current snapshot, or of the one by its number: a small file or two.

        Errors as `open`, but for damage to other files.
        """

    def open(self) -> Snapshot:
        """The current snapshot, or the one by its number, its files memory-mapped and their checksums verified.

        Raises
        ------
        IndexNotFoundError
            There is no index: no folder, or one without a manifest (nothing was ever consolidated into it). Or it does
            not keep a snapshot with this number.
        IndexVersionError
            A newer version of tagmatch wrote it.
        IndexCorruptError
            A file is missing, cut short or changed.
        TagMatchError
            A file cannot be read, or cannot be copied to this machine.
        """

    def open_unverified(self, name: str) -> Snapshot:
        """The snapshot of that name, its files memory-mapped but not read, so that damage may go unnoticed.

        Raises
        ------
        IndexNotFoundError
            The index has another snapshot by now.
        IndexVersionError, IndexCorruptError, TagMatchError
            As `open`, but for checksums of files.
        """

    def in_place(self, name: str) -> InPlace:
        """The snapshot of that name, of which only what is asked for is read, on a store, too.

        No checksum is verified, only that what is read can be what a table has. Errors as `open_unverified`.
        """

    def verify(self, files: Mapping[str, Entry]) -> None:
        """Verify the checksums of some files, by their paths in the index, of which manifests say this.

        Raises
        ------
        IndexCorruptError, TagMatchError
            As `open`.
        """

    def check_kept(self) -> None:
        """Verify the checksums of all files of the earlier snapshots that the index keeps; errors as `open`."""

    def check_writable(self) -> None:
        """See that `update` can be called.

        Raises
        ------
        InvalidValueError
            The index is read-only here.
        """

    def check_reloadable(self) -> None:
        """See that the index may get newer snapshots.

        Raises
        ------
        InvalidValueError
            This is one of its snapshots, by its number.
        """

    def save(self, snapshot: Snapshot, keep: int | None = None) -> None:
        """Make `snapshot` the current one of the index, which is created if need be, whatever it has now.

        Parameters
        ----------
        keep
            As of `Commit`.

        Raises
        ------
        IndexExistsError
            Something that is not an index is there.
        TagMatchError
            The files cannot be written (disk full, no permission); the index stays as it was.
        """

    def written_ahead(self, segment: Segment) -> AbstractContextManager[Entry]:
        """Write the files of a segment that a snapshot is to have, meanwhile; errors as `save`."""

    def update(self, snapshot: Snapshot, known: set[str], commit: Commit) -> Snapshot:
        """`save`, but not where the index has got a snapshot that `snapshot` does not come from; one writer at a time.

        Returns `snapshot` as it is saved, with names and its number. Only what the index does not have is written.

        Parameters
        ----------
        known : set
            Names of the snapshots that it comes from. It gets the name of `snapshot` just before that becomes the
            current one: should this be interrupted, either may be.
        commit : Commit
            What the index is to say besides.

        Raises
        ------
        IndexChangedError
            The index has another one; it stays as it is.
        InvalidValueError
            As `check_writable`.
        IndexExistsError, TagMatchError
            As `save`.
        """

    def prepare(self, snapshot: Snapshot, there: Sequence[Entry]) -> Manifest:
        """Write the files of a snapshot that an index, which has these segments, lacks; returns what `switch` takes.

        Nothing has changed then, and any process may `switch`. Done twice, it comes to the same.

        Raises
        ------
        TagMatchError
            As `save`.
        """

    def switch(self, manifest: Manifest, base: str | None, written: Written | None = None) -> None:
        """Make the snapshot that `prepare` or `manifest_of` gave the current one; what is staged stays so.

        Parameters
        ----------
        base : str, optional
            Name of the snapshot that the index still has to have; `None`: there is no index.
        written : Written, optional
            Files of the snapshot that the index does not have yet. They are moved there.

        Raises
        ------
        IndexChangedError
            It has another one, and stays as it is.
        IndexExistsError, TagMatchError
            As `save`.
        """

    def replace(self, manifest: Manifest, written: Written) -> None:
        """`switch`, whatever the index has now, as `save`."""

    def scratch(self) -> AbstractContextManager[Files]:
        """A place for files, which are removed afterwards. What a killed one has left is removed now."""


def location_of(given: object, name: str, number: int | None = None, options: StoreOptions | None = None) -> Location:
    """The location that a user gives as a path, which may begin with `~`, or as a URI.

    Parameters
    ----------
    given : str, PathLike or Location
        A location stays what it is.
    name : str
        Of the argument, for messages.
    number : int, optional
        Of the snapshot that the user wants.
    options : StoreOptions, optional
        How Arrow reaches the store of a URI; default: as the URI says.

    Raises
    ------
    InvalidTypeError
        It is neither, or a URI that is no `str`; or the number is none.
    InvalidValueError
        It is empty, or a URI of a kind that Arrow does not know; or the number is negative.
    TagMatchError
        Nobody answers at the URI.

    Examples
    --------
    >>> str(location_of("file:///data/animals.index", "path"))
    '/data/animals.index'
    """
    found = given if isinstance(given, Folder | Store) else _location_of(given, name, options)
    if number is None:
        return found
    check_snapshot_number(number)
    return found.numbered(number)


def user_path(text: str) -> str:
    """A path as a person writes it, perhaps with a `~`.

    Raises
    ------
    InvalidValueError
        There is no such user, or no home folder, as with a user id of a container that no user has.
    """
    found = os.path.expanduser(text)
    if found.startswith("~"):
        raise InvalidValueError(
            f"{text}: there is no home folder for {found.partition('/')[0]}; give the whole path, or ./{text} for a "
            "name that begins so"
        )
    return found


def _location_of(given: object, name: str, options: StoreOptions | None) -> Location:
    if not isinstance(given, str | os.PathLike) or not isinstance(text := os.fspath(given), str):
        raise InvalidTypeError(f"{name} must be a string or a path, not {given!r}")
    if not text:
        raise InvalidValueError(f"{name} is empty; give the path of a folder")
    if not _URI.match(text):
        return Folder(Path(user_path(text)))
    if not isinstance(given, str):
        raise InvalidTypeError(f"a URI must be a str, not a {type(given).__name__}, which changes its slashes")
    if file := _FILE.match(text):
        return Folder(Path(unquote(file["path"])))
    if text.startswith("grpc"):
        raise InvalidValueError(
            f"{name} must be a folder or the URI of a store; "
            f"a service, as at {text!r:.80}, is called by tagmatch.connect"
        )
    return Store.at(text, options)


def open_with(location: Location, key_type: KeyType | None) -> Snapshot:
    """`Location.open`, but for keys of the type that is wanted; another is an `InvalidValueError`."""
    snapshot = location.open()
    if key_type not in (None, found := snapshot.key_type):
        raise InvalidValueError(
            f'the keys of the index {location} have key_type "{found}", not "{key_type}"; leave out key_type'
        )
    return snapshot
