"""`tagmatch build | add | remove`: from files of sets to what an index holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagmatch.cli.arguments import INPUT_HELP, Index, InputFormat, LayoutName, SkipInvalid, Threads, user_path
from tagmatch.cli.progress import note, note_compilation, say_skipped, status, with_progress
from tagmatch.errors import IndexChangedError, IndexExistsError, IndexNotFoundError
from tagmatch.files.invalid import InvalidRows

if TYPE_CHECKING:
    from tagmatch.engine import TagMatch

_Sets = Annotated[
    str,
    typer.Argument(
        metavar="SETS",
        help=INPUT_HELP.format(columns="columns `tags` and `key`"),
        show_default=False,
        callback=user_path,
    ),
]


def build(
    sets: _Sets,
    index: Index,
    layout: Annotated[LayoutName, typer.Option(help="How stored sets are grouped and ordered.")] = LayoutName.rarest,
    max_partition_size: Annotated[
        int, typer.Option(min=1, max=2**32 - 1, help="Most sets in a partition (layout balanced).")
    ] = 200_000,
    form: InputFormat = None,
    skip_invalid: SkipInvalid = False,
    threads: Threads = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there already.")] = False,
) -> None:
    """Build an index from a file of sets."""
    from tagmatch.engine import TagMatch
    from tagmatch.storage import index_exists

    folder = Path(index)
    if index_exists(folder) and not overwrite:
        raise IndexExistsError(f"there is an index at {index} already; give --overwrite to replace it")
    note_compilation()
    invalid = InvalidRows(skip=skip_invalid)
    with TagMatch(layout=layout.value, max_partition_size=max_partition_size, device="cpu", threads=threads) as tm:
        _stage(tm.add_sets, sets, form, invalid)
        with status("building the index"):
            tm.consolidate()
            tm.save(folder)
        stats = tm.stats()
    say_skipped(invalid)
    note(f"{index}: {_size(stats)}, {stats['tags']} tags, layout {stats['layout']}")


def add(
    index: Index, sets: _Sets, form: InputFormat = None, skip_invalid: SkipInvalid = False, threads: Threads = None
) -> None:
    """Add sets, each with a key, to an index; what it has already stays as it is."""
    _change(index, lambda tm: tm.add_sets, sets, form, InvalidRows(skip=skip_invalid), threads)


def remove(
    index: Index, sets: _Sets, form: InputFormat = None, skip_invalid: SkipInvalid = False, threads: Threads = None
) -> None:
    """Remove keys of sets from an index; a set without keys goes, and what the index does not have is no error."""
    _change(index, lambda tm: tm.remove_sets, sets, form, InvalidRows(skip=skip_invalid), threads)


def _change(
    index: str,
    staging: Callable[[TagMatch], Callable[[Any, Any], None]],
    sets: str,
    form: str | None,
    invalid: InvalidRows,
    threads: int | None,
) -> None:
    """Make one change of all rows, and say what the index has before and after it."""
    from tagmatch.engine import TagMatch

    note_compilation()
    try:
        tm = TagMatch.open(index, device="cpu", threads=threads)
    except IndexNotFoundError as error:
        raise IndexNotFoundError(f"{error}; `tagmatch build` makes a new index") from None
    with tm:
        before = _size(tm.stats())
        _stage(staging(tm), sets, form, invalid)
        with status("changing the index"):
            try:
                tm.consolidate()
            except IndexChangedError:
                raise IndexChangedError(
                    f"another program has saved changes to the index {index} in the meantime, so that nothing was "
                    "changed; run the command again"
                ) from None
        after = _size(tm.stats())
    say_skipped(invalid)
    typer.echo(f"{index}: {after}; before: {before}")


def _stage(take: Callable[[Any, Any], None], sets: str, form: str | None, invalid: InvalidRows) -> None:
    from tagmatch.files.inputs import read_sets, rows_in

    for batch in with_progress("reading sets", read_sets(sets, form, invalid), rows_in(sets, form)):
        take(batch["tags"], batch["key"])


def _size(stats: dict[str, Any]) -> str:
    return f"{stats['sets']} sets, {stats['keys']} keys"
