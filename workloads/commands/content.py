"""The command `tagmatch-workload content`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tagmatch.cli.shared import Threads, note, with_progress
from tagmatch.files.formats import PARQUET_SUFFIXES, STANDARD_STREAM
from tagmatch.model.options import available_threads
from tagmatch.workloads.commands.numbers import with_numbers
from tagmatch.workloads.content import SCENARIOS, Content, ContentOptions
from tagmatch.workloads.content.generate import MAX_MESSAGES, SUBSCRIPTIONS_SCHEMA
from tagmatch.workloads.content.real import WHERE_SCHEMA, message_lines, subscription_lines, with_where
from tagmatch.workloads.shards import row_writer

if TYPE_CHECKING:
    pass

_FILE = "Parquet or JSON Lines file (by suffix); - for JSON Lines on standard output."


@with_numbers(SCENARIOS)
def content(
    subscriptions: Annotated[str, typer.Argument(metavar="SUBSCRIPTIONS", help=_FILE, show_default=False)],
    messages: Annotated[str, typer.Argument(metavar="MESSAGES", help=_FILE, show_default=False)],
    *,
    count: Annotated[
        int, typer.Option("--messages", min=0, max=MAX_MESSAGES, help="Messages (PCM Table 1: number of events).")
    ] = 1000,
    where: Annotated[
        bool, typer.Option("--where", help="Write a column `where`, the filter as text, to Parquet files, too.")
    ] = False,
    threads: Threads = None,
    options: ContentOptions,
) -> None:
    """Generate subscriptions with constraints on attributes, and messages with attributes.

    Subscriptions have columns `key`, `tags` (all empty) and, in Parquet, `constraints`: lists of `attr`, `op` and the
    operand, `value`, for "between" from `value` to `upper`, or `text`. In JSON Lines they have `where`, the filter as
    text, instead. Messages have a column for each attribute, null where they have it not; in JSON Lines it is left out.

    PCM: Margara, Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware" (IEEE TPDS 2014). CCM:
    the same, "High Performance Content-Based Matching Using GPUs" (DEBS 2011). Rows are the same for a seed, whatever
    the number of threads. `--scenario dense` has 20 attributes, which every message has, and 10 intervals in a filter.
    """
    if subscriptions == messages:
        raise typer.BadParameter("must be another one than SUBSCRIPTIONS", param_hint="MESSAGES")
    threads = threads or available_threads()
    made = Content(options)
    batches = made.stream_subscriptions(0, made.filters, threads=threads)
    schema = SUBSCRIPTIONS_SCHEMA
    if where and _is_parquet(subscriptions):
        batches, schema = map(with_where, batches), WHERE_SCHEMA
    with (
        row_writer(subscriptions, schema, subscription_lines) as write_subscriptions,
        row_writer(messages, made.messages_schema, message_lines) as write_messages,
    ):
        for batch in with_progress("subscriptions", batches, made.filters):
            write_subscriptions(batch)
        for batch in with_progress("messages", made.stream_messages(0, count, threads=threads), count):
            write_messages(batch)
    note(f"{subscriptions}: {made.filters} filters of {options.interfaces} interfaces; {messages}: {count} messages")


def _is_parquet(path: str) -> bool:
    return path != STANDARD_STREAM and Path(path).suffix.lower() in PARQUET_SUFFIXES
