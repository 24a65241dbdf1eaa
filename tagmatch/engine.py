"""`TagMatch`, the engine's façade: staged changes, consolidation, matching."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, Self, Unpack, get_args, overload

import numpy as np
import pyarrow as pa
from typing_extensions import TypeVar

from tagmatch.contents import every_set, pairs, schema_of, sets_at
from tagmatch.model.arrays import Lists
from tagmatch.model.check import check_snapshot
from tagmatch.model.columns import KEY_CHECKS, one_row, tag_list, tag_lists
from tagmatch.model.errors import (
    ClosedError,
    InvalidTypeError,
    InvalidValueError,
    ResultTooLargeError,
    StagedChangesWarning,
)
from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.options import (
    CudaOptions,
    Device,
    KeyType,
    Layout,
    LayoutOptions,
    MatchOptions,
    NewOptions,
    OpenOptions,
    PipelineOptions,
    available_threads,
)
from tagmatch.model.storage.format import (
    index_exists,
    is_uri,
    open_named,
    read_manifest,
    save_snapshot,
    update_snapshot,
)
from tagmatch.model.tables import KeyTable, Snapshot, empty_snapshot
from tagmatch.partitioner.local import Changes, build_snapshot
from tagmatch.partitioner.staging import StagedChanges
from tagmatch.pipeline.backend import Backend
from tagmatch.pipeline.devices import backend_for
from tagmatch.pipeline.service import Pipeline

_MAX_KEYS = 2**31 - 1

P = ParamSpec("P")
R = TypeVar("R")
#: Type of keys
K = TypeVar("K", int, str, default=int)


def _interrupted_plainly(method: Callable[P, R]) -> Callable[P, R]:
    """The method, which raises `KeyboardInterrupt` also where Ctrl-C comes as a kernel is called.

    Numba goes on as if nothing had happened, and Python makes a `SystemError` of that, or of that another one.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except SystemError as error:
            cause: BaseException | None = error
            while isinstance(cause, SystemError):
                cause = cause.__cause__
            if isinstance(cause, KeyboardInterrupt):
                raise cause from None
            raise

    return call


