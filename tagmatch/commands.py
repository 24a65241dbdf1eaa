"""The command line `tagmatch build | match | info | check`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tagmatch import __version__
from tagmatch.engine import TagMatch
from tagmatch.errors import IndexExistsError, TagMatchError
from tagmatch.files import answer_writer, read_queries, read_sets, rows_in
from tagmatch.options import MAX_THREADS
from tagmatch.storage import files_nbytes, index_exists, read_manifest

Batch = TypeVar("Batch", bound=Sized)


def command_line(description: str) -> typer.Typer:
    """A command line with subcommands, in the manner of all of ours: plain help and tracebacks, `--version`."""
    app = typer.Typer(
        help=description,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def common(
        version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None: ...

    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tagmatch {__version__}")
        raise typer.Exit


app = command_line("Exact subset matching: the keys of every stored tag set that is contained in a query set.")


class LayoutName(StrEnum):
    """The layouts, as a command line takes them."""

    rarest = "rarest"
    balanced = "balanced"


_Index = Annotated[str, typer.Argument(metavar="INDEX", help="Folder of the index.", show_default=False)]
Threads = Annotated[int | None, typer.Option(min=1, max=MAX_THREADS, help="Threads to use.  [default: all processors]")]


@app.command()
def build(
    sets: Annotated[
        str,
        typer.Argument(
            metavar="SETS",
            help="Parquet or JSON Lines file (by suffix) with columns `tags` and `key`, or a folder of Parquet files; "
            "- for JSON Lines on standard input.",
            show_default=False,
        ),
    ],
    index: _Index,
    layout: Annotated[LayoutName, typer.Option(help="How stored sets are grouped and ordered.")] = LayoutName.rarest,
    max_partition_size: Annotated[
        int, typer.Option(min=1, max=2**32 - 1, help="Most sets in a partition (layout balanced).")
    ] = 200_000,
    threads: Threads = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there already.")] = False,
) -> None:
    """Build an index from a file of sets."""
    folder = Path(index)
    if index_exists(folder) and not overwrite:
        raise IndexExistsError(f"there is an index at {index} already; give --overwrite to replace it")
    with TagMatch(layout=layout.value, max_partition_size=max_partition_size, threads=threads) as tm:
        for batch in with_progress("reading sets", read_sets(sets), rows_in(sets)):
            tm.add_sets(batch["tags"], batch["key"])
        with status("building the index"):
            tm.consolidate()
            tm.save(folder)
        stats = tm.stats()
    note(f"{index}: {stats['sets']} sets, {stats['keys']} keys, {stats['tags']} tags, layout {stats['layout']}")


@app.command()
def match(
    index: _Index,
    queries: Annotated[
        str,
        typer.Argument(
            metavar="QUERIES",
            help="Parquet or JSON Lines file (by suffix) with column `tags` and optionally `id`, or a folder of "
            "Parquet files; - for JSON Lines on standard input.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", help="Parquet or JSON Lines file (by suffix); - for JSON Lines on standard output."
        ),
    ] = "-",
    unique: Annotated[bool, typer.Option("--unique", help="Give each key of a query once.")] = False,
    exact: Annotated[
        bool, typer.Option("--exact/--no-exact", help="Verify matches, or answer by signature (layout balanced).")
    ] = True,
    threads: Threads = None,
) -> None:
    """Write, for each query, its id (or row number) and the keys of all sets that it contains."""
    with TagMatch.open(index, exact=exact, threads=threads) as tm, answer_writer(output) as writer:
        for batch in with_progress("matching", read_queries(queries), rows_in(queries)):
            writer.write(batch["id"], tm.match_many(batch["tags"], unique=unique))


@app.command()
def info(
    index: _Index,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what an index holds."""
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
    with TagMatch.open(index, threads=threads) as tm:
        with status("checking"):
            tm.check()
        typer.echo(f"{index}: ok, {len(tm)} sets")


def run(command: Callable[[], object]) -> None:
    """Run a command line: errors of tagmatch become one line on standard error and exit code 1."""
    try:
        command()
        sys.stdout.flush()
    except TagMatchError as error:
        typer.echo(f"tagmatch: {' '.join(str(error).split())}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        _give_up_output()
        sys.exit(1)
    except OSError as error:
        _give_up_output()
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"tagmatch: {where}{error.strerror or error}", err=True)
        sys.exit(1)
    except MemoryError as error:
        typer.echo(f"tagmatch: not enough memory: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("tagmatch: interrupted", err=True)
        sys.exit(130)


def _give_up_output() -> None:
    """Standard output cannot take more, as its reader has gone or its disk is full; nor may it be tried at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Entry point of the command `tagmatch`."""
    run(app)


def with_progress(what: str, batches: Iterable[Batch], total: int | None) -> Iterator[Batch]:
    """The batches, with a progress bar on standard error where that is a terminal."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=total)
        for batch in batches:
            yield batch
            progress.advance(task, len(batch))


def status(what: str, console: Console | None = None) -> contextlib.AbstractContextManager[object]:
    """Shows what is going on, on a console (default: standard error) that is a terminal."""
    console = console or Console(stderr=True)
    return console.status(what) if console.is_terminal else contextlib.nullcontext()


def note(text: str) -> None:
    """Tell a person at the terminal; keep logs of scripts quiet."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)
