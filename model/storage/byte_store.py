"""A place for the files of an index, as the repository sees it: all that a folder and a store can do.

What is abstract here is all that a new kind of place has to have. The rest has a default for stores that other machines
keep, whose files are copied to this one: they have no locks and no logs, and their files appear whole. A place in which
indexes can be changed is a `ChangeableStore`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import textwrap
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeAlias

import pyarrow as pa
import xxhash

from tagmatch.model.errors import IndexCorruptError, TagMatchError
from tagmatch.model.parallel import ask_many, reject_given_up
from tagmatch.model.storage.files import (
    Entry,
    check_file,
    checksum_of,
    locked,
    open_plain,
    remove,
    telling_errors,
)
from tagmatch.model.storage.format import OWNER

#: "other" is neither a file nor a folder, such as a pipe
Kind: TypeAlias = Literal["file", "folder", "other"]

# Large, as each block is asked for
_BLOCK = 1 << 24

# Of a job on a store. Clocks of machines may differ by less than that
_SIGN_OF_LIFE_S, _LEASE_S = 10.0, 60.0

# Folders for copies of this process and those that it was forked from; the last one is in use
_made: list[Path] = []


class Lock(Protocol):
    """A lock that is held until it is closed."""

    @property
    def is_there(self) -> bool:
        """Whether others still find it in its place."""

    def close(self) -> None:
        """Let go of it."""


class Log(Protocol):
    """A file that grows; each call is done wholly, or raises OSError."""

    def put(self, pieces: list[Any], at: int, nbytes: int) -> None:
        """Write buffers of `nbytes` in all one behind the other, from byte `at` on."""

    def cut(self, end: int) -> None:
        """Cut the file behind a byte."""

    @property
    def sync(self) -> Callable[[], object]:
        """Waits until all written bytes last; in one step of C, unless Ctrl-C may leave the outcome open."""

    def close(self) -> None:
        """Let go of it."""


def this_program() -> str:
    """Where the calling program runs, and since when it works."""
    return f"process {os.getpid()} on {os.uname().nodename}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


class ByteStore(ABC):
    """A folder on some machine, which may not be there yet; files have names below it, `segment/keys.arrow`.

    As text it is what messages show, without passwords. What cannot be done is a TagMatchError.
    """

    __slots__ = ()

    #: Whether this machine reads files in their places, and not from copies
    in_place: ClassVar[bool] = False

    @property
    def changeable(self) -> ChangeableStore | None:
        """The place itself, if indexes can be changed in it."""
        return None

    @property
    @abstractmethod
    def address(self) -> str:
        """The path or URI that a user writes for it, perhaps with a password."""

    @abstractmethod
    def folder(self, name: str) -> ByteStore:
        """A folder in this one."""

    @abstractmethod
    def kind(self, name: str = "") -> Kind | None:
        """The kind of thing under a name or, without one, in place of this folder itself."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the files and folders in it; none if there is no such folder."""

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[Any]:
        """Open a file, which has `read`, `readinto`, `seek` and `tell`; FileNotFoundError."""

    @abstractmethod
    def write(self, name: str, text: bytes) -> None:
        """Replace the contents of a file in one step; they last when this returns."""

    @abstractmethod
    def put(self, made: Path, name: str) -> None:
        """Move or copy a file of this machine, or a folder of files, to a name, and replace the old one."""

    @abstractmethod
    def adopt(self, source: Self, names: Mapping[str, str], made: Path) -> None:
        """Take files of a folder in this one, by their names there; they are here, or in `made` for `put`."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all in it, or leave it to the next that comes by."""

    @abstractmethod
    def create(self) -> None:
        """Make the folder, in which other machines may write."""

    @abstractmethod
    def remove_if_empty(self) -> None:
        """Remove the folder, if nothing is in it."""

    # -- what folders of this machine do otherwise ---------------------------------------------------------------------

    def absolute(self) -> ByteStore:
        """The same one for processes that work in another folder."""
        return self

    def lock(self) -> AbstractContextManager[object]:
        """Be the only program that changes files here."""
        return contextlib.nullcontext()

    def writing(self, *, new: bool) -> AbstractContextManager[Path]:  # noqa: ARG002
        """Be the only one that writes, to a `new` folder if need be; gives a folder of this machine for `put`."""
        return self.making()

    @contextlib.contextmanager
    def making(self) -> Iterator[Path]:
        """A folder of this machine for files that are made for `put`."""
        try:
            with temporary_folder() as folder:
                yield folder
        except OSError as error:
            raise TagMatchError(
                f"cannot make the new files of {self}: {error}; the variable TMPDIR names the folder for them"
            ) from error

    @contextlib.contextmanager
    def leased(self, name: str) -> Iterator[None]:
        """Show others that this program works in a folder in this one: a sign of life every few seconds."""
        program, ended = this_program(), threading.Event()

        def show() -> None:
            self.write(f"{name}/{OWNER}", f"{time.time():.0f} {program}".encode())

        def go_on_showing() -> None:
            while not ended.wait(_SIGN_OF_LIFE_S):
                with contextlib.suppress(TagMatchError):
                    show()

        show()
        thread = threading.Thread(target=go_on_showing, name="tagmatch-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def tenant(self, name: str) -> str | None:
        """The living program that works in a folder in this one, in words; `None` if none does."""
        with contextlib.suppress(OSError, ValueError):
            shown, _, program = self.read(f"{name}/{OWNER}").decode().partition(" ")
            if time.time() - float(shown) < _LEASE_S:
                return program
        return None

    def sync(self) -> None:  # noqa: B027
        """Make it last that files were put here or removed."""

    @contextlib.contextmanager
    def pinned(self, names: Iterable[str]) -> Iterator[ByteStore]:  # noqa: ARG002
        """Files of one moment, which stay readable though others remove them, if that can be; FileNotFoundError."""
        yield self

    @property
    def digest(self) -> str:
        """A name for copies of its files, without passwords."""
        return xxhash.xxh3_64_hexdigest(self.address.encode())

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, name: str, first: int = 0, last: int | None = None) -> bytes:
        """The bytes of a file from `first` to `last`, or up to its end; FileNotFoundError."""
        try:
            with self.open(name) as file:
                if first:
                    file.seek(first)
                return bytes(file.read() if last is None else file.read(last - first))
        except FileNotFoundError:
            raise
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from None
        except OSError as error:
            raise TagMatchError(f"cannot read {self}/{name}: {error}") from error

    def checksum(self, name: str) -> str:
        """As manifests have it; FileNotFoundError."""
        with self.open(name) as file:
            return checksum_of(file) if self.in_place else checksum_of(file, _BLOCK)

    def has_whole(self, files: Mapping[str, Entry]) -> bool:
        """Whether files are here with their checksums in a manifest: then readers may be using them."""
        try:
            return all(self.checksum(name) == expected["xxh3_64"] for name, expected in files.items())
        except (OSError, IndexCorruptError):
            return False

    def holds(self, files: Mapping[str, Entry]) -> bool:
        """The same, if that is known without a copy of each, by their sizes."""
        return self.has_whole(files)

    def check(self, name: str, expected: Entry, *, wholly: bool = True) -> None:
        """See that a file is as a manifest says, or only as long; IndexCorruptError."""
        where = f"{self}/{name}"
        with telling_errors(where):
            opened = self.descriptor(name, expected)
            try:
                check_file(opened, where, expected, wholly=wholly)
            finally:
                os.close(opened)

    def fetch(self, name: str, file: Path) -> None:
        """Copy a file to this machine, in blocks so that Ctrl-C need not wait for all of it; FileNotFoundError."""
        with self.open(name) as source, file.open("wb") as sink:
            while block := source.read(_BLOCK):
                reject_given_up()
                sink.write(block)

    @contextlib.contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """Give a path of this machine, at which to write the file of that name; it appears whole, at once."""
        made = self.local_folder() / uuid.uuid4().hex
        try:
            yield made
            self.put(made, name)
        finally:
            made.unlink(missing_ok=True)

    def map(self, name: str, *, keep: bool = False) -> pa.MemoryMappedFile:
        """Map a file into memory; `keep` if other processes of this machine need it, too."""
        if keep:
            return pa.memory_map(str(self.kept(name)))
        file = self.local_folder() / uuid.uuid4().hex
        try:
            self.fetch(name, file)
            return pa.memory_map(str(file))
        finally:
            file.unlink(missing_ok=True)

    def descriptor(self, name: str, expected: Entry) -> int:
        """A file of an index, or a copy with the checksum of the manifest, opened to be mapped; OSError."""
        while True:
            try:
                file = self.kept(name, expected)
            except FileNotFoundError as error:
                raise IndexCorruptError(f"{self} lacks a file: {in_a_line(error)}") from None
            except IndexCorruptError as error:
                raise IndexCorruptError(f"a copy of {self} is damaged: {error}") from None
            except OSError as error:
                raise TagMatchError(
                    f"cannot copy {self} to this machine: {in_a_line(error)}; the variable TMPDIR names the folder"
                ) from error
            with contextlib.suppress(FileNotFoundError):  # another process follows a newer snapshot
                return open_plain(file.parent, file.name)

    def kept(self, name: str, expected: Entry | None = None) -> Path:
        """The path on this machine of a file, or of a copy, that other processes here need, too."""
        file = self._copies / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            with locked(file.parent, f"{file.name}.lock"):  # one process of this machine at a time
                if not file.exists():
                    part = file.with_name(uuid.uuid4().hex)
                    try:
                        self.fetch(name, part)
                        if expected is not None:
                            with part.open("rb") as opened:
                                check_file(opened.fileno(), name, expected)
                        os.replace(part, file)
                    finally:
                        remove(part)
        return file

    def fetch_ahead(self, files: Mapping[str, Entry]) -> None:
        """Copy those files of an index that are not here yet, many at once; errors as `descriptor`."""
        copies = self._copies
        missing = [name for name in files if not (copies / name).exists()]
        ask_many(lambda name: os.close(self.descriptor(name, files[name])), missing)

    def forget(self, names: set[str]) -> None:
        """Remove copies on this machine of all but the files and folders with these names."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._copies):
                if name.removesuffix(".lock") not in names:
                    remove(self._copies / name)

    @property
    def _copies(self) -> Path:
        return self.local_folder() / f"copies-{self.digest}"

    def local_folder(self) -> Path:
        """A folder of this machine with room for files, which their maker removes."""
        return folder_for_copies()


class ChangeableStore(ByteStore):
    """A place that has locks, and logs of staged changes."""

    __slots__ = ()

    @property
    def changeable(self) -> Self:
        """See `ByteStore`."""
        return self

    @abstractmethod
    def prepare(self) -> None:
        """Make the folder, if it is not there."""

    @abstractmethod
    def lock_at_once(self, name: str) -> Lock | None:
        """Hold the lock of a file, or get `None` if another program has it."""

    @abstractmethod
    def is_locked(self, name: str) -> bool:
        """Whether a program holds the lock of a file; FileNotFoundError, PermissionError."""

    @abstractmethod
    def log(self, name: str, *, new: bool = False) -> Log:
        """A log to write to, empty if it is `new`; OSError."""

    @abstractmethod
    def state(self, name: str = "") -> tuple[int, int] | None:
        """Which folder it is, or file in it, and when that changed last, in nanoseconds of the clock; `None` without.

        A folder changes with the names in it.
        """


class Written(NamedTuple):
    """Files that are whole, and are to become those of an index."""

    files: ByteStore  # as the index's `scratch` gives it
    names: dict[str, str]  # by their paths within the index, their names among `files`


def in_a_line(error: BaseException | str) -> str:
    """What an error says, or a text, without line breaks and not at great length."""
    return textwrap.shorten(str(error), 400)


# -- copies on this machine --------------------------------------------------------------------------------------------


def folder_for_copies() -> Path:
    """A folder for copies: our own or, in a worker of Spark, one of its executor, which removes it when it ends.

    Forked children share it, and leave it to the process that made it.
    """
    executors = Path(os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0])
    if executors.name.startswith("blockmgr-"):
        folder = executors / "tagmatch"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    if not (_made and _made[-1].is_dir()):  # the process that made it has ended
        _made.append(folder_of_this_process())
    return _made[-1]


def folder_of_this_process() -> Path:
    """A new folder of this machine, which goes when this process ends, but not when a forked child of it does."""
    folder = Path(tempfile.mkdtemp(prefix="tagmatch-"))
    atexit.register(_remove_own, folder, os.getpid())
    return folder


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder among the copies, for the block; one of `tempfile` would go when a forked child ends, too."""
    folder, maker = Path(tempfile.mkdtemp(prefix="tagmatch-", dir=folder_for_copies())), os.getpid()
    try:
        yield folder
    finally:
        _remove_own(folder, maker)


def _remove_own(folder: Path, maker: int) -> None:
    if os.getpid() == maker:
        remove(folder)
