"""`tagmatch build | add | remove`: from files of sets to what an index holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagmatch.cli.arguments import (
    ColumnNames,
    Expires,
    IgnoreColumns,
    IndexToChange,
    InputFormat,
    KeepSnapshots,
    KeyTypeName,
    LayoutName,
    MatchAll,
    MaxPartitionSize,
    MissingName,
    Plane,
    SkipInvalid,
    Threads,
    input_argument,
)
from tagmatch.cli.progress import invalid_rows, note, note_compilation, other_columns, status, with_progress
from tagmatch.interface import TagMatch
from tagmatch.model.errors import IndexChangedError, IndexExistsError, IndexNotFoundError, InputFileError
from tagmatch.model.options import LAYOUT_DEFAULTS

if TYPE_CHECKING:
    import pyarrow as pa

_Sets = Annotated[str, input_argument("SETS", "columns `key` and `tags`, or `where`, `constraints` or `area`, or all")]


def build(
    sets: _Sets,
    index: IndexToChange,
    key_type: KeyTypeName = "integer",
    layout: LayoutName = LAYOUT_DEFAULTS.layout,
    max_partition_size: MaxPartitionSize = LAYOUT_DEFAULTS.max_partition_size,
    expires: Expires = None,
    form: InputFormat = None,
    skip_invalid: SkipInvalid = False,
    ignore_columns: IgnoreColumns = None,
    match_all: MatchAll = False,
    plane: Plane = False,
    threads: Threads = None,
    keep_snapshots: KeepSnapshots = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there already.")] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Make an index also where there is no row that can be used.")
    ] = False,
) -> None:
    """Build an index from a file of sets."""
    from tagmatch.model.storage.location import location_of

    if location_of(index, "INDEX").has_index() and not overwrite:
        raise IndexExistsError(f"there is an index at {index} already; give --overwrite to replace it")
    note_compilation()
    options: Any = {"key_type": key_type, "layout": layout, "max_partition_size": max_partition_size}
    with TagMatch(device="cpu", threads=threads, plane=plane, **options) as tm:
        _add(tm, expires, _rows(tm, sets, form, skip_invalid, ignore_columns, match_all, expires=True))
        if not (tm.stats()["staged"] or allow_empty):
            # Most likely what was to write it has failed, and an index that is there would be lost
            raise InputFileError(f"{sets} has no set, so no index is made; --allow-empty makes an empty one")
        with status("building the index"):
            changes = tm.consolidate()
            tm.save(index, keep_snapshots=keep_snapshots)
        stats = tm.stats()
    note(f"{index}: {_size(stats)}, {stats['tags']} tags, layout {stats['layout']}; {changes}")


def add(
    index: IndexToChange,
    sets: _Sets,
    expires: Expires = None,
    form: InputFormat = None,
    skip_invalid: SkipInvalid = False,
    ignore_columns: IgnoreColumns = None,
    match_all: MatchAll = False,
    plane: Plane = False,
    threads: Threads = None,
) -> None:
    """Add sets, each with a key, to an index; what it has already stays as it is."""

    def stage(tm: TagMatch[Any]) -> None:
        _add(tm, expires, _rows(tm, sets, form, skip_invalid, ignore_columns, match_all, expires=True))

    _change(index, stage, plane=plane, threads=threads)


def remove(
    index: IndexToChange,
    sets: _Sets,
    form: InputFormat = None,
    skip_invalid: SkipInvalid = False,
    ignore_columns: IgnoreColumns = None,
    match_all: MatchAll = False,
    plane: Plane = False,
    threads: Threads = None,
    missing: MissingName = "ignore",
) -> None:
    """Remove keys of sets from an index; a set without keys goes, and what the index does not have is counted."""

    def stage(tm: TagMatch[Any]) -> None:
        for rows in _rows(tm, sets, form, skip_invalid, ignore_columns, match_all):
            tm.remove_subscriptions(_with_values(rows), missing=missing)

    _change(index, stage, plane=plane, threads=threads)


def _change(index: str, stage: Callable[[TagMatch[Any]], None], *, plane: bool, threads: int | None) -> None:
    """Make one change of all that is staged, and say what the index has before and after it."""
    note_compilation()
    try:
        tm = TagMatch.open(index, device="cpu", threads=threads, plane=plane, durability="none")
    except IndexNotFoundError as error:
        raise IndexNotFoundError(f"{error}; `tagmatch build` makes a new index") from None
    with tm:
        before = _size(tm.stats())
        stage(tm)
        with status("changing the index"):
            try:
                changes = tm.consolidate()
            except IndexChangedError:
                raise IndexChangedError(
                    f"another program has saved changes to the index {index} in the meantime, so that nothing was "
                    "changed; run the command again"
                ) from None
        after = _size(tm.stats())
    typer.echo(f"{index}: {after}; before: {before}; {changes}")


def _add(tm: TagMatch[Any], expires: datetime | None, batches: Iterator[pa.RecordBatch]) -> None:
    """Stage additions, of which those without a time of their own get this one."""
    import pyarrow as pa

    from tagmatch.model.expiry import TIME

    for rows in batches:
        if expires is not None and "expires" in rows.schema.names:
            rows = rows.set_column(rows.schema.names.index("expires"), "expires", rows["expires"].fill_null(expires))
        elif expires is not None:
            rows = rows.append_column("expires", pa.repeat(pa.scalar(expires, TIME), len(rows)))
        tm.add_subscriptions(_with_values(rows))


def _with_values(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without optional columns that have no value in any of them."""
    return rows.select(
        [name for name in rows.schema.names if name in ("tags", "key") or rows[name].null_count < len(rows)]
    )


def _rows(
    tm: TagMatch[Any],
    sets: str,
    form: str | None,
    skip_invalid: bool,
    ignored: ColumnNames | None,
    match_all: bool,
    *,
    expires: bool = False,
) -> Iterator[pa.RecordBatch]:
    from tagmatch.files.inputs import read_sets, rows_in

    stats = tm.stats()
    options: Any = {"where": True, "expires": expires, "plane": stats["plane"], "match_all": match_all}
    with invalid_rows(skip=skip_invalid) as invalid, other_columns(ignored.names if ignored else ()) as others:
        batches = read_sets(sets, form, invalid, stats["key_type"], others=others, **options)
        yield from with_progress("reading sets", batches, rows_in(sets, form))


def _size(stats: dict[str, Any]) -> str:
    return f"{stats['sets']} sets, {stats['keys']} keys"