class TagMatch(Generic[K]):
    """A database of tag sets with keys, and the keys of all sets that are contained in a query.

    Changes are *staged* by `add_set`, `remove_set` and their bulk forms, and take effect, in order, when
    `consolidate` is called (Table 2 of the paper). A set holds each of its keys once. All methods may be called from
    many threads; matching during a consolidation answers from the snapshot before it, wholly.

    Parameters
    ----------
    path : str or Path, optional
        Folder of the index. If one is there it is loaded; `consolidate` saves to it. Without a path the sets are kept
        in memory only.
    key_type : {"integer", "string"}, optional
        Whether keys are integers in [0, 2**64) or strings, such as names and UUIDs. Default: as they are in the index
        at `path`, integers if there is none. It cannot be changed later.
    layout : {"rarest", "balanced"}
        `rarest` orders sets by their rarest tag and is the faster; `balanced` is the paper's partitioning.
    exact : bool
        With `False`, the `balanced` layout answers by signature alone, as the paper does: every exact answer and
        some wrong ones. The `rarest` layout compares tags in any case.
    device : {"auto", "cpu", "cuda"}
        Where to match; `auto` takes CUDA devices if it can, else the CPU, and `stats` tells which and why.
    threads : int, optional
        Threads that build and match; default: the processors this process may use.
    max_partition_size : int
        Most sets in a partition of the `balanced` layout.
    batch_size : int
        Queries matched together against a partition of the `balanced` layout.
    flush_timeout : float or None
        Seconds that a query of the `balanced` layout may wait, while all threads are busy, until as many as
        `batch_size` are to be matched against the same partition; `None`: no limit.
    pipeline : PipelineOptions, optional
        How queries that are asked one by one go through the stages, and how many at once.
    cuda : CudaOptions, optional
        Which CUDA devices, and how.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        For an option that cannot be used.
    DeviceError
        The device asked for is not there.
    IndexExistsError, IndexCorruptError, IndexVersionError
        For what stands at `path`.
    """

    @overload
    def __init__(
        self: TagMatch[int],
        path: str | os.PathLike[str] | None = None,
        *,
        key_type: Literal["integer"] | None = None,
        **options: Unpack[NewOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: TagMatch[str],
        path: str | os.PathLike[str] | None = None,
        *,
        key_type: Literal["string"],
        **options: Unpack[NewOptions],
    ) -> None: ...

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        key_type: KeyType | None = None,
        layout: Layout = "rarest",
        exact: bool = True,
        device: Device = "auto",
        threads: int | None = None,
        max_partition_size: int = 200_000,
        batch_size: int = 256,
        flush_timeout: float | None = 0.1,
        pipeline: PipelineOptions | None = None,
        cuda: CudaOptions | None = None,
    ) -> None:
        _check_key_type(key_type)
        layout_options = LayoutOptions(layout, max_partition_size)
        options = _match_options(exact, device, threads, batch_size, flush_timeout, cuda)
        folder = None if path is None else _folder(path)
        name, snapshot = None, empty_snapshot(layout_options, key_type or "integer")
        if folder is not None and index_exists(folder):
            name, snapshot = _open_with(folder, key_type)
        self._start(folder, name, snapshot, layout_options, options, pipeline)

    @overload
    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        key_type: Literal["integer"] | None = None,
        **options: Unpack[OpenOptions],
    ) -> TagMatch[int]: ...

    @overload
    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        key_type: Literal["string"],
        **options: Unpack[OpenOptions],
    ) -> TagMatch[str]: ...

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        key_type: KeyType | None = None,
        layout: Layout | None = None,
        exact: bool = True,
        device: Device = "auto",
        threads: int | None = None,
        max_partition_size: int | None = None,
        batch_size: int = 256,
        flush_timeout: float | None = 0.1,
        pipeline: PipelineOptions | None = None,
        cuda: CudaOptions | None = None,
    ) -> Any:
        """An existing index, in its own layout.

        Parameters
        ----------
        path
            Folder of the index.
        key_type
            What its keys are; default: whatever they are. Type checkers take them for integers, unless this says so.
        layout, max_partition_size
            Default: the index's own. Others lay the sets out anew in memory; the next `consolidate` saves them so.
        exact, device, threads, batch_size, flush_timeout, pipeline, cuda
            As of `TagMatch`.

        Raises
        ------
        IndexNotFoundError, IndexCorruptError, IndexVersionError
            There is no index at `path`, it is damaged, or a newer version wrote it.
        InvalidValueError
            Its keys are not of the type `key_type`; or another option cannot be used.
        """
        _check_key_type(key_type)
        folder = _folder(path)
        name, snapshot = _open_with(folder, key_type)
        layout_options = LayoutOptions(
            snapshot.options.layout if layout is None else layout,
            snapshot.options.max_partition_size if max_partition_size is None else max_partition_size,
        )
        options = _match_options(exact, device, threads, batch_size, flush_timeout, cuda)
        opened = cls.__new__(cls)
        opened._start(folder, name, snapshot, layout_options, options, pipeline)
        return opened

    def _start(
        self,
        folder: Path | None,
        name: str | None,
        snapshot: Snapshot,
        layout_options: LayoutOptions,
        options: MatchOptions,
        pipeline: PipelineOptions | None,
    ) -> None:
        if not isinstance(pipeline, PipelineOptions | None):
            raise InvalidTypeError(f"pipeline must be PipelineOptions, not {pipeline!r}")
        self._folder = folder
        self._layout_options = layout_options
        self._options = options
        # Of the snapshots of the index on disk, those that are contained in the one in memory
        self._known: set[str] = set() if name is None else {name}
        # What is on disk as it is in memory
        self._saved = None if name is None else snapshot
        self._key_type = snapshot.keys.type
        self._backend: Backend | None = backend_for(self._laid_out(snapshot), options)
        self._staged = StagedChanges(options.threads)
        self._staging = threading.Lock()
        self._consolidating = threading.Lock()
        self._pipeline = Pipeline(options.threads, options.flush_timeout, pipeline or PipelineOptions())
        # Its threads end with this object, also where `close` is forgotten
        self._finalizer: weakref.finalize[Any, Any] = weakref.finalize(self, self._pipeline.abandon)
        self._finalizer.atexit = False
        self._warning: weakref.finalize[Any, Any] = weakref.finalize(self, _warn_of_loss, self._staged, folder)

    def _laid_out(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot in the layout that this object is to have."""
        options = self._layout_options
        if snapshot.options == options:
            return snapshot
        if snapshot.options.layout == options.layout == "rarest":
            return replace(snapshot, options=options)  # a partition size makes no difference to it
        return build_snapshot(snapshot, _no_changes(), options, threads=self._options.threads)

    # -- changes -----------------------------------------------------------------------------------------------------

    @_interrupted_plainly
    def add_set(self, tags: Iterable[str], key: K) -> None:
        """Stage the addition of `key` to the set `tags`.

        Raises
        ------
        TypeError, ValueError
            `tags` is not an iterable of `str`, or `key` not an integer in [0, 2**64); or no `str`, where the index has
            strings as keys.
        """
        self._stage_one(tags, key, removed=False)

    @_interrupted_plainly
    def remove_set(self, tags: Iterable[str], key: K) -> None:
        """Stage the removal of `key` from the set `tags`; a set without keys is no longer stored.

        Raises
        ------
        TypeError, ValueError
            As `add_set`.
        """
        self._stage_one(tags, key, removed=True)

    @_interrupted_plainly
    def add_sets(self, tags: Any, keys: Any) -> None:
        """Stage the addition of many sets, each with one key.

        Parameters
        ----------
        tags
            Arrow array of lists of strings (any list and string type, chunked or not), or a sequence of iterables of
            `str`.
        keys
            As many integers, or strings where the index has such keys: Arrow or NumPy array, or a sequence.

        Raises
        ------
        TypeError, ValueError
            As `add_set`, naming the row, or the lengths differ. Nothing is staged then.
        """
        self._stage_many(tags, keys, removed=False)

    @_interrupted_plainly
    def remove_sets(self, tags: Any, keys: Any) -> None:
        """Stage the removal of many (set, key) pairs; arguments and errors as `add_sets`."""
        self._stage_many(tags, keys, removed=True)

    @_interrupted_plainly
    def consolidate(self) -> None:
        """Make all changes staged so far take effect; save the new snapshot if there is a path.

        When this returns, a saved snapshot survives a crash of the machine. Without changes nothing is written.

        Raises
        ------
        IndexChangedError
            Another program has saved to the index since this object read or saved it; `reload` takes that over.
        TagMatchError
            The snapshot cannot be saved. In both cases the changes stay staged and the old snapshot goes on answering.
        """
        with self._consolidating:
            backend = self._current()
            with self._staging:
                changes = self._staged.changes()
            if len(changes):
                snapshot = build_snapshot(
                    backend.snapshot, changes, self._layout_options, threads=self._options.threads
                )
                backend = backend_for(snapshot, self._options)
            if self._folder is not None and backend.snapshot is not self._saved:
                name = update_snapshot(backend.snapshot, self._folder, self._known)
                self._saved, self._known = backend.snapshot, {name}
            with self._staging:
                if self._backend is not None:
                    self._backend = backend
                # Should this be interrupted in between, the changes come once more, which changes nothing
                self._staged.drop(changes)

    @_interrupted_plainly
    def reload(self) -> bool:
        """Take over the snapshot that the index at this object's path has now; returns whether it is another one.

        Staged changes stay staged, and come on top of it at the next `consolidate`. Where it is the same one, only the
        manifest is read, so that a server may ask often.

        Raises
        ------
        InvalidValueError
            This object has no path.
        IndexNotFoundError, IndexCorruptError, IndexVersionError
            As `open`.
        """
        with self._consolidating:
            self._current()
            if self._folder is None:
                raise InvalidValueError(
                    "there is nothing to reload: this TagMatch is in memory only; open it with a path"
                )
            if self._known == {read_manifest(self._folder)["snapshot"]}:
                return False
            name, snapshot = _open_with(self._folder, self._key_type)
            backend = backend_for(self._laid_out(snapshot), self._options)
            with self._staging:
                if self._backend is not None:
                    self._backend = backend
                self._known, self._saved = {name}, snapshot
            return True

    # -- queries -----------------------------------------------------------------------------------------------------

    @_interrupted_plainly
    def match(self, tags: Iterable[str]) -> list[K]:
        """Keys of all stored sets contained in `tags`, in no particular order; a key once per set that carries it.

        Raises
        ------
        TypeError, ValueError
            `tags` is not an iterable of `str`.
        """
        found: list[K] = self._pipeline.match(self._current(), tag_list(tags), unique=False)
        return found

    @_interrupted_plainly
    def match_unique(self, tags: Iterable[str]) -> set[K]:
        """Keys of all stored sets contained in `tags`; errors as `match`."""
        found: set[K] = self._pipeline.match(self._current(), tag_list(tags), unique=True)
        return found

    @_interrupted_plainly
    def match_many(self, queries: Any, *, unique: bool = False) -> pa.ListArray:
        """Answers to many queries.

        Parameters
        ----------
        queries
            As the `tags` of `add_sets`: one row per query.
        unique : bool
            Give each key of a query once (ascending), as `match_unique` does.

        Returns
        -------
        pyarrow.ListArray of uint64, or of large_string where keys are strings
            The keys of each query, in the queries' order.

        Raises
        ------
        TypeError, ValueError
            As `add_sets`.
        ResultTooLargeError
            All answers together have 2**31 keys or more.
        """
        backend = self._current()
        parts = self._pipeline.match_many(backend, tag_lists(queries, "queries"), unique=bool(unique))
        return _list_array(join_lists(parts, np.dtype(np.uint64), self._options.threads), backend.snapshot.keys)

    @overload
    def submit(
        self, tags: Iterable[str], *, unique: Literal[False] = False, block: bool = True, timeout: float | None = None
    ) -> Future[list[K]]: ...

    @overload
    def submit(
        self, tags: Iterable[str], *, unique: Literal[True], block: bool = True, timeout: float | None = None
    ) -> Future[set[K]]: ...

    @overload
    def submit(
        self, tags: Iterable[str], *, unique: bool, block: bool = True, timeout: float | None = None
    ) -> Future[list[K]] | Future[set[K]]: ...

    def submit(
        self, tags: Iterable[str], *, unique: bool = False, block: bool = True, timeout: float | None = None
    ) -> Future[Any]:
        """`match`, or `match_unique` when `unique`, as a future, which can be cancelled until its matching begins.

        Parameters
        ----------
        tags, unique
            The query, and whether its answer is a set of keys.
        block : bool
            Wait while too many queries are being answered.
        timeout : float, optional
            Wait at most for so many seconds.

        Raises
        ------
        TypeError, ValueError
            As `match`.
        Overloaded
            Too many queries are being answered, and `block` or `timeout` forbids to wait longer.
        """
        query = tag_list(tags)
        return self._pipeline.submit(self._current(), query, unique=bool(unique), timeout=timeout if block else 0.0)

    @overload
    async def amatch(self, tags: Iterable[str], *, unique: Literal[False] = False) -> list[K]: ...

    @overload
    async def amatch(self, tags: Iterable[str], *, unique: Literal[True]) -> set[K]: ...

    @overload
    async def amatch(self, tags: Iterable[str], *, unique: bool) -> list[K] | set[K]: ...

    async def amatch(self, tags: Iterable[str], *, unique: bool = False) -> list[K] | set[K]:
        """`match`, or `match_unique` when `unique`, for asyncio; raises `Overloaded` at once instead of waiting."""
        future: Future[Any] = self.submit(tags, unique=unique, block=False)
        found: list[K] | set[K] = await asyncio.wrap_future(future)
        return found

    @_interrupted_plainly
    def explain(self, tags: Iterable[str]) -> list[tuple[frozenset[str], tuple[K, ...]]]:
        """Every matching set with its keys, ascending; errors as `match`."""
        backend = self._current()
        return list(sets_at(backend.snapshot, backend.set_ids(one_row(tag_list(tags)), 0, 1).values))

    # -- contents ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Distinct stored sets, not counting staged changes."""
        return len(self._current().snapshot)

    def __iter__(self) -> Iterator[tuple[frozenset[str], tuple[K, ...]]]:
        """Every stored set with its keys, ascending: those stored now, whatever is consolidated meanwhile.

        Staged changes do not count. Memory is needed for few sets at a time.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat", "fr"], ["cat", "fr"], []], [7, 8, 9])
        >>> tm.consolidate()
        >>> for tags, keys in tm:
        ...     print(sorted(tags), keys)
        [] (9,)
        ['cat', 'fr'] (7, 8)
        """
        return every_set(self._current().snapshot)

    @_interrupted_plainly
    def __contains__(self, tags: object) -> bool:
        """Whether exactly the set `tags` is stored, with any key, not counting staged changes; errors as `match`.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_set(["cat", "fr"], 7)
        >>> tm.consolidate()
        >>> ["fr", "cat"] in tm, ["cat"] in tm
        (True, False)
        """
        backend = self._current()
        query = tag_list(tags)
        wanted = frozenset(query)
        found = backend.set_ids(one_row(query), 0, 1).values
        offsets = backend.snapshot.tagsets.ranks.offsets
        as_large = found[offsets[found + 1] - offsets[found] == len(wanted)]
        return any(stored == wanted for stored, _ in sets_at(backend.snapshot, as_large))

    def to_arrow(self) -> pa.Table:
        """All stored sets and keys as columns, not counting staged changes.

        Returns
        -------
        pyarrow.Table
            Columns `tags`, lists of strings, and `key`, uint64 or, where keys are strings, large strings: a row for
            each stored set and each of its keys. There are many chunks, none of them large. `add_sets(table["tags"],
            table["key"])` takes it, and so does `tagmatch build` where it is written to a Parquet file.

        Raises
        ------
        ResultTooLargeError
            The tags of one set alone have 2**31 bytes or more.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat"], []], [7, 8])
        >>> tm.consolidate()
        >>> tm.to_arrow().to_pylist()
        [{'tags': [], 'key': 8}, {'tags': ['cat'], 'key': 7}]
        """
        snapshot = self._current().snapshot
        return pa.Table.from_batches(pairs(snapshot), schema_of(snapshot))

    # -- the object --------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Figures of the index and of the work done.

        Returns
        -------
        dict
            Of the snapshot: `sets`, `keys` (of all sets together), `key_type`, `tags` (different ones), `partitions`
            (clusters that have sets, in the layout `rarest`), `layout`, `max_partition_size`, `seed`; `staged`
            changes that are not in it yet; `path`. Where it is matched: `device`, `devices`, `device_notes` (why not
            on others), `threads`, `exact`; `index_bytes` with, among them, `key_bytes`. Work since the opening:
            `queries` answered, `matches` (keys that they got), `verified` (sets that were compared with a query and
            are contained in it), `rejected` (candidates that are not). Now: `queries_in_flight`,
            `result_bytes_in_flight`, and `stages`, by name, with their queues and times in seconds.
        """
        backend = self._current()
        snapshot = backend.snapshot
        return {
            "sets": len(snapshot),
            "keys": len(snapshot.keys.keys.values),
            "key_type": snapshot.keys.type,
            "tags": len(snapshot.vocabulary),
            "partitions": len(snapshot.partitions),
            "staged": len(self._staged),
            "layout": snapshot.options.layout,
            "max_partition_size": snapshot.options.max_partition_size,
            "exact": self._options.exact or snapshot.options.layout == "rarest",
            "device": backend.devices[0].partition(":")[0],
            "devices": list(backend.devices),
            "device_notes": list(backend.notes),
            "threads": self._options.threads,
            "seed": snapshot.vocabulary.seed,
            "index_bytes": backend.nbytes,
            "key_bytes": snapshot.keys.nbytes,
            "path": None if self._folder is None else str(self._folder),
            **self._pipeline.stats(),
        }

    @_interrupted_plainly
    def check(self) -> None:
        """Verify every invariant of the current snapshot.

        Raises
        ------
        InvariantError
            Names the table, the row and the invariant that is broken.
        """
        check_snapshot(self._current().snapshot, threads=self._options.threads)

    @_interrupted_plainly
    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the current snapshot as an index at `path`, replacing, in one step, an index that is there.

        Raises
        ------
        IndexExistsError
            Something else than an index is there.
        TagMatchError
            It cannot be written.
        """
        save_snapshot(self._current().snapshot, _folder(path))

    def close(self, *, drain: bool = True) -> None:
        """Answer what was submitted, or cancel it without `drain`, end all threads and let go of all memory.

        Staged changes that were not consolidated are lost, with a `StagedChangesWarning`. Within a callback of a
        future, whose thread is one of those to end, this returns at once and the rest is done in the background.
        """
        self._close(drain=drain)
        self._warning()

    def _close(self, *, drain: bool = True) -> None:
        with self._staging:
            self._backend = None
            self._staged = StagedChanges()
        self._pipeline.close(drain=drain)
        self._finalizer.detach()

    def __enter__(self) -> Self:
        self._current()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()
        if kind is None:
            self._warning()
        else:  # the error tells that the work was not finished
            self._warning.detach()

    def __repr__(self) -> str:
        backend = self._backend
        if backend is None:
            return "<TagMatch, closed>"
        where = "in memory" if self._folder is None else f"at {str(self._folder)!r}"
        staged = f", {len(self._staged)} staged changes" if len(self._staged) else ""
        return f"<TagMatch {where}, {len(backend.snapshot)} sets{staged}, layout {self._layout_options.layout}>"

    # -- inside ------------------------------------------------------------------------------------------------------

    def _current(self) -> Backend:
        backend = self._backend
        if backend is None:
            raise ClosedError
        return backend

    def _stage_one(self, tags: Iterable[str], key: K, *, removed: bool) -> None:
        row, value = tag_list(tags), KEY_CHECKS[self._key_type].one(key, "key")
        with self._staging:
            self._current()
            self._staged.append(row, value, removed=removed)

    def _stage_many(self, tags: Any, keys: Any, *, removed: bool) -> None:
        chunks, values = tag_lists(tags, "tags", stored=True), KEY_CHECKS[self._key_type].many(keys, "keys")
        rows = sum(map(len, chunks))
        if rows != len(values):
            raise InvalidValueError(
                f"tags and keys must have the same length; there are {rows} sets, {len(values)} keys"
            )
        with self._staging:
            self._current()
            self._staged.extend(chunks, values, removed=removed)


def _match_options(
    exact: bool,
    device: Device,
    threads: int | None,
    batch_size: int,
    flush_timeout: float | None,
    cuda: CudaOptions | None,
) -> MatchOptions:
    threads = available_threads() if threads is None else threads
    return MatchOptions(exact, device, threads, batch_size, flush_timeout, CudaOptions() if cuda is None else cuda)


def _check_key_type(key_type: object) -> None:
    if key_type not in (None, *get_args(KeyType)):
        raise InvalidValueError(f'key_type must be "integer" or "string", not {key_type!r}')


def _open_with(folder: Path, key_type: KeyType | None) -> tuple[str, Snapshot]:
    """`open_named`, but for keys of the type that is wanted."""
    name, snapshot = open_named(folder)
    if key_type not in (None, found := snapshot.keys.type):
        raise InvalidValueError(
            f'the keys of the index {folder} have key_type "{found}", not "{key_type}"; open it anew as it is'
        )
    return name, snapshot


def _folder(path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InvalidTypeError(f"path must be a string or a path, not {path!r}")
    if is_uri(path):
        scheme = os.fspath(path).partition(":")[0]
        raise InvalidValueError(
            f"path must be a folder of this machine, not a URI ({scheme}:…); tagmatch.spark makes indexes on stores "
            "and joins with them; to open one here, copy its folder to this machine"
        )
    if not os.fspath(path):
        raise InvalidValueError("path is empty; give the path of a folder")
    return Path(path).expanduser()


def _warn_of_loss(staged: StagedChanges, folder: Path | None) -> None:
    if count := len(staged):
        where = "" if folder is None else f" of the index {folder}"
        warnings.warn(
            f"{count} staged {'change' if count == 1 else 'changes'}{where} {'is' if count == 1 else 'are'} lost; "
            "call consolidate() before closing",
            StagedChangesWarning,
            stacklevel=4,
        )


def _no_changes() -> Changes:
    return StagedChanges().changes()


def _list_array(answers: Lists, keys: KeyTable) -> pa.ListArray:
    if len(answers.values) > _MAX_KEYS:
        raise ResultTooLargeError(
            f"{len(answers)} queries have {len(answers.values)} keys, more than one Arrow list array can hold "
            f"({_MAX_KEYS}); ask with fewer queries at a time"
        )
    offsets = answers.offsets.astype(np.int32, copy=False)
    values = keys.column(answers.values)
    return pa.Array.from_buffers(pa.list_(values.type), len(answers), [None, pa.py_buffer(offsets)], children=[values])
