"""One service changes an index and copies each snapshot to a place; others follow it there and answer, too."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Self

from tagmatch.background import Background
from tagmatch.broker.config import FOLLOW_S
from tagmatch.broker.observe import LOG
from tagmatch.embedded import TagMatch
from tagmatch.model.errors import IndexCorruptError, IndexNotFoundError, TagMatchError
from tagmatch.model.storage.byte_store import ByteStore, Kind
from tagmatch.model.storage.copies import backup
from tagmatch.model.storage.files import Entry, remove
from tagmatch.model.storage.format import MANIFEST
from tagmatch.model.storage.repository import Repository, location_of

#: How often the service that changes the index looks for changes to copy, in seconds
_LOOK_S = 0.05
#: After a copy that failed
_AGAIN_S = 1.0
#: Earlier snapshots that stay in the copy, so that followers have time to read their files
_KEPT = 2
#: Requests to a store at once, and bytes of files that this machine has room for until they are put there
_AT_ONCE, _MOST_BYTES = 16, 1 << 28


def first_of(opened: Callable[[], TagMatch[Any]]) -> TagMatch[Any]:
    """Wait until there is an index with all its files; an error that stays is raised at once."""
    told = ""
    while True:
        try:
            return opened()
        except TagMatchError as error:
            if type(error) not in (TagMatchError, IndexNotFoundError, IndexCorruptError):
                raise
            if str(error) != told:
                LOG.warning("waits for the first snapshot", extra={"fields": {"reason": str(error)}})
            told = str(error)
        time.sleep(FOLLOW_S)


class _OwnStore(ByteStore):
    """A place on a store that only this program writes to: it remembers its files, and asks for none again.

    Files are put there while others are made, and before a manifest that names them.
    """

    def __init__(self, store: ByteStore, ours: Collection[bytes]) -> None:
        self._store = store
        self._ours = ours  # what the manifest may be, if it is known
        self._names = {*store.names()}
        self._texts: dict[str, bytes] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, "tagmatch-copy")
        self._going_on: dict[str, Future[object]] = {}  # by the name that is put or removed
        self._awaited: list[Future[object]] = []  # of these, all that a manifest has to come after
        self._nbytes = 0  # of files that are on their way
        self._whole: set[str] = set()  # names of segments that are known to be there, with all their files

    def __str__(self) -> str:
        return str(self._store)

    @property
    def address(self) -> str:
        return self._store.address

    def folder(self, name: str) -> ByteStore:
        return self._store.folder(name)

    def kind(self, name: str = "") -> Kind | None:
        return "file" if name == MANIFEST and name in self._names else self._store.kind(name)

    def names(self) -> list[str]:
        return [*self._names]

    def open(self, name: str) -> AbstractContextManager[Any]:
        return self._store.open(name)

    def read(self, name: str, first: int = 0, last: int | None = None) -> bytes:
        if name not in self._texts:
            self._texts[name] = self._store.read(name)
        return self._texts[name][first:last]

    def holds(self, files: Mapping[str, Entry]) -> bool:
        own = {name.partition("/")[0] for name in files}
        if own <= self._names and not own <= self._whole and self._store.holds(files):
            self._whole |= own
        return own <= self._whole

    def begin(self) -> None:
        """Look, while other things go on, whether the manifest still is ours."""
        if self._ours:
            self._awaited.append(self._go_on(MANIFEST, self._reject_others))

    def _reject_others(self) -> None:
        try:
            found = self._store.read(MANIFEST)
        except FileNotFoundError:
            self._ours = ()
            raise TagMatchError(f"the copy {self} was removed; it is made anew") from None
        if found not in self._ours:
            raise TagMatchError(
                f"another program copies an index to {self}, too, and nothing more is copied there by this one; end "
                "the one that should not, and start the other one again"
            )

    def put(self, made: Path, name: str) -> None:
        self._nbytes += sum(file.stat().st_size for file in (made.iterdir() if made.is_dir() else [made]))
        if self._nbytes > _MOST_BYTES:  # this machine needs less room then
            self.wait()
        if name.startswith(MANIFEST.partition(".")[0]):  # of an earlier snapshot
            self._texts[name] = made.read_bytes()
        folder = Path(tempfile.mkdtemp(dir=made.parent.parent))
        made.replace(folder / name)

        def put() -> None:
            try:
                self._store.put(folder / name, name)
            finally:
                remove(folder)

        self._awaited.append(self._go_on(name, put))
        self._names.add(name)
        self._whole.add(name)

    def write(self, name: str, text: bytes) -> None:
        self.wait()
        self._ours = (*self._ours, text)  # whether it is there is open until this returns
        self._store.write(name, text)
        self._names.add(name)
        self._texts[name], self._ours = text, (text,)
        self._go_on(name, partial(self._store.read, name))  # so that to look at it again is one request

    def adopt(self, source: Self, names: Mapping[str, str], made: Path) -> None:
        raise NotImplementedError  # jobs have no copies

    def create(self) -> None:
        """It is there with its first file."""

    def remove_if_empty(self) -> None:
        """Copies are never without files."""

    def remove(self, name: str) -> None:
        if name in self._names:
            self._names.discard(name)
            self._whole.discard(name)
            self._texts.pop(name, None)
            self._go_on(name, partial(self._store.remove, name))

    def _go_on(self, name: str, work: Callable[[], object]) -> Future[object]:
        """Do it in another thread, after work that is under way for this name."""
        if (before := self._going_on.pop(name, None)) is not None:
            wait([before])
        self._going_on = {each: going for each, going in self._going_on.items() if not going.done()}
        found = self._going_on[name] = self._pool.submit(work)
        return found

    def wait(self) -> None:
        """Wait until all files are there; the first error."""
        awaited, self._awaited, self._nbytes = self._awaited, [], 0
        for each in awaited:
            each.result()

    def close(self) -> tuple[bytes, ...]:
        """Wait until nothing goes on; returns what the manifest may be."""
        self._pool.shutdown()
        return tuple(self._ours)


class Copies:
    """The copy of an index that others follow, within a `with` block; at its end, it has everything."""

    def __init__(self, path: str, target: str) -> None:
        self._index, self._target = location_of(path, "INDEX"), location_of(target, "copy_to")
        self._lock = threading.Lock()  # of a copy that is made
        self._store: _OwnStore | None = None  # the known files of the target, if it is on a store
        self._ours: Collection[bytes] = ()  # what its manifest may be, if it is known
        self._copied: str | None = None  # The snapshot that the copy has
        self._late: float | None = None  # when it was seen to lack something, if it does
        self._work = Background(self.copy, "tagmatch-copy", "a snapshot is not copied for followers", _AGAIN_S)

    def __enter__(self) -> Self:
        self._work.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._work.end()
        try:
            self.copy()
        except TagMatchError as error:
            LOG.warning("the last snapshot is not copied", extra={"fields": {"reason": str(error)}})
        self._forget()

    def copy(self) -> float:
        """Copy a new snapshot; returns the seconds until the next look."""
        with self._lock, contextlib.suppress(IndexNotFoundError):  # nothing is saved yet
            name = self._index.manifest()["snapshot"]
            if name != self._copied:
                self._late = self._late or time.monotonic()
                try:
                    backup(self._index, self._known_target(), _KEPT)
                except BaseException:
                    self._forget()
                    raise
                self._copied = name
            self._late = None
        return _LOOK_S

    def _known_target(self) -> Repository:
        if self._target.files.in_place:
            return self._target
        if self._store is None:
            self._store = _OwnStore(self._target.files, self._ours)
        self._store.begin()
        return Repository(self._store)

    def _forget(self) -> None:
        """Ask the store again for its files: something may have gone wrong halfway."""
        if self._store is not None:
            self._ours, self._store = self._store.close(), None

    def behind(self) -> float:
        """Seconds since the copy was seen to lack something; 0 if it lacks nothing."""
        late = self._late
        return 0.0 if late is None else time.monotonic() - late
