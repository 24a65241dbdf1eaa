"""The command `tagmatch-workload location`."""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow.parquet as pq
import typer

from tagmatch.cli.shared import Threads, note, with_progress
from tagmatch.model.errors import InputFileError
from tagmatch.model.options import available_threads
from tagmatch.workloads.commands.numbers import with_numbers
from tagmatch.workloads.location import SCENARIOS, Location, LocationOptions
from tagmatch.workloads.location.generate import MAX_ROWS
from tagmatch.workloads.location.real import COLUMNS, message_lines, near_me, subscription_lines
from tagmatch.workloads.shards import row_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from tagmatch.workloads.location.generate import ContentKind

_FILE = "Parquet or JSON Lines file (by suffix); - for JSON Lines on standard output."


class _Kind(StrEnum):
    constraints = "constraints"
    tags = "tags"
    both = "both"


@with_numbers(SCENARIOS)
def location(
    subscriptions: Annotated[str, typer.Argument(metavar="SUBSCRIPTIONS", help=_FILE, show_default=False)],
    messages: Annotated[str, typer.Argument(metavar="MESSAGES", help=_FILE, show_default=False)],
    *,
    count: Annotated[
        int, typer.Option("--messages", min=0, max=MAX_ROWS, help="Messages (CLCB Table 1: number of events).")
    ] = 1000,
    moves: Annotated[
        str | None, typer.Option(metavar="MOVES", help=f"Write moves of areas, too: {_FILE}", show_default=False)
    ] = None,
    move_count: Annotated[
        int, typer.Option("--move-count", min=0, max=MAX_ROWS, help="Moves, with --moves (CLCB §5).")
    ] = 1000,
    content: Annotated[
        _Kind, typer.Option(help="What filters ask of content: constraints on attributes, tags, or both.")
    ] = _Kind.constraints,
    cities: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Alerts near the places of a Parquet file instead, with columns `country`, `timezone`, `population`, "
            "`lat` and `lon`: as many filters, and of the numbers below only the seed.",
            show_default=False,
        ),
    ] = None,
    threads: Threads = None,
    options: LocationOptions,
) -> None:
    """Generate subscriptions with an area, messages with a position, and moves of areas.

    Subscriptions have columns `key`, `tags`, in Parquet `constraints` as of the command `content`, and `area`: a
    struct of `x`, `y` and `radius`, where the square is one wide, or of `lon`, `lat` and `metres`. In JSON Lines they
    have `where`, the constraints as text, instead of these. Messages have `tags`, `location`, a struct, and a column
    for each attribute. Moves have `filter`, the row of a subscription, its `key`, and the new `location`.

    CLCB: Cugola, Margara, "High-Performance Location-Aware Publish-Subscribe on GPUs" (Middleware 2012). Rows are the
    same for a seed, whatever the number of threads.
    """
    paths = [path for path in (subscriptions, messages, moves) if path is not None]
    if len(set(paths)) < len(paths):
        raise typer.BadParameter("must be files that differ", param_hint="SUBSCRIPTIONS, MESSAGES, --moves")
    threads = threads or available_threads()
    if cities is not None:
        real = near_me(_read_places(cities), options.filters, count, options.seed, moves=move_count if moves else 0)
        parts = [(table.schema, table.to_batches(), len(table)) for table in real]
    else:
        made = Location(options)
        kind: ContentKind = content.value
        parts = [
            (
                made.subscriptions_schema,
                made.stream_subscriptions(0, made.filters, content=kind, threads=threads),
                made.filters,
            ),
            (made.messages_schema, made.stream_messages(0, count, content=kind, threads=threads), count),
            (made.moves_schema, made.moves(0, move_count if moves else 0).to_batches(), move_count),
        ]
    _write(paths, parts)
    note(f"{subscriptions}: {options.filters} filters; {messages}: {count} messages")


def _write(paths: list[str], parts: list[tuple[pa.Schema, Iterable[pa.RecordBatch], int]]) -> None:
    """Write files, all of which appear only once they are whole."""
    with ExitStack() as stack:
        writers: list[Callable[[pa.RecordBatch], object]] = [
            stack.enter_context(row_writer(path, schema, message_lines if place else subscription_lines))
            for place, (path, (schema, _, _)) in enumerate(zip(paths, parts, strict=False))
        ]
        for write, what, (_, batches, rows) in zip(
            writers, ("subscriptions", "messages", "moves"), parts, strict=False
        ):
            for batch in with_progress(what, batches, rows):
                write(batch)


def _read_places(path: str) -> Any:
    try:
        return pq.read_table(path, columns=list(COLUMNS))
    except (OSError, ValueError) as error:
        raise InputFileError(f"{path}: cannot be read as places: {error}") from None
