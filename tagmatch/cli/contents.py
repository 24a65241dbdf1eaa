"""`tagmatch export | info | check`: what an index holds."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tagmatch.cli.arguments import Index, Threads, user_path
from tagmatch.cli.progress import is_terminal_of_messages, status, with_progress
from tagmatch.files.formats import STANDARD_STREAM, FormatName
from tagmatch.interface import TagMatch

_SHOWN = ("layout", "sets", "keys", "key_type", "tags", "partitions", "max_partition_size", "seed", "index_bytes")


def _optional_path(text: str | None) -> str | None:
    return None if text is None else user_path(text)


def export(
    index: Index,
    output: Annotated[
        str | None,
        typer.Argument(
            metavar="OUTPUT",
            help="Parquet, JSON Lines or CSV file (by suffix, the latter two also with .gz or .zst), or a stream: - "
            "for standard output.  [default: -]",
            show_default=False,
            callback=_optional_path,
        ),
    ] = None,
    output_option: Annotated[
        str | None,
        typer.Option("--output", "-o", help="The same as OUTPUT.", show_default=False, callback=_optional_path),
    ] = None,
    form: Annotated[
        FormatName | None,
        typer.Option(
            "--format", help="Format of what is written.  [default: by suffix, else jsonl]", show_default=False
        ),
    ] = None,
) -> None:
    """Write all stored sets and keys, as rows `tags`, `key`, and `expires` if some do; `build` makes the same index."""
    from tagmatch.contents import pairs, schema_of
    from tagmatch.files.sets import set_writer
    from tagmatch.model.clock import now_us
    from tagmatch.model.storage.location import location_of
    from tagmatch.partitioner.consolidation import without_expired

    if output is not None and output_option is not None:
        raise typer.BadParameter("stands for OUTPUT; give one of them", param_hint="--output")
    target = next((path for path in (output, output_option) if path is not None), STANDARD_STREAM)
    snapshot = location_of(index, "INDEX").open()
    snapshot = without_expired(snapshot, snapshot.segments[0].options, now=now_us())
    batches = pairs(snapshot)
    if not is_terminal_of_messages(target):
        batches = with_progress("exporting", batches, sum(segment.live_keys for segment in snapshot.segments))
    with set_writer(target, schema_of(snapshot), form) as write:
        for batch in batches:
            write(batch)


def info(
    index: Index,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what an index holds."""
    from rich.console import Console
    from rich.table import Table

    from tagmatch.model.storage.format import files_nbytes
    from tagmatch.model.storage.location import location_of

    with TagMatch.open(index) as tm:
        stats = tm.stats()
    shown: dict[str, Any] = {name: stats[name] for name in _SHOWN}
    shown["file_bytes"] = files_nbytes(location_of(index, "INDEX").manifest())
    if as_json:
        typer.echo(json.dumps(shown))
        return
    table = Table(show_header=False, box=None)
    for name, value in shown.items():
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    Console().print(table)


def check(index: Index, threads: Threads = None) -> None:
    """Verify the checksums and every invariant of an index."""
    with TagMatch.open(index, threads=threads) as tm:
        with status("checking"):
            tm.check()
        typer.echo(f"{tm.stats()['path']}: ok, {len(tm)} sets")
