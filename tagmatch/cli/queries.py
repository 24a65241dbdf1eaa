"""`tagmatch match | explain`: what an index says to queries."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tagmatch.cli.arguments import (
    ColumnNames,
    IgnoreColumnsOfQueries,
    Index,
    InputFormat,
    Plane,
    SkipInvalid,
    SnapshotNumber,
    Threads,
    column_names,
    input_argument,
    user_path,
)
from tagmatch.cli.progress import in_steps, invalid_rows, is_terminal_of_messages, note_compilation
from tagmatch.files.formats import FormatName
from tagmatch.files.json_values import read_json
from tagmatch.interface import TagMatch
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.filters.where import Where


def _attributes(text: str) -> dict[str, Any]:
    """An object of JSON."""
    try:
        found = read_json(text, repr(text))
    except InvalidValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{text!r} is no object of JSON")
    return found


@dataclass(frozen=True, slots=True)
class _Location:
    place: tuple[float, float]


def _location(text: str) -> _Location:
    """Two numbers with a comma between."""
    try:
        lon, lat = map(float, text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no place: give two numbers, as in 9.19,45.46") from None
    return _Location((lon, lat))


def _columns(text: str) -> ColumnNames:
    """Names of columns that are attributes."""
    return column_names(text, ("tags", "id", "attributes"), "and is no attribute")


def match(
    index: Index,
    queries: Annotated[
        str,
        input_argument(
            "QUERIES", "columns `tags`, `attributes`, `location`, `within` and `id`, and others that are attributes"
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="Parquet or JSON Lines file (by suffix, the latter also with .gz or .zst), or a stream: - for "
            "standard output.",
            callback=user_path,
        ),
    ] = "-",
    form: InputFormat = None,
    attributes: Annotated[
        ColumnNames | None,
        typer.Option(
            parser=_columns,
            metavar="NAME,...",
            help="Columns that are an attribute each, whatever they are called.  [default: every one but `tags`, "
            "`attributes`, `location`, `within` and `id`]",
            show_default=False,
        ),
    ] = None,
    ignore_columns: IgnoreColumnsOfQueries = None,
    output_format: Annotated[
        FormatName | None,
        typer.Option(help="Format of what is written.  [default: by suffix, else jsonl]", show_default=False),
    ] = None,
    unique: Annotated[bool, typer.Option("--unique", help="Give each key of a query once.")] = False,
    snapshot: SnapshotNumber = None,
    skip_invalid: SkipInvalid = False,
    exact: Annotated[
        bool, typer.Option("--exact/--no-exact", help="Verify matches, or answer by signature (layout balanced).")
    ] = True,
    plane: Plane = False,
    threads: Threads = None,
) -> None:
    """Write, for each query, its id (or, where it has none, its row number) and the keys of all sets that it contains.

    Queries of a stream are answered as they come. A row that cannot be used ends the command, after the answers of
    those before it.
    """
    from tagmatch.files.answers import answer_writer
    from tagmatch.files.inputs import read_queries, rows_in
    from tagmatch.files.others import EVERY_OTHER

    _refuse_same_file(queries, output)
    note_compilation()
    with (
        invalid_rows(skip=skip_invalid) as invalid,
        TagMatch.open(index, snapshot=snapshot, exact=exact, plane=plane, threads=threads) as tm,
        answer_writer(output, tm.match_many([]).type, output_format) as writer,
    ):
        own = attributes.names if attributes else EVERY_OTHER
        ignored = ignore_columns.names if ignore_columns else ()
        batches = read_queries(queries, form, invalid, own, ignored, plane=plane)
        shown = sys.stderr.isatty() and not is_terminal_of_messages(output)
        for batch in in_steps("matching", batches, rows_in(queries, form) if shown else None, shown=shown):
            # What says where messages are comes in tables
            queries_of_batch = batch.drop_columns(["row", "id"]) if batch.num_columns > 3 else batch["tags"]
            writer.write(batch["row"], batch["id"], tm.match_many(queries_of_batch, unique=unique))


def _refuse_same_file(queries: str, output: str) -> None:
    """See that answers do not take the place of their queries."""
    with contextlib.suppress(OSError):
        if os.path.isfile(output) and os.path.samefile(queries, output):
            from tagmatch.model.errors import TagMatchError

            raise TagMatchError(f"{output}: the queries are in this file; give another one for the answers")


def explain(
    index: Index,
    tags: Annotated[
        list[str],
        typer.Argument(metavar="TAG", help="Tags of one query; -- before those that begin with -.", show_default=False),
    ],
    attributes: Annotated[
        dict[str, Any] | None,
        typer.Option(
            parser=_attributes,
            metavar="JSON",
            help="""Attributes of the query, as an object: '{"price": 9.5, "city": ["Rome", "Milan"]}'.""",
            show_default=False,
        ),
    ] = None,
    location: Annotated[
        _Location | None,
        typer.Option(
            parser=_location,
            metavar="LON,LAT",
            help="Where the query is, as two numbers: 9.19,45.46.  [default: nowhere]",
            show_default=False,
        ),
    ] = None,
    plane: Plane = False,
    snapshot: SnapshotNumber = None,
) -> None:
    """Write each stored set that one query contains, with its keys, as a line of JSON."""
    note_compilation()
    with TagMatch.open(index, snapshot=snapshot, device="cpu", plane=plane) as tm:
        for stored, keys in tm.explain(tags, attributes, location=None if location is None else location.place):
            conditions = sorted(str(tag) for tag in stored if isinstance(tag, Where))
            record: dict[str, Any] = {"tags": sorted(tag for tag in stored if not isinstance(tag, Where)), "keys": keys}
            if conditions:
                record["where"] = " and ".join(conditions)
            typer.echo(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
