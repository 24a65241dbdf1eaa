"""`tagmatch export | info | check`: what an index holds."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tagmatch.cli.arguments import Index, Plane, SnapshotNumber, Threads, user_path
from tagmatch.cli.progress import is_terminal_of_messages, status, with_progress
from tagmatch.files.formats import STANDARD_STREAM, FormatName
from tagmatch.interface import TagMatch

_SHOWN = (
    "number", "layout", "sets", "keys", "key_type", "tags", "partitions", "max_partition_size", "seed", "index_bytes",
)  # fmt: skip


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
    snapshot: SnapshotNumber = None,
) -> None:
    """Write all stored sets and keys, as rows `tags`, `key`, `where` and `expires`, which `build` takes."""
    from tagmatch.contents import pairs, schema_of
    from tagmatch.files.sets import set_writer
    from tagmatch.model.clock import now_us
    from tagmatch.model.storage.location import location_of
    from tagmatch.partitioner.consolidation import without_expired

    if output is not None and output_option is not None:
        raise typer.BadParameter("stands for OUTPUT; give one of them", param_hint="--output")
    target = next((path for path in (output, output_option) if path is not None), STANDARD_STREAM)
    exported = location_of(index, "INDEX", snapshot).open()
    exported = without_expired(exported, exported.segments[0].options, now=now_us())
    batches = pairs(exported)
    if not is_terminal_of_messages(target):
        batches = with_progress("exporting", batches, sum(segment.live_keys for segment in exported.segments))
    with set_writer(target, schema_of(exported), form) as write:
        for batch in batches:
            write(batch)


def info(
    index: Index,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    plane: Plane = False,
    snapshot: SnapshotNumber = None,
) -> None:
    """Show what an index holds, which segments it has, and which snapshots can be opened by their numbers."""
    from rich.console import Console
    from rich.table import Table

    from tagmatch.model.storage.format import files_nbytes
    from tagmatch.model.storage.location import location_of

    with TagMatch.open(index, snapshot=snapshot, plane=plane) as tm:
        stats, segments = tm.stats(), tm.snapshot.segments
    shown: dict[str, Any] = {name: stats[name] for name in _SHOWN}
    shown["file_bytes"] = files_nbytes(location_of(index, "INDEX", snapshot).manifest())
    lists: dict[str, list[dict[str, Any]]] = {
        "segments": [{"rows": len(each), "live": each.live, "deleted": len(each) - each.live} for each in segments],
        "snapshots": [
            {"number": each.number, "sets": each.sets, "until": each.until and each.until.isoformat()}
            for each in TagMatch.snapshots(index)
        ],
    }
    if as_json:
        typer.echo(json.dumps(shown | lists))
        return
    table = Table(show_header=False, box=None)
    for name, value in shown.items():
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    for each in lists["segments"]:
        table.add_row("segment", "{rows:,} rows, {live:,} live, {deleted:,} deleted".format(**each))
    for each in lists["snapshots"]:
        until = f"until {each['until']}" if each["until"] else "the current one"
        table.add_row(f"snapshot {each['number']}", f"{each['sets']:,} sets, {until}")
    Console().print(table)


def check(index: Index, plane: Plane = False, threads: Threads = None, snapshot: SnapshotNumber = None) -> None:
    """Verify the checksums and every invariant of an index, and the checksums of earlier snapshots that it keeps."""
    from tagmatch.model.storage.location import location_of

    with TagMatch.open(index, snapshot=snapshot, plane=plane, threads=threads) as tm:
        with status("checking"):
            tm.check()
            location_of(index, "INDEX").check_kept()
        typer.echo(f"{tm.stats()['path']}: ok, {len(tm)} sets")
