"""What users call besides `TagMatch`: safety copies, an index of a service, and kernels that are compiled ahead.

It imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tagmatch.embedded import TagMatch
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.options import Layout, StagingOptions

if TYPE_CHECKING:
    from tagmatch.broker.client import RemoteTagMatch
    from tagmatch.model.storage.copies import Copied
    from tagmatch.partitioner.upgrading import Upgraded


def backup(
    path: str | os.PathLike[str], target: str | os.PathLike[str], *, keep_snapshots: int | None = None
) -> Copied:
    """Copy the index at `path`, with the changes that are staged in its log, to `target`; and where clients are.

    Programs may change the index: the copy has its contents at one moment, with all changes of calls that have
    returned before this one began, except with `durability="none"`, which are in memory only. The copy is
    an index, in which these changes are staged, with the positions of clients that were last saved. When this returns,
    it survives a crash of the machine; until then, `target` has what it had before, wholly. Files that an earlier
    backup there has are not copied again: in a folder, their checksums are verified; on a store, their sizes.

    Parameters
    ----------
    path, target : str or Path
        Folders, or URIs on a store, as for `TagMatch.open`. At `target` there is nothing, or an earlier backup. Stores
        have no locks: let one program at a time write to an index there.
    keep_snapshots : int, optional
        How many earlier backups stay at `target` from now on, to be opened or restored by their numbers: the sets
        stored then, but not the changes staged then. Default: as many as until now, at first none.

    Returns
    -------
    Copied
        `number`, `sets` and `staged` of the copy; `new_bytes` that were copied, `old_bytes` that were there already.

    Raises
    ------
    IndexNotFoundError, IndexCorruptError, IndexVersionError
        There is no index at `path`, it is damaged, or a newer version wrote it.
    IndexExistsError
        At `target` is something else than a backup, or one that was changed.
    IndexLockedError
        A program has changes staged at `target`.
    InvalidTypeError, InvalidValueError
        An argument cannot be used.
    TagMatchError
        A file cannot be read or written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from tagmatch import TagMatch
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with TagMatch(folder / "animals.index") as tm:
    ...     tm.add_set(["cat"], 7)
    ...     tm.consolidate()
    ...     tm.add_set(["dog"], 8)
    ...     copied = backup(folder / "animals.index", folder / "animals.backup")
    1
    ChangeCounts(added=1, already_there=0, removed=0, missing=0)
    1
    >>> copied.sets, copied.staged
    (1, 1)
    >>> restored = restore(folder / "animals.backup", folder / "restored.index")
    >>> with TagMatch.open(folder / "restored.index") as tm:
    ...     tm.consolidate()
    ...     sorted(tm.match(["cat", "dog"]))
    ChangeCounts(added=1, already_there=0, removed=0, missing=0)
    [7, 8]
    """
    from tagmatch.model.storage import copies
    from tagmatch.model.storage.repository import location_of

    keep = StagingOptions(keep_snapshots=keep_snapshots).keep_snapshots
    return copies.backup(location_of(path, "path"), location_of(target, "target"), keep)


def restore(
    backup: str | os.PathLike[str], path: str | os.PathLike[str], *, snapshot: int | None = None, replace: bool = False
) -> Copied:
    """Make the index at `path` from its copy `backup`, with the changes that were staged, and positions.

    First, all files of a backup in a folder are read, and must have the checksums that they were written with; those on
    a store, as they are copied. Then `path` has the copy, in one step, as its next snapshot. Programs that have the
    index open go on with what they have; `TagMatch.reload` takes the copy over.

    Parameters
    ----------
    backup, path : str or Path
        Folders, or URIs on a store, as for `TagMatch.open`. `backup` may be any index, also the one at `path`.
    snapshot : int, optional
        Number of the snapshot to restore, of those that `TagMatch.snapshots` lists, without staged changes
        and positions of clients.
        Default: the current one.
    replace : bool
        Take the place of an index at `path`, with its staged changes; also of a damaged one.

    Returns
    -------
    Copied
        The same as for `backup`.

    Raises
    ------
    IndexNotFoundError, IndexCorruptError, IndexVersionError
        There is no index at `backup`, it is damaged, or a newer version wrote it.
    IndexExistsError
        At `path` is an index, and `replace` is not given, or something else.
    IndexLockedError
        A program has changes staged for the index at `path`.
    InvalidTypeError, InvalidValueError
        An argument cannot be used.
    TagMatchError
        A file cannot be read or written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from tagmatch import TagMatch
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with TagMatch(folder / "animals.index") as tm:
    ...     tm.add_set(["cat"], 7)
    ...     tm.consolidate()
    ...     copied = backup(folder / "animals.index", folder / "animals.backup")
    ...     tm.remove_set(["cat"], 7)  # a mistake
    ...     tm.consolidate()
    1
    ChangeCounts(added=1, already_there=0, removed=0, missing=0)
    1
    ChangeCounts(added=0, already_there=0, removed=1, missing=0)
    >>> restored = restore(folder / "animals.backup", folder / "animals.index", replace=True)
    >>> with TagMatch.open(folder / "animals.index") as tm:
    ...     tm.match(["cat"])
    [7]
    """
    from tagmatch.model.storage import copies
    from tagmatch.model.storage.repository import location_of

    return copies.restore(location_of(backup, "backup", snapshot), location_of(path, "path"), replace=replace)


def upgrade(path: str | os.PathLike[str], *, plane: bool = False) -> Upgraded:
    """Give the conditions of an index that an older version wrote the form of today, by which changes find them.

    Older versions stored `a = 1 or a = 2` as two sets of a key, which today is one, `a in {1, 2}`. A key that was put
    with a text gets what `put` with this text stores today, and keeps its record: so it gets all digits of decimals
    that were shortened. Of other keys, conditions that were added one by one to the same tags become one, too, if there
    is a shorter form for all of them: messages get the same keys, though `match` gives a key once when it gave it for
    each of these sets. All else that records need, indexes of each format have. Changes that are staged take effect
    first. Then there is one change, whole or not at all; after an interruption, call this again. An index that needs
    nothing stays as it is.

    Parameters
    ----------
    path : str or Path
        Folder of the index, as for `TagMatch`.
    plane : bool
        Its areas are on the plane, as for `TagMatch`.

    Returns
    -------
    Upgraded
        `number` of its snapshot, `sets_before` and `sets`, and how many keys were `rewritten`.

    Raises
    ------
    IndexNotFoundError, IndexCorruptError, IndexVersionError
        There is no index at `path`, it is damaged, or a newer version wrote it.
    IndexLockedError
        A program has changes staged for the index.
    InvalidTypeError, InvalidValueError
        The path cannot be used; that of an index on a store is such.
    TagMatchError
        A file cannot be read or written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from tagmatch import TagMatch
    >>> folder = pathlib.Path(tempfile.mkdtemp(), "animals.index")
    >>> with TagMatch(folder) as tm:
    ...     for city in ("Nice", "Rome"):  # as an older version stored one condition
    ...         tm.add_set(["cat"], 7, where=f'city = "{city}"')
    ...     tm.consolidate()
    1
    1
    ChangeCounts(added=2, already_there=0, removed=0, missing=0)
    >>> done = upgrade(folder)
    >>> done.sets_before, done.sets, done.rewritten
    (2, 1, 1)
    """
    with TagMatch.open(path, device="cpu", plane=plane) as tm:
        return tm._engine.upgrade()


def connect(
    url: str | Sequence[str],
    *,
    token: str | None = None,
    tls_root_certs: bytes | None = None,
    cert_chain: bytes | None = None,
    private_key: bytes | None = None,
    timeout: float | None = None,
    wait: float = 0.0,
) -> RemoteTagMatch[Any]:
    """An index that a service (`tagmatch serve`) has, with the methods of `TagMatch`, over Arrow Flight.

    Parameters
    ----------
    url : str, or sequence of str
        `grpc+tls://host:port`, or `grpc://host:port` without encryption. Of several services that answer from the same
        index, the first that answers is asked until it is gone, then the next. Calls that only ask are repeated there;
        `submit`, `amatch` and changes raise `UnavailableError` as with one service. Sessions (`publish`, `subscriber`)
        and positions of clients, which each service keeps for itself, need a single address.
    token : str, optional
        What the service knows the user by.
    tls_root_certs : bytes, optional
        Certificates, as PEM, of those that the certificate of the service may be signed by. Default: those of the
        machine.
    cert_chain, private_key : bytes, optional
        The certificate of the client, as PEM, and its key, where the service asks for them.
    timeout : float, optional
        Seconds that a call may take, except for those that match. Default: as long as it takes.
    wait : float
        Seconds to wait at most for a service that does not answer yet.

    Returns
    -------
    RemoteTagMatch
        The index; close it, or use it in a `with`.

    Raises
    ------
    AccessError
        The service does not know the token.
    UnavailableError
        Nothing answers at `url`, or at any of them.
    InvalidTypeError, InvalidValueError
        An argument cannot be used.

    Examples
    --------
    >>> from tagmatch import TagMatch
    >>> from tagmatch.broker.service import serving
    >>> index = TagMatch()
    >>> with index, serving(index) as service, connect(service.url) as tm:
    ...     tm.add_set(["cat", "fr"], 7)
    ...     tm.consolidate()
    ...     tm.match(["cat", "dog", "fr"])
    1
    ChangeCounts(added=1, already_there=0, removed=0, missing=0)
    [7]
    """
    from tagmatch.broker.client import RemoteTagMatch
    from tagmatch.broker.connection import Connection
    from tagmatch.broker.failover import Services

    given = [url] if isinstance(url, str) or not isinstance(url, Sequence) else url
    if not given:
        raise InvalidValueError("url is empty; give the address of a service, or of several")
    found = [Connection(each, token, tls_root_certs, cert_chain, private_key, timeout) for each in given]
    return RemoteTagMatch(found[0] if len(found) == 1 else Services(found), wait)


# More tags than a small table of tags has room for, so that it grows
_SETS = [["a", "b"], ["a"], [], *([f"tag{number}", "a"] for number in range(3_000))]
_QUERIES = [["a", "b"], *([f"tag{number}", "a", "b"] for number in range(3_000))]
# Keys are kept in 32 bits if all fit
_LAST_KEYS = (3, 2**64 - 1)
_KEYS_A_SET = (1, 2)
_ALIKE = 1_000


def warm_up(export: str | os.PathLike[str] | None = None) -> None:
    """Compile all kernels that the layouts need on the CPU, and keep them for the processes that come.

    That takes about two minutes on two cores, once. Where all kernels are there already, it takes some seconds.

    Parameters
    ----------
    export
        a folder for kernels that other computers take as well, which is made if need be: those with an x86-64 processor
        of the level v3 (since about 2013), the same versions of Python, Numba and NumPy, and this folder, or a copy of
        it, as `XDG_CACHE_HOME`. So an image of a container that has the folder answers its first query at once,
        wherever it runs. Default: for this computer alone, in the user's own cache.

    Raises
    ------
    OSError
        if `export` cannot be written, or kernels for other computers cannot be made on a machine of this kind
    RuntimeError
        if the process that exports fails

    Examples
    --------
    >>> import tagmatch
    >>> tagmatch.warm_up()
    """
    if export is not None:
        from tagmatch.model.kernels.kept import portable_environment

        environment = {**os.environ, **portable_environment(os.path.abspath(export))}
        os.makedirs(export, exist_ok=True)
        done = subprocess.run([sys.executable, "-m", "tagmatch", "warmup"], env=environment)
        if done.returncode:
            raise RuntimeError(f"kernels were not exported to {os.fspath(export)!r}: see above")
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        another_process(f"from tagmatch import calls; calls._go_all_ways({folder + '/other'!r}, -1)"),
    ):
        _go_all_ways(f"{folder}/this", 1)


@contextlib.contextmanager
def another_process(program: str) -> Iterator[None]:
    """If there is a kernel to compile, have another process run a program that begins at the other end.

    A process compiles one kernel at a time. Each has the other's, and waits for those that the other compiles.
    """
    from tagmatch.model.kernels.kept import on_first_compilation

    program = f"import sys; sys.path[:] = {sys.path}; {program}"
    nothing = subprocess.DEVNULL  # an error there is one here, too
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        started.append(subprocess.Popen([sys.executable, "-c", program], stdin=nothing, stdout=nothing, stderr=nothing))

    forget = on_first_compilation(start)
    try:
        yield
    finally:
        forget()
        for other in started:
            other.terminate()
            other.wait()


def _go_all_ways(folder: str, step: int) -> None:
    """Do everything, from the first on or, with step -1, from the last on."""
    from tagmatch.model.kernels.interpreted import compiling_at_once
    from tagmatch.model.layouts import LAYOUTS

    answers = [(name, exact) for name, rules in LAYOUTS.items() for exact in {True, rules.compares_tags}]
    ways: list[Callable[[Path], None]] = [
        *(partial(_go_through, *way) for way in itertools.product(answers, _LAST_KEYS, _KEYS_A_SET)),
        *(partial(_use_constraints, last_key) for last_key in _LAST_KEYS),
        _use_names,
        *(partial(_use_areas, plane) for plane in (False, True)),
    ]
    with compiling_at_once():
        for number, way in enumerate(ways[::step]):
            way(Path(folder, str(number)))


def _use_constraints(last_key: int, path: Path) -> None:
    """Match sets with constraints of each kind, which are logged and saved, and messages with values of each type."""
    import pyarrow as pa

    from tagmatch.model.input.values import packed

    attributes = {"price": 9.5, "name": "IBM", "new": True}
    with TagMatch(path, device="cpu", threads=2, data={"size": "int64"}) as tm:
        tm.add_set(["en"], last_key, where='price < 10 and name contains "IB" and not tags {"old"}')
        tm.consolidate()
        # As long as all sets are such that one kernel matches one message
        tm.match(["en"], attributes)
        tm.explain(["en"], attributes)
        tm.add_set(["en"], 1, where='at least 2 of {price < 10, tags {"new"}, price < now(), not name matches "x"}')
        cheap = {"attr": "price", "op": "<", "value": 10}
        tm.add_subscriptions(pa.table({"key": [2, 3], "constraints": [[cheap], None], "area": [None, {"metres": 5}]}))
        # As many that ask for what messages have anyway are kept in another way
        for low in range(_ALIKE):
            tm.add_set(["en"], 1, where=f"price between {low} and {low + _ALIKE}")
        tm.consolidate()
        tm.put(5, ["en"], data={"size": 1})
        tm.consolidate()
        tm.match_best([["en"]], limit=1, order_by="size")
        tm.match_best(pa.table({"tags": [["en"]], "attributes": [packed(attributes)]}), limit=1, score="size * price")
        tm.match_counts([["en"]], count_by="size")
        tm.match(["en"], attributes)
        _use(tm, _forms_of([["en"]]))
        tm.match_many(pa.Table.from_pylist([{"tags": ["en"], **attributes}]))
        tm.match(["en", "\0"], attributes)  # in a packet, as a tag with a zero byte is
        for given in (pa.array([[("price", 9.5)]], pa.map_(pa.string(), pa.float64())), [packed(attributes)]):
            tm.match_many(pa.table({"tags": [["en"]], "attributes": given}))


def _use_names(path: Path) -> None:
    """Match keys that are strings, on disk and in memory."""
    for place in (path, None):
        with TagMatch(place, key_type="string", device="cpu", threads=2) as tm:
            tm.add_sets([["en"], ["fr"], ["en"]], ["ana", "bo", "bo"])
            tm.consolidate()
            tm.match_many([["en", "fr"]], unique=True)


def _use_areas(plane: bool, path: Path) -> None:
    """Match sets with areas of each kind, messages with locations, and clients that move."""
    import pyarrow as pa

    from tagmatch.model.where.areas import Box, Circle, Near

    box = {"west": 1.0, "south": 1.0, "east": 3.0, "north": 3.0}
    place = dict.fromkeys(("x", "y") if plane else ("lon", "lat"), 2.0)
    places = [
        {"tags": ["en"], "location": place},
        {"tags": ["en"], "within": box},
        {"tags": [], "location": place, "within": box},
    ]
    with TagMatch(path, device="cpu", threads=2, plane=plane) as tm:
        for last_key in _LAST_KEYS:
            for number in range(_ALIKE):
                tm.add_set(["en"], number, area=Circle(number % 90, 2, 5))
            tm.add_set([], 1, area=Box(1, 1, 3, 3), where="not within circle(7, 7, 1)")
            tm.add_set(["en"], last_key, where="not within box(7, 7, 8, 8)")
            tm.add_sets([["en"]] * _ALIKE, range(_ALIKE), area=Near(5))
            tm.add_set(["en"], last_key, area=Near(7), where="not within circle(7, 7, 1) and price < 10")
            tm.add_set(["en"], 2, area="polygon((1 1, 3 1, 2 3, 1 1))")
            tm.add_set(["en"], 3, where="not within 5 m of linestring(7 7, 7 8)")
            tm.consolidate()
            tm.move(range(_ALIKE), 2, 2)
            tm.match_many(pa.Table.from_pylist(places))
            tm.match_unique(["en"], {"price": 5}, location=(2, 2))
            tm.match(["en"], location=(2, 2), within=Circle(2, 2, 5))
            tm.explain(["en"], location=(2, 2), within=Circle(2, 2, 5))
            tm.explain(["en"], within=Box(1, 1, 3, 3))
            tm.move([1, last_key], [1, 2], [2, 1])
            tm.remove_set(["en"], 1, area=Circle(1, 2, 5))
            tm.remove_set(["en"], last_key, area=Near(7), where="not within circle(7, 7, 1) and price < 10")


def _go_through(answers: tuple[Layout, bool], last_key: int, keys_a_set: int, path: Path) -> None:
    """Make, use, open and change an index, and merge its segments; a layout answers exactly, or as the paper has it."""
    import numpy as np

    from tagmatch.partitioner.consolidation import FEW_SETS

    layout, exact = answers
    options: dict[str, Any] = {"exact": exact, "device": "cpu", "threads": 2}
    sets, queries, keys = _forms_of(_SETS), _forms_of(_QUERIES), np.ones(len(_SETS), np.uint64)
    with TagMatch(path, layout=layout, max_partition_size=1_000, **options) as tm:
        for rows in sets:
            for key in range(keys_a_set):
                tm.add_sets(rows, keys + np.uint64(key))
            tm.add_sets([["last"]], [last_key])
            tm.consolidate()
        _use(tm, queries)
    with TagMatch.open(path, **options) as tm:  # mapped files are read-only, which is its own type
        _use(tm, queries)
        tm.add_set(["another"], last_key)
        tm.remove_sets(sets[1], keys)
        tm.consolidate()
        # As many as stay in their own segment, some of them changed
        tm.add_sets([[f"tag {number}"] for number in range(FEW_SETS + 1)], [last_key] * (FEW_SETS + 1))
        tm.consolidate()
        tm.add_sets([["tag 1"], ["tag 2"], ["a new tag"]], [1, last_key, last_key])
        tm.consolidate()
        _use(tm, queries)
        tm.consolidate(full=True)
    for other in get_args(Layout):
        TagMatch.open(path, layout=other, **options).close()


def _forms_of(rows: list[list[str]]) -> list[Any]:
    """Rows of tags as lists, and in Arrow's types."""
    import pyarrow as pa

    encoded = pa.dictionary(pa.int32(), pa.string())
    kinds = (pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(encoded), pa.large_list(encoded))
    return [rows, *(pa.array(rows, kind) for kind in kinds)]


def _use(tm: TagMatch, queries: list[Any]) -> None:
    """Do all that is done with an index."""
    tm.check()
    for many, unique in itertools.product(queries, (False, True)):
        tm.match_many(many, unique=unique)
    tm.match_many(_QUERIES[:1])  # few are matched by another kernel
    tm.match(["a", "b"])
    tm.match_unique(["a", "b"])
    tm.match([tag for query in _QUERIES for tag in query])
    for future in [tm.submit(query, unique=number % 2 == 0) for number, query in enumerate(_QUERIES)]:
        future.result()
    tm.explain(["a", "b"])
