"""The command line `tagmatch build | match | info | check | warmup`.

Commands import what they need when they run, so that help comes at once.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tagmatch.cli.arguments import LayoutName, Threads, command_line
from tagmatch.cli.progress import in_steps, is_terminal_of_messages, note, note_compilation, status, with_progress
from tagmatch.errors import IndexExistsError, InvalidValueError
from tagmatch.files.formats import FormatName
from tagmatch.files.invalid import InvalidRows

app = command_line("Exact subset matching: the keys of every stored tag set that is contained in a query set.")


def _path(text: str) -> str:
    """A path as a person writes it."""
    return os.path.expanduser(text)


def _index_path(text: str) -> str:
    if not text:
        raise InvalidValueError("the name of the index is empty; give the path of a folder")
    return _path(text)


_Index = Annotated[
    str,
    typer.Argument(metavar="INDEX", help="Folder of the index.", show_default=False, callback=_index_path),
]
_INPUT_HELP = (
    "Parquet, JSON Lines or CSV file (by suffix, the latter two also with .gz or .zst) with {columns}, a folder of "
    "such files, or a stream: - for standard input, or a pipe, of JSON Lines."
)
_Format = Annotated[
    FormatName | None,
    typer.Option("--format", help="Format of what is read.  [default: by suffix, else jsonl]", show_default=False),
]
_SkipInvalid = Annotated[
    bool,
    typer.Option("--skip-invalid", help="Leave out rows that cannot be used, and say in the end how many there were."),
]


@app.command()
def build(
    sets: Annotated[
        str,
        typer.Argument(
            metavar="SETS",
            help=_INPUT_HELP.format(columns="columns `tags` and `key`"),
            show_default=False,
            callback=_path,
        ),
    ],
    index: _Index,
    layout: Annotated[LayoutName, typer.Option(help="How stored sets are grouped and ordered.")] = LayoutName.rarest,
    max_partition_size: Annotated[
        int, typer.Option(min=1, max=2**32 - 1, help="Most sets in a partition (layout balanced).")
    ] = 200_000,
    form: _Format = None,
    skip_invalid: _SkipInvalid = False,
    threads: Threads = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there already.")] = False,
) -> None:
    """Build an index from a file of sets."""
    from tagmatch.engine import TagMatch
    from tagmatch.files.inputs import read_sets, rows_in
    from tagmatch.storage import index_exists

    folder = Path(index)
    if index_exists(folder) and not overwrite:
        raise IndexExistsError(f"there is an index at {index} already; give --overwrite to replace it")
    note_compilation()
    invalid = InvalidRows(skip=skip_invalid)
    with TagMatch(layout=layout.value, max_partition_size=max_partition_size, threads=threads) as tm:
        for batch in with_progress("reading sets", read_sets(sets, form, invalid), rows_in(sets, form)):
            tm.add_sets(batch["tags"], batch["key"])
        with status("building the index"):
            tm.consolidate()
            tm.save(folder)
        stats = tm.stats()
    _say_skipped(invalid)
    note(f"{index}: {stats['sets']} sets, {stats['keys']} keys, {stats['tags']} tags, layout {stats['layout']}")


@app.command()
def match(
    index: _Index,
    queries: Annotated[
        str,
        typer.Argument(
            metavar="QUERIES",
            help=_INPUT_HELP.format(columns="column `tags` and optionally `id`"),
            show_default=False,
            callback=_path,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="Parquet or JSON Lines file (by suffix, the latter also with .gz or .zst), or a stream: - for "
            "standard output.",
            callback=_path,
        ),
    ] = "-",
    form: _Format = None,
    output_format: Annotated[
        FormatName | None,
        typer.Option(help="Format of what is written.  [default: by suffix, else jsonl]", show_default=False),
    ] = None,
    unique: Annotated[bool, typer.Option("--unique", help="Give each key of a query once.")] = False,
    skip_invalid: _SkipInvalid = False,
    exact: Annotated[
        bool, typer.Option("--exact/--no-exact", help="Verify matches, or answer by signature (layout balanced).")
    ] = True,
    threads: Threads = None,
) -> None:
    """Write, for each query, its id (or, where it has none, its row number) and the keys of all sets that it contains.

    Queries of a stream are answered as they come. A row that cannot be used ends the command, after the answers of
    those before it.
    """
    from tagmatch.engine import TagMatch
    from tagmatch.files.answers import answer_writer
    from tagmatch.files.inputs import read_queries, rows_in

    note_compilation()
    invalid = InvalidRows(skip=skip_invalid)
    with TagMatch.open(index, exact=exact, threads=threads) as tm, answer_writer(output, output_format) as writer:
        batches = read_queries(queries, form, invalid)
        shown = sys.stderr.isatty() and not is_terminal_of_messages(output)
        for batch in in_steps("matching", batches, rows_in(queries, form) if shown else None, shown=shown):
            writer.write(batch["row"], batch["id"], tm.match_many(batch["tags"], unique=unique))
    _say_skipped(invalid)


def _say_skipped(invalid: InvalidRows) -> None:
    if invalid.count:
        rows = "row" if invalid.count == 1 else "rows"
        typer.echo(f"tagmatch: skipped {invalid.count} invalid {rows}; the first: {invalid.first}", err=True)


@app.command()
def info(
    index: _Index,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what an index holds."""
    from rich.console import Console
    from rich.table import Table

    from tagmatch.engine import TagMatch
    from tagmatch.storage import files_nbytes, read_manifest

    with TagMatch.open(index) as tm:
        stats = tm.stats()
    shown: dict[str, Any] = {
        name: stats[name]
        for name in ("layout", "sets", "keys", "tags", "partitions", "max_partition_size", "seed", "index_bytes")
    }
    shown["file_bytes"] = files_nbytes(read_manifest(Path(index)))
    if as_json:
        typer.echo(json.dumps(shown))
        return
    table = Table(show_header=False, box=None)
    for name, value in shown.items():
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    Console().print(table)


@app.command()
def check(index: _Index, threads: Threads = None) -> None:
    """Verify the checksums and every invariant of an index."""
    from tagmatch.engine import TagMatch

    with TagMatch.open(index, threads=threads) as tm:
        with status("checking"):
            tm.check()
        typer.echo(f"{index}: ok, {len(tm)} sets")


@app.command()
def warmup() -> None:
    """Compile all kernels now, not when they are first used: for images of containers."""
    from tagmatch.warmup import warm_up

    with status("compiling kernels, once, about a minute"):
        warm_up()
