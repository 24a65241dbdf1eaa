"""`TagMatch`, the engine's façade: staged changes, consolidation, matching."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from partitioner.local import Changes, build_snapshot
from partitioner.staging import StagedChanges
from pipeline.backend import Backend
from pipeline.devices import backend_for
from pipeline.packets import join_lists
from pipeline.service import Pipeline
from tagmatch.arrays import Lists
from tagmatch.check import check_snapshot
from tagmatch.columns import key_value, key_values, one_row, tag_list, tag_lists
from tagmatch.errors import ClosedError, InvalidTypeError, InvalidValueError, ResultTooLargeError
from tagmatch.options import (
    CudaOptions,
    Device,
    Layout,
    LayoutOptions,
    MatchOptions,
    PipelineOptions,
    available_threads,
)
from tagmatch.storage import index_exists, is_uri, open_snapshot, save_snapshot
from tagmatch.tables import Snapshot, empty_snapshot

_MAX_KEYS = 2**31 - 1


class TagMatch:
    """A database of tag sets with keys, and the keys of all sets that are contained in a query.

    Changes are *staged* by `add_set`, `remove_set` and their bulk forms, and take effect, in order, when
    `consolidate` is called (Table 2 of the paper). A set holds each of its keys once. All methods may be called from
    many threads; matching during a consolidation answers from the snapshot before it, wholly.

    Parameters
    ----------
    path : str or Path, optional
        Folder of the index. If one is there it is loaded; `consolidate` saves to it. Without a path the sets are kept
        in memory only.
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

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
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
        layout_options = LayoutOptions(layout, max_partition_size)
        options = MatchOptions(
            exact,
            device,
            available_threads() if threads is None else threads,
            batch_size,
            flush_timeout,
            CudaOptions() if cuda is None else cuda,
        )
        folder = None if path is None else _folder(path)
        if folder is not None and index_exists(folder):
            snapshot = open_snapshot(folder)
        else:
            snapshot = empty_snapshot(layout_options)
        self._start(folder, snapshot, layout_options, options, pipeline)

    @classmethod
    def open(cls, path: str | os.PathLike[str], **overrides: Any) -> Self:
        """An existing index, in its own layout.

        Parameters
        ----------
        path
            Folder of the index.
        **overrides
            Any option of `TagMatch`. A `layout` or `max_partition_size` other than the index's own lays the sets out
            anew in memory; the next `consolidate` saves them so.

        Raises
        ------
        IndexNotFoundError, IndexCorruptError, IndexVersionError
            There is no index at `path`, it is damaged, or a newer version wrote it.
        """
        folder = _folder(path)
        snapshot = open_snapshot(folder)
        unknown = set(overrides) - _OPTIONS
        if unknown:
            raise InvalidTypeError(
                f"open() has no option {', '.join(sorted(unknown))}; there are {', '.join(sorted(_OPTIONS))}"
            )
        layout_options = LayoutOptions(
            overrides.pop("layout", snapshot.options.layout),
            overrides.pop("max_partition_size", snapshot.options.max_partition_size),
        )
        threads, pipeline = overrides.pop("threads", None), overrides.pop("pipeline", None)
        options = MatchOptions(threads=available_threads() if threads is None else threads, **overrides)
        opened = cls.__new__(cls)
        opened._start(folder, snapshot, layout_options, options, pipeline)
        return opened

    def _start(
        self,
        folder: Path | None,
        snapshot: Snapshot,
        layout_options: LayoutOptions,
        options: MatchOptions,
        pipeline: PipelineOptions | None,
    ) -> None:
        if not isinstance(pipeline, PipelineOptions | None):
            raise InvalidTypeError(f"pipeline must be PipelineOptions, not {pipeline!r}")
        if snapshot.options.layout == layout_options.layout == "rarest":
            snapshot = replace(snapshot, options=layout_options)  # a partition size makes no difference to it
        elif snapshot.options != layout_options:
            snapshot = build_snapshot(snapshot, _no_changes(), layout_options, threads=options.threads)
        self._folder = folder
        self._layout_options = layout_options
        self._options = options
        self._backend: Backend | None = backend_for(snapshot, options)
        self._staged = StagedChanges(options.threads)
        self._staging = threading.Lock()
        self._consolidating = threading.Lock()
        self._pipeline = Pipeline(options.threads, options.flush_timeout, pipeline or PipelineOptions())
        # Its threads end with this object, also where `close` is forgotten
        self._finalizer = weakref.finalize(self, self._pipeline.abandon)
        self._finalizer.atexit = False

    # -- changes -----------------------------------------------------------------------------------------------------

    def add_set(self, tags: Iterable[str], key: int) -> None:
        """Stage the addition of `key` to the set `tags`.

        Raises
        ------
        TypeError, ValueError
            `tags` is not an iterable of `str`, or `key` not an integer in [0, 2**64).
        """
        self._stage_one(tags, key, removed=False)

    def remove_set(self, tags: Iterable[str], key: int) -> None:
        """Stage the removal of `key` from the set `tags`; a set without keys is no longer stored.

        Raises
        ------
        TypeError, ValueError
            As `add_set`.
        """
        self._stage_one(tags, key, removed=True)

    def add_sets(self, tags: Any, keys: Any) -> None:
        """Stage the addition of many sets, each with one key.

        Parameters
        ----------
        tags
            Arrow array of lists of strings (any list and string type, chunked or not), or a sequence of iterables of
            `str`.
        keys
            As many integers: Arrow or NumPy array, or a sequence.

        Raises
        ------
        TypeError, ValueError
            As `add_set`, naming the row, or the lengths differ. Nothing is staged then.
        """
        self._stage_many(tags, keys, removed=False)

    def remove_sets(self, tags: Any, keys: Any) -> None:
        """Stage the removal of many (set, key) pairs; arguments and errors as `add_sets`."""
        self._stage_many(tags, keys, removed=True)

    def consolidate(self) -> None:
        """Make all changes staged so far take effect; save the new snapshot if there is a path.

        Raises
        ------
        TagMatchError
            The snapshot cannot be saved. The changes stay staged and the old snapshot goes on answering.
        """
        with self._consolidating:
            base = self._current().snapshot
            with self._staging:
                changes = self._staged.take()
            try:
                snapshot = base
                if len(changes):
                    snapshot = build_snapshot(base, changes, self._layout_options, threads=self._options.threads)
                backend = self._current() if snapshot is base else backend_for(snapshot, self._options)
                if self._folder is not None:
                    save_snapshot(snapshot, self._folder)
            except BaseException:
                with self._staging:
                    self._staged.put_back(changes)
                raise
            del changes
            with self._staging:
                if self._backend is not None:
                    self._backend = backend

    # -- queries -----------------------------------------------------------------------------------------------------

    def match(self, tags: Iterable[str]) -> list[int]:
        """Keys of all stored sets contained in `tags`, in no particular order; a key once per set that carries it.

        Raises
        ------
        TypeError, ValueError
            `tags` is not an iterable of `str`.
        """
        found: list[int] = self._pipeline.match(self._current(), tag_list(tags), unique=False)
        return found

    def match_unique(self, tags: Iterable[str]) -> set[int]:
        """Keys of all stored sets contained in `tags`; errors as `match`."""
        found: set[int] = self._pipeline.match(self._current(), tag_list(tags), unique=True)
        return found

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
        pyarrow.ListArray of uint64
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
        return _list_array(join_lists(parts, np.dtype(np.uint64), self._options.threads))

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

    async def amatch(self, tags: Iterable[str], *, unique: bool = False) -> list[int] | set[int]:
        """`match`, or `match_unique` when `unique`, for asyncio; raises `Overloaded` at once instead of waiting."""
        found: list[int] | set[int] = await asyncio.wrap_future(self.submit(tags, unique=unique, block=False))
        return found

    def explain(self, tags: Iterable[str]) -> list[tuple[frozenset[str], tuple[int, ...]]]:
        """Every matching set with its keys, ascending; errors as `match`."""
        backend = self._current()
        snapshot = backend.snapshot
        vocabulary, ranks, keys = snapshot.vocabulary.tags, snapshot.tagsets.ranks, snapshot.keys.keys

        def tag(rank: int) -> str:
            return vocabulary.data[vocabulary.offsets[rank] : vocabulary.offsets[rank + 1]].tobytes().decode()

        return [
            (
                frozenset(map(tag, ranks.values[ranks.offsets[row] : ranks.offsets[row + 1]].tolist())),
                tuple(keys.values[keys.offsets[row] : keys.offsets[row + 1]].tolist()),
            )
            for row in backend.set_ids(one_row(tag_list(tags)), 0, 1).values.tolist()
        ]

    # -- the object --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Distinct stored sets, not counting staged changes."""
        return len(self._current().snapshot)

    def stats(self) -> dict[str, Any]:
        """Figures of the index and of the work done; sizes in bytes."""
        backend = self._current()
        snapshot = backend.snapshot
        return {
            "sets": len(snapshot),
            "keys": len(snapshot.keys.keys.values),
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

    def check(self) -> None:
        """Verify every invariant of the current snapshot.

        Raises
        ------
        InvariantError
            Names the table, the row and the invariant that is broken.
        """
        check_snapshot(self._current().snapshot, threads=self._options.threads)

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

        Staged changes that were not consolidated are lost. Within a callback of a future, whose thread is one of those
        to end, this returns at once and the rest is done in the background.
        """
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
        self.close()

    def __repr__(self) -> str:
        backend = self._backend
        if backend is None:
            return "<TagMatch, closed>"
        return f"<TagMatch, {len(backend.snapshot)} sets, layout {self._layout_options.layout}>"

    # -- inside ------------------------------------------------------------------------------------------------------

    def _current(self) -> Backend:
        backend = self._backend
        if backend is None:
            raise ClosedError
        return backend

    def _stage_one(self, tags: Iterable[str], key: int, *, removed: bool) -> None:
        row, value = tag_list(tags), key_value(key)
        with self._staging:
            self._current()
            self._staged.append(row, value, removed=removed)

    def _stage_many(self, tags: Any, keys: Any, *, removed: bool) -> None:
        chunks, values = tag_lists(tags, "tags", stored=True), key_values(keys)
        rows = sum(map(len, chunks))
        if rows != len(values):
            raise InvalidValueError(
                f"tags and keys must have the same length; there are {rows} sets, {len(values)} keys"
            )
        with self._staging:
            self._current()
            self._staged.extend(chunks, values, removed=removed)


_OPTIONS = frozenset(
    {"layout", "exact", "device", "threads", "max_partition_size", "batch_size", "flush_timeout", "pipeline", "cuda"}
)


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


def _no_changes() -> Changes:
    return StagedChanges().take()


def _list_array(answers: Lists) -> pa.ListArray:
    if len(answers.values) > _MAX_KEYS:
        raise ResultTooLargeError(
            f"{len(answers)} queries have {len(answers.values)} keys, more than one Arrow list array can hold "
            f"({_MAX_KEYS}); ask with fewer queries at a time"
        )
    offsets = answers.offsets.astype(np.int32, copy=False)
    return pa.Array.from_buffers(
        pa.list_(pa.uint64()),
        len(answers),
        [None, pa.py_buffer(offsets)],
        children=[pa.array(answers.values)],
    )
