"""`TagMatch`: an index that the program has itself (Table 2 of the paper).

Arrow, NumPy and Numba are imported with the engine, when the first index is made or opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from tagmatch.index import Index, K
from tagmatch.model.options import (
    LAYOUT_DEFAULTS,
    MATCH_DEFAULTS,
    STAGING_DEFAULTS,
    CudaOptions,
    LayoutOptions,
    MatchOptions,
    PipelineOptions,
    StagingOptions,
    available_threads,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from typing import Any, Literal, Unpack

    from tagmatch.engine import LocalEngine
    from tagmatch.model.options import (
        Channel,
        Device,
        Durability,
        KeyIndex,
        KeyType,
        Layout,
        NewOptions,
        OpenOptions,
        Order,
    )
    from tagmatch.model.storage.format import SnapshotInfo


class TagMatch(Index[K]):
    """A database of tag sets with keys, and the keys of all sets that are contained in a query.

    Changes are *staged* by `add_set`, `remove_set` and their bulk forms, and take effect, in order, when
    `consolidate` is called (Table 2 of the paper). With a path they are logged in its folder: what a program that ended
    had staged, is still staged when the index is opened again. One program at a time has changes staged. A set holds
    each of its keys once. All methods may be called from many threads; matching during a consolidation answers from the
    snapshot before it, wholly.

    A key of a set may expire (`expires` of `add_set`): within about a second of that time, nothing gives it any more.
    The system's clock says what time it is. What has expired goes from memory at once, and from the disk with the next
    `consolidate`; if the clock is set back, it may come back when the index is opened again before that.

    Parameters
    ----------
    path : str or Path, optional
        Folder of the index, as a path, which may begin with `~`, or as a URI `file:///…`. If one is there it is loaded;
        `consolidate` saves to it. Without a path the sets are kept in memory only. An index on a store cannot be
        changed: `open` reads it.
    key_type : {"integer", "string"}, optional
        Whether keys are integers in [0, 2**64) or strings, such as names and UUIDs. Default: as they are in the index
        at `path`, integers without one. It cannot be changed later.
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
        `batch_size` wait for the same partition; `None`: no limit.
    auto_reload : float or None
        Seconds between looks, by a thread in the background, whether another program has saved a newer snapshot, which
        `reload` then takes over; `None`: never. Queries never wait for that. What cannot be read is tried again, and
        `stats()["reload_error"]` says why. It goes on in forked children.
    plane : bool
        Areas of sets (`area` of `add_set`) are on the plane, where `lon` and `lat` are any x and y, and `metres` are of
        the same unit; else they are on the sphere. It is not saved: give it each time the index is opened.
    pipeline : PipelineOptions, optional
        How queries that are asked one by one go through the stages, and how many at once.
    cuda : CudaOptions, optional
        Which CUDA devices, and how.
    durability : {"fsync", "os", "none"}, optional
        What staged changes of an index in a folder outlast when their call returns: the end of the machine, the end of
        the program, or neither. Default: `fsync` for `add_sets` and `remove_sets`, `os` for single changes.
    keep_snapshots : int, optional
        How many earlier snapshots stay in the index with the current one, from the next `consolidate` on that saves
        one; `open` opens them by number. Default: as many as the index at `path` says, none without one.
    data : pyarrow.Schema or mapping, optional
        Columns of data that keys may have besides their sets (`put`): names and types, written as `string`,
        `bool`, `int64` and other integers, `float64`, `date`, `timestamp`, which is in UTC, `timestamp[ms]`,
        `decimal(10, 2)` or `dictionary`, of strings that are often the same. An index has the columns that keys have
        values in; more can be named each time it is opened.
    attributes : pyarrow.Schema or mapping, optional
        Types of attributes by name, written as those of `data`, or `version` or `ip`, as in
        `{"price": "decimal(10, 2)", "posted": "timestamp"}`. Texts of conditions and of messages become values of these
        types, so that `posted >= "2026-11-28"` asks for times; numbers are of any size. The index keeps them from the
        first change on that is staged; more can be declared each time it is opened.
    analyzers : mapping, optional
        How texts of declared attributes are analysed, of subscriptions and messages alike, by name: as in
        `{"title": casefold(nfc(words()))}`, or the same as text. The index keeps them, too.
    strict : bool, optional
        Whether an attribute that is not declared, or a value that is not of its type, is an error, in a subscription or
        in a message. Default: as the index at `path` says, `False` for a new one.
    keys : {"indexed", "unindexed"}
        With `unindexed`, for an index that is only to match, `put`, `get`, `delete`, `records` and `explain` of a key
        are refused: they need a directory of keys, which takes 8 bytes of memory for each key of a set, or 12 if keys
        are wider than 32 bits, from the first such question on.
    channels : iterable of Channel
        Classes of messages, which `submit`, `amatch` and `match_many` name: each has its deadline. Without any, there
        are no deadlines.
    order : {"fifo", "edf", "dfgs"}
        In which order threads take messages of all channels. `fifo`: as they came; deadlines are only measured. `edf`:
        the earliest deadline first; what could not be in time is refused as it comes, or dropped. `dfgs`: as "Pub/Sub
        on Stream" (DEBS 2012) has it, each thread with its own queue; what fits into none is deserted. Messages
        without a channel are in none of these.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        For an option or a path that cannot be used; the URI of a store is such a path.
    DeviceError
        The device asked for is not there.
    IndexExistsError, IndexCorruptError, IndexVersionError
        For the index at `path`.

    Examples
    --------
    >>> with TagMatch(threads=2) as tm:
    ...     tm.add_set(["cat", "fr"], 7)
    ...     tm.add_sets([["cat"], ["dog", "fr"]], [8, 9])
    ...     tm.consolidate()
    ...     sorted(tm.match(["cat", "fr", "new"])), tm
    1
    2
    ChangeCounts(added=3, already_there=0, removed=0, missing=0)
    ([7, 8], ...3 sets...)
    """

    _engine: LocalEngine

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
        layout: Layout = LAYOUT_DEFAULTS.layout,
        exact: bool = MATCH_DEFAULTS.exact,
        device: Device = MATCH_DEFAULTS.device,
        threads: int | None = None,
        max_partition_size: int = LAYOUT_DEFAULTS.max_partition_size,
        batch_size: int = MATCH_DEFAULTS.batch_size,
        flush_timeout: float | None = MATCH_DEFAULTS.flush_timeout,
        auto_reload: float | None = MATCH_DEFAULTS.auto_reload,
        plane: bool = MATCH_DEFAULTS.plane,
        pipeline: PipelineOptions | None = None,
        cuda: CudaOptions | None = None,
        durability: Durability | None = None,
        keep_snapshots: int | None = None,
        data: Any = None,
        attributes: Any = None,
        analyzers: Mapping[str, Any] | None = None,
        strict: bool | None = None,
        keys: KeyIndex = STAGING_DEFAULTS.keys,
        channels: Iterable[Channel] = MATCH_DEFAULTS.channels,
        order: Order = MATCH_DEFAULTS.order,
    ) -> None:
        from tagmatch.engine import LocalEngine

        options = _match_options(
            threads, pipeline, cuda, exact=exact, device=device, batch_size=batch_size, flush_timeout=flush_timeout,
            auto_reload=auto_reload, plane=plane, channels=channels, order=order,
        )  # fmt: skip
        chosen = LayoutOptions(layout, max_partition_size)
        layout_options = {"layout": chosen.layout, "max_partition_size": chosen.max_partition_size}
        staging = StagingOptions(durability, keep_snapshots, data, attributes, analyzers, strict, keys)
        self._engine = LocalEngine.at(path, key_type, layout_options, staging, options)

    @overload
    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        key_type: Literal["integer"] | None = None,
        snapshot: int | None = None,
        **options: Unpack[OpenOptions],
    ) -> TagMatch[int]: ...

    @overload
    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        key_type: Literal["string"],
        snapshot: int | None = None,
        **options: Unpack[OpenOptions],
    ) -> TagMatch[str]: ...

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        key_type: KeyType | None = None,
        snapshot: int | None = None,
        layout: Layout | None = None,
        exact: bool = MATCH_DEFAULTS.exact,
        device: Device = MATCH_DEFAULTS.device,
        threads: int | None = None,
        max_partition_size: int | None = None,
        batch_size: int = MATCH_DEFAULTS.batch_size,
        flush_timeout: float | None = MATCH_DEFAULTS.flush_timeout,
        auto_reload: float | None = MATCH_DEFAULTS.auto_reload,
        plane: bool = MATCH_DEFAULTS.plane,
        pipeline: PipelineOptions | None = None,
        cuda: CudaOptions | None = None,
        durability: Durability | None = None,
        keep_snapshots: int | None = None,
        data: Any = None,
        attributes: Any = None,
        analyzers: Mapping[str, Any] | None = None,
        strict: bool | None = None,
        keys: KeyIndex = STAGING_DEFAULTS.keys,
        channels: Iterable[Channel] = MATCH_DEFAULTS.channels,
        order: Order = MATCH_DEFAULTS.order,
    ) -> Any:
        """An existing index, in its own layout.

        An index on a store is read-only: it is copied to a temporary folder of this process (`TMPDIR` says where),
        `reload` takes over a newer snapshot, and changes are refused at once.

        Parameters
        ----------
        path : str or Path
            Folder of the index, as for `TagMatch`, or the URI of one on a store, such as `s3://bucket/animals.index`:
            any URI that `pyarrow.fs.FileSystem.from_uri` takes. Messages and `stats` show it without passwords.
        key_type
            The type of its keys; default: that of the index. Type checkers take them for integers, unless this says so.
        snapshot : int, optional
            Number of the snapshot to open, of those that `snapshots` lists; it is read-only and never changes.
            Default: the current one.
        layout, max_partition_size
            Default: the index's own. Others lay the sets out anew in memory; the next `consolidate` saves them so.
        exact, device, threads, batch_size, flush_timeout, auto_reload, plane
            The same as for `TagMatch`.
        pipeline, cuda, durability, keep_snapshots, data, attributes, analyzers, strict, keys, channels, order
            The same as for `TagMatch`.

        Returns
        -------
        TagMatch
            The index; close it, or use it in a `with`.

        Raises
        ------
        IndexNotFoundError, IndexCorruptError, IndexVersionError
            There is no index at `path`, it does not keep this snapshot, it is damaged, or a newer version wrote it.
        InvalidTypeError, InvalidValueError
            Its keys are not of the type `key_type`; or another option, or the path, cannot be used.
        TagMatchError
            It cannot be read, the store does not answer, or there is no room for a copy.

        Examples
        --------
        A `file:` URI is the folder itself; the URIs of stores are given the same way:

        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp(), "animals.index")
        >>> with TagMatch(folder) as tm:
        ...     tm.add_set(["cat"], 7)
        ...     tm.consolidate()
        1
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> with TagMatch.open(folder.as_uri()) as tm:
        ...     tm.match(["cat", "dog"])
        [7]
        """
        from tagmatch.engine import LocalEngine

        options = _match_options(
            threads, pipeline, cuda, exact=exact, device=device, batch_size=batch_size, flush_timeout=flush_timeout,
            auto_reload=auto_reload, plane=plane, channels=channels, order=order,
        )  # fmt: skip
        opened = cls.__new__(cls)
        given = {"layout": layout, "max_partition_size": max_partition_size}
        chosen = {name: value for name, value in given.items() if value is not None}
        staging = StagingOptions(durability, keep_snapshots, data, attributes, analyzers, strict, keys)
        opened._engine = LocalEngine.at(path, key_type, chosen, staging, options, number=snapshot, must_exist=True)
        return opened

    @staticmethod
    def snapshots(path: str | os.PathLike[str]) -> list[SnapshotInfo]:
        """The snapshots of the index at `path` that `open` opens by number: those that are kept, and the current one.

        Each `consolidate` that changes the index, and each `save` over the index, makes the snapshot with the next
        number; to merge segments keeps it.

        Returns
        -------
        list
            In order, each with `number`, `sets` (how many are stored) and `until`: when a newer one took its place, a
            `datetime` in UTC, or `None` of the current one.

        Raises
        ------
        IndexNotFoundError, IndexCorruptError, IndexVersionError
            There is no index at `path`, its manifest is damaged, or a newer version wrote it.
        InvalidTypeError, InvalidValueError
            The path cannot be used.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp(), "animals.index")
        >>> with TagMatch(folder, keep_snapshots=1) as tm:
        ...     for number, animal in enumerate(["cat", "dog", "cow"]):
        ...         tm.add_set([animal], number)
        ...         tm.consolidate()
        1
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        1
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        1
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> [(each.number, each.sets) for each in TagMatch.snapshots(folder)]
        [(2, 2), (3, 3)]
        >>> with TagMatch.open(folder, snapshot=2) as tm:
        ...     tm.match(["cow", "dog"])
        [1]
        """
        from tagmatch.model.storage.format import snapshots_in
        from tagmatch.model.storage.repository import location_of

        return snapshots_in(location_of(path, "path").manifest())


def _match_options(
    threads: int | None, pipeline: PipelineOptions | None, cuda: CudaOptions | None, **given: Any
) -> MatchOptions:
    """Options, with the defaults of those that are not given."""
    return MatchOptions(
        threads=available_threads() if threads is None else threads,
        pipeline=MATCH_DEFAULTS.pipeline if pipeline is None else pipeline,
        cuda=MATCH_DEFAULTS.cuda if cuda is None else cuda,
        **given,
    )
