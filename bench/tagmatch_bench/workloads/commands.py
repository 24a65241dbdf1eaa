"""The commands `content` and `location`, which `tagmatch-workload` has where this package is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import typer

from tagmatch.cli.shared import Threads, argument, note, option, with_options, with_progress
from tagmatch.files.rows import row_writer
from tagmatch.model.errors import InputFileError, InvalidValueError
from tagmatch.model.options import available_threads
from tagmatch.workloads.archives import read_columns
from tagmatch.workloads.commands import app, is_text, of_numbers
from tagmatch.workloads.numbers import MAX_ROWS
from tagmatch_bench.workloads import content as of_content
from tagmatch_bench.workloads import location as of_location
from tagmatch_bench.workloads.content import Content, ContentOptions
from tagmatch_bench.workloads.location import PLACES, ContentKind, LocationOptions, LocationWorkload, near_me

_FILE = "Parquet or JSON Lines file (by suffix); - for JSON Lines on standard output."
# Values made at once
_PART_CELLS = 1 << 22


@app.command()
@with_options(options=of_numbers(of_content.SCENARIOS))
def content(
    subscriptions: Annotated[str, argument("SUBSCRIPTIONS", _FILE)],
    messages: Annotated[str, argument("MESSAGES", _FILE)],
    *,
    count: Annotated[
        int, option("Messages (PCM Table 1: number of events).", "--messages", min=0, max=MAX_ROWS)
    ] = 1000,
    where: Annotated[
        bool, option("Write a column `where`, the filter as text, to Parquet files, too.", "--where")
    ] = False,
    threads: Threads = None,
    options: ContentOptions,
) -> None:
    """Generate subscriptions with constraints on attributes, and messages with attributes.

    Subscriptions have columns `key`, `tags` (all empty) and, in Parquet, `constraints`: lists of `attr`, `op` and the
    operand, `value`, for "between" from `value` to `upper`, or `text`. In JSON Lines they have `where`, the filter as
    text, instead. Messages have a column for each attribute, null if they lack it; in JSON Lines it is left out.

    PCM: Margara, Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware" (IEEE TPDS 2014). CCM:
    the same, "High Performance Content-Based Matching Using GPUs" (DEBS 2011). A seed gives the same rows for
    any number of threads. `--scenario dense` has 20 attributes, which every message has, and 10 intervals in a filter.
    """
    if subscriptions == messages:
        raise typer.BadParameter("must be another one than SUBSCRIPTIONS", param_hint="MESSAGES")
    made = Content(options)
    threads = threads or available_threads()
    stored = _parts(partial(made.subscriptions, threads=threads), made.filters, options.max_constraints)
    sent = _parts(partial(made.messages, threads=threads), count, options.names)
    schema = of_content.SUBSCRIPTIONS_SCHEMA
    if where and not is_text(subscriptions):
        stored, schema = map(of_content.with_where, stored), schema.append(of_content.WHERE)
    _write(_Rows(subscriptions, schema, stored, made.filters), _Rows(messages, made.messages_schema, sent, count))
    note(f"{subscriptions}: {made.filters} filters of {options.interfaces} interfaces; {messages}: {count} messages")


@app.command()
@with_options(options=of_numbers(of_location.SCENARIOS))
def location(
    subscriptions: Annotated[str, argument("SUBSCRIPTIONS", _FILE)],
    messages: Annotated[str, argument("MESSAGES", _FILE)],
    *,
    count: Annotated[
        int, option("Messages (CLCB Table 1: number of events).", "--messages", min=0, max=MAX_ROWS)
    ] = 1000,
    moves: Annotated[str | None, option(f"Write moves of areas, too: {_FILE}", metavar="MOVES")] = None,
    move_count: Annotated[int, option("Moves, with --moves (CLCB §5).", "--move-count", min=0, max=MAX_ROWS)] = 1000,
    content: Annotated[
        ContentKind, option("What filters ask of content: constraints on attributes, tags, or both.")
    ] = "constraints",
    cities: Annotated[
        str | None,
        option(
            "Alerts near the places of a Parquet, CSV or JSON Lines file instead, with columns `country`, `timezone`, "
            "`population`, `lat` and `lon`: as many filters, and of the numbers below only the seed.",
            metavar="FILE",
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

    CLCB: Cugola, Margara, "High-Performance Location-Aware Publish-Subscribe on GPUs" (Middleware 2012). A seed gives
    the same rows for any number of threads.
    """
    paths = [path for path in (subscriptions, messages, moves) if path is not None]
    if len(set(paths)) < len(paths):
        raise typer.BadParameter("must be files that differ", param_hint="SUBSCRIPTIONS, MESSAGES, --moves")
    moved = move_count if moves else 0
    if cities is not None:
        try:
            places = pa.Table.from_batches(read_columns(cities, PLACES.names, *([name] for name in PLACES.names)))
            tables = near_me(places, options.filters, count, options.seed, moves=moved)
        except InvalidValueError as error:
            raise InputFileError(f"{cities}: {error}") from None
        parts = [
            _Rows(path, table.schema, table.to_batches(), len(table))
            for path, table in zip(paths, tables, strict=False)
        ]
    else:
        made = LocationWorkload(options)
        how: Any = {"content": content, "threads": threads or available_threads()}
        stored = _parts(partial(made.subscriptions, **how), made.filters, options.max_constraints)
        sent = _parts(partial(made.messages, **how), count, options.names)
        parts = [
            _Rows(subscriptions, made.subscriptions_schema, stored, made.filters),
            _Rows(messages, made.messages_schema, sent, count),
        ]
        if moves:
            parts.append(_Rows(moves, made.moves_schema, made.moves(0, moved).to_batches(), moved))
    _write(*parts)
    note(f"{subscriptions}: {options.filters} filters; {messages}: {count} messages")


class _Rows(NamedTuple):
    """Rows to be written."""

    path: str
    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    total: int


def _parts(make: Callable[[int, int], pa.Table], count: int, width: int) -> Iterator[pa.RecordBatch]:
    """Make rows, each with at most `width` values, some at once."""
    step = max(1, _PART_CELLS // width)
    for first in range(0, count, step):
        yield from make(first, min(first + step, count)).to_batches()


def _write(*files: _Rows) -> None:
    """Write files, which appear only once all are whole."""
    as_text = [is_text(file.path) and "constraints" in file.schema.names for file in files]
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(row_writer(file.path, file.schema, with_nulls=False)) for file in files]
        for file, texts, write in zip(files, as_text, writers, strict=True):
            batches = map(of_content.with_texts, file.batches) if texts else file.batches
            for batch in with_progress("generating", batches, file.total):
                write(batch)
