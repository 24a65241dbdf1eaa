"""The command lines `tagmatch` and `tagmatch-partition`.

Commands import what they need when they run, so that help comes at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagmatch import calls
from tagmatch.cli import shared as cli
from tagmatch.embedded import TagMatch
from tagmatch.files.formats import STANDARD_STREAM, FormatName, Kind, format_of_suffix, is_stream
from tagmatch.model.errors import (
    IndexChangedError,
    IndexExistsError,
    IndexNotFoundError,
    InputFileError,
    InvalidValueError,
    NotStoredError,
    TagMatchError,
)
from tagmatch.model.names import counted
from tagmatch.model.options import LAYOUT_DEFAULTS, MAX_PARTITION_SIZE, Layout, Order, Source
from tagmatch.model.where.constraints import Where

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.importing import Documents
    from tagmatch.model.storage.copies import Copied


def serve(
    index: Annotated[
        str | None,
        cli.location_argument(
            "INDEX", "Folder of the index, or its URI on a store.  [default: `path` in [index] of the configuration]"
        ),
    ] = None,
    config: Annotated[
        str | None, cli.option("The configuration, in TOML.", metavar="FILE", callback=cli.user_path)
    ] = None,
    host: Annotated[str | None, cli.option("Address to listen on.", default="127.0.0.1")] = None,
    port: Annotated[int | None, cli.option("Port; 0: any that is free.", default="8815", min=0, max=65_535)] = None,
    channel: Annotated[
        list[str] | None,
        cli.option(
            "A class of messages, which clients name: they are answered within DEADLINE, such as 250us, 5ms, 2s "
            "or 1min, from when they come. Without it they are never late, and go behind all others. Where "
            "deadlines are equal, the higher PRIORITY goes first; it is 0 if not given. Give the option once for "
            "each channel: --channel alarm:5ms:1 --channel bulk:2s. One takes the place of the [[channel]] of "
            "its name in the configuration, which also has latency_budget and expiry.",
            metavar="NAME[:DEADLINE[:PRIORITY]]",
        ),
    ] = None,
    order: Annotated[
        Order | None,
        cli.option(
            "In which order messages of channels are matched. fifo: as they come; deadlines are only measured. "
            "edf: the earliest deadline first; what cannot be in time is refused or dropped, and its client gets "
            'an error. dfgs: as "Pub/Sub on Stream" (DEBS 2012) has it.',
            default="fifo",
        ),
    ] = None,
    follow: Annotated[
        bool,
        cli.option(
            "Only answer, from what another service saves there: newer snapshots are taken over within a second. The "
            "service is ready as soon as there is one.",
            "--follow",
        ),
    ] = False,
    check: Annotated[
        bool, cli.option("Only check the configuration, and whether the index can be opened.", "--check")
    ] = False,
) -> None:
    """Serve an index over Arrow Flight, until SIGTERM or Ctrl-C; requests under way then are still answered."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # failures are said in one line, or logged
    needed = {"grpc": "grpcio", "prometheus_client": "prometheus-client"}  # of the extra `serve`
    if missing := " and ".join(package for module, package in needed.items() if find_spec(module) is None):
        raise TagMatchError(f"the service needs {missing}; install it with: pip install 'tagmatch[serve]'")
    from tagmatch.broker.config import Config
    from tagmatch.broker.config_file import check_files, read_config
    from tagmatch.broker.service import notes_on, run, with_arguments
    from tagmatch.model.options import channel_of

    channels = [channel_of(text) for text in channel or ()]
    given = Config() if config is None else read_config(config)
    found = with_arguments(given, index, host, port, channels, order, follow=follow)
    found.check_exposure()
    check_files(found, config)
    if check:
        name, notes = config or "the configuration", notes_on(found)
        typer.echo(f"{name}: ok")
        for each in notes:
            typer.echo(f"{name}: {each}", err=True)
        return
    run(found, lambda line: typer.echo(f"tagmatch: {line}"))


def token(
    name: Annotated[str, typer.Argument(help="Name of the user.", show_default=False)] = "someone",
    role: Annotated[str, cli.option("What the user may do: read, write or admin.")] = "read",
    output: Annotated[
        Path | None,
        cli.option("Write the token to this new file, which only you can read, and do not print it.", "--output", "-o"),
    ] = None,
) -> None:
    """Make a token for a user, and print what the configuration of the service needs to know of it."""
    from tagmatch.broker.config import ROLES
    from tagmatch.broker.config_file import new_token

    if role not in ROLES:
        raise typer.BadParameter(f"{role!r} is not one of {', '.join(ROLES)}", param_hint="--role")
    if '"' in name or "\\" in name or not name.isprintable():
        raise typer.BadParameter("it must be a plain name", param_hint="NAME")
    made, digest = new_token()
    if output is None:
        typer.echo(f"# the token, for the client only: {made}")
    else:
        new = 0 if is_stream(str(output)) else os.O_CREAT | os.O_EXCL
        try:
            with open(os.open(output, os.O_WRONLY | new, 0o600), "w") as file:
                file.write(f"{made}\n")
        except FileExistsError:
            raise TagMatchError(
                f"{output} is there already, most likely with a token in use; give another name, or remove it first"
            ) from None
    typer.echo(f'[[users]]\nname = "{name}"\ntoken_sha256 = "{digest}"\nrole = "{role}"')


_Target = Annotated[
    str, cli.location_argument("TARGET", "Folder for the copy, or URI on a store; new, empty, or an earlier backup.")
]
_Backup = Annotated[
    str, cli.location_argument("BACKUP", "Folder of the backup (or of any index), or its URI on a store.")
]


def backup(index: cli.Index, target: _Target, keep_snapshots: cli.KeepSnapshots = None) -> None:
    """Copy an index, with the changes that are staged, to a folder or a store; programs may change it during that.

    Files that an earlier backup there has are not copied again. The copy is an index, too.
    """
    with cli.status("copying"):
        copied = calls.backup(index, target, keep_snapshots=keep_snapshots)
    _tell(target, copied)


def restore(
    backup: _Backup,
    index: cli.Index,
    snapshot: cli.SnapshotNumber = None,
    replace: Annotated[bool, cli.option("Replace an existing index and its staged changes.", "--replace")] = False,
) -> None:
    """Make an index of a backup: all of it, with the checksums that it was written with, or nothing."""
    try:
        with cli.status("copying"):
            copied = calls.restore(backup, index, snapshot=snapshot, replace=replace)
    except IndexExistsError as error:
        raise IndexExistsError(str(error).replace("`replace`", "--replace")) from None
    _tell(index, copied)


def upgrade(index: cli.IndexToChange, plane: cli.Plane = False) -> None:
    """Give the conditions of an index of an older version the form of today, by which changes find them.

    `a = 1 or a = 2`, and two such conditions that were added one by one to the same tags of a key, become
    `a in {1, 2}`. A key that was put with a text is stored as its text says today. Changes that are staged take effect
    first; the rest is one change.
    """
    with cli.status("looking at conditions"):
        done = calls.upgrade(index, plane=plane)
    conditions = f"the conditions of {counted(done.rewritten, 'key')} are stored in another form"
    typer.echo(
        f"{index}: snapshot {done.number}, {counted(done.sets, 'set')}; before: {counted(done.sets_before, 'set')}; "
        f"{conditions if done.rewritten else 'no condition needs a change'}"
    )


def _tell(address: str, copied: Copied) -> None:
    staged = f", {counted(copied.staged, 'staged change')}" if copied.staged else ""
    typer.echo(
        f"{cli.located(address)}: snapshot {copied.number}, {counted(copied.sets, 'set')}{staged}; "
        f"{counted(copied.new_bytes, 'byte')} copied, {copied.old_bytes} there already"
    )


_Sets = Annotated[
    str, cli.input_argument("SETS", "columns `key` and `tags`, or `where`, `constraints` or `area`, or all")
]


#: The most documents that have a line each on a terminal if they are refused
_REFUSED = 100


@dataclass(frozen=True, slots=True)
class _Reading:
    """How sets are read of files for an index, as options say."""

    form: cli.InputFormat = None
    skip_invalid: cli.SkipInvalid = False
    ignore_columns: cli.IgnoreColumns = None
    match_all: cli.MatchAll = False
    plane: cli.Plane = False
    threads: cli.Threads = None

    def rows(
        self,
        tm: TagMatch[Any],
        sets: str,
        expires: datetime | None = None,
        *,
        to_add: bool = True,
        has_data: bool = False,
        row_of: Callable[[dict[str, Any], str], dict[str, Any]] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows, without optional columns that have no value; those to add expire then, if they do not say when."""
        import pyarrow as pa

        from tagmatch.files.rows import read_sets, rows_in
        from tagmatch.model.clock import expiring

        stats, ignored = tm.stats(), self.ignore_columns or ()
        data = {name: kind for name, kind in tm._engine.schema().items() if has_data and name not in ignored}
        options: Any = {"expires": to_add, "plane": stats["plane"], "match_all": self.match_all}
        options |= {"data": data, "declared": tm._engine.declared, "row_of": row_of}
        with (
            cli.invalid_rows(skip=self.skip_invalid, most=1 if row_of is None else _REFUSED) as invalid,
            cli.other_columns(ignored, data) as others,
        ):
            batches = read_sets(sets, self.form, invalid, stats["key_type"], others=others, **options)
            for rows in cli.with_progress("reading sets", batches, rows_in(sets, self.form)):
                columns = dict(zip(rows.schema.names, rows.columns, strict=True))
                if expires is not None:
                    columns["expires"] = expiring(columns.get("expires", pa.nulls(len(rows))), expires)
                columns = {
                    name: column
                    for name, column in columns.items()
                    if name in ("tags", "key") or column.null_count < len(column)
                }
                yield pa.record_batch(columns)


_Data = Annotated[
    list[str] | None,
    cli.option(
        "A column of data, and its type: the index has it then. May be repeated.", "--data", metavar="NAME=TYPE"
    ),
]


@cli.with_options(reading=_Reading, declared=cli.Declaring)
def build(
    sets: _Sets,
    index: cli.IndexToChange,
    *,
    key_type: cli.KeyTypeName = "integer",
    layout: cli.LayoutName = LAYOUT_DEFAULTS.layout,
    max_partition_size: cli.MaxPartitionSize = LAYOUT_DEFAULTS.max_partition_size,
    declared: cli.Declaring,
    expires: cli.Expires = None,
    data: _Data = None,
    reading: _Reading,
    keep_snapshots: cli.KeepSnapshots = None,
    overwrite: Annotated[bool, cli.option("Replace an index that is there already.", "--overwrite")] = False,
    allow_empty: Annotated[bool, cli.option("Make an index even if no row can be used.", "--allow-empty")] = False,
) -> None:
    """Build an index from a file of sets.

    With --data, a file has columns of data, too, and each key is put: its rows are its alternatives.
    """
    location = cli.located(index)
    replaced = location.replaced_name()
    if location.has_index() and not overwrite:
        raise IndexExistsError(
            f"there is an index at {index} already; give --overwrite to replace it, with all that it "
            "has; `tagmatch add` and `tagmatch put` change it"
        )
    options: Any = {"key_type": key_type, "layout": layout, "max_partition_size": max_partition_size}
    options |= declared.options()
    columns = cli.named(data, "--data")
    with TagMatch(device="cpu", threads=reading.threads, plane=reading.plane, data=columns, **options) as tm:
        batches = reading.rows(tm, sets, expires, has_data=bool(columns))
        if columns:
            _put(tm, batches, columns)
        for rows in batches:
            tm.add_subscriptions(rows)
        if not (tm.stats()["staged"] or allow_empty):
            # Most likely its writer has failed, and an index that is there would be lost
            raise InputFileError(f"{sets} has no set, so no index is made; --allow-empty makes an empty one")
        with cli.status("building the index"):
            changes = tm.consolidate()
            if location.replaced_name() != replaced:
                raise location.changed_meanwhile()
            tm.save(index, keep_snapshots=keep_snapshots)
        stats = tm.stats()
    cli.note(f"{index}: {_size(stats)}, {stats['tags']} tags, layout {stats['layout']}; {changes}")


@cli.with_options(reading=_Reading)
def add(index: cli.IndexToChange, sets: _Sets, *, expires: cli.Expires = None, reading: _Reading) -> None:
    """Add sets, each with a key, to an index; what it has already stays as it is."""
    with _changed(index, reading) as tm:
        for rows in reading.rows(tm, sets, expires):
            tm.add_subscriptions(rows)


@cli.with_options(reading=_Reading)
def remove(index: cli.IndexToChange, sets: _Sets, *, reading: _Reading, missing: cli.MissingName = "ignore") -> None:
    """Remove keys of sets from an index; a set without keys goes, and what the index does not have is counted."""
    with _changed(index, reading) as tm:
        for rows in reading.rows(tm, sets, to_add=False):
            tm.remove_subscriptions(rows, missing=missing)


@cli.with_options(reading=_Reading)
def put(
    index: cli.IndexToChange,
    sets: _Sets,
    *,
    expires: cli.Expires = None,
    data: _Data = None,
    reading: _Reading,
) -> None:
    """Give each key of a file the sets, and the data, that it has there, in place of all that it had.

    Other keys stay as they are. Columns of data are those that the index has, and those of --data.
    """
    columns = cli.named(data, "--data")
    with _changed(index, reading, data=columns) as tm:
        _put(tm, reading.rows(tm, sets, expires, has_data=True), columns)


def _put(tm: TagMatch[Any], batches: Iterator[pa.RecordBatch], columns: Iterable[str]) -> None:
    """Rows of a key, wherever in the file they are, are alternatives: the key gets all of them.

    A line names those of the columns of --data that no row has a value for.
    """
    import pyarrow as pa

    from tagmatch.model.input.putting import data_column

    schema, has_names = tm._engine.schema(), tm.stats()["key_type"] == "string"

    def as_stored(name: str, column: pa.Array) -> pa.Array:
        """Of the same type in all files."""
        if name == "key" and not has_names:
            return column.cast(pa.uint64())
        return data_column(name, column, schema) if name in schema else column

    tables = [
        pa.table([as_stored(*pair) for pair in zip(rows.schema.names, rows.columns, strict=True)], rows.schema.names)
        for rows in batches
    ]
    filled = {name for table in tables for name in table.column_names}
    if empty := [name for name in columns if name not in filled]:
        typer.echo(f"tagmatch: no row that was taken has a value for --data {', '.join(empty)}", err=True)
    if not tables:
        return
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise InputFileError(f"a column of one file has another type in another file: {error}") from None
    tm.put_many(table)


@dataclass(frozen=True, slots=True)
class _Translating:
    """How documents of other engines become rows, as options say."""

    mapping: Annotated[
        Path | None,
        cli.option("JSON of the mapping of fields, as Elasticsearch gives it: types and analyzers (elasticsearch)."),
    ] = None
    tags: Annotated[
        str | None, cli.option("A field whose words are the tags of messages (elasticsearch).", metavar="FIELD")
    ] = None
    field: Annotated[
        str | None,
        cli.option(
            "Where in a document the query is.",
            default="the field of the type percolator, or `query`; fields.target (vespa); conditions (rules)",
            metavar="PATH",
        ),
    ] = None
    key: Annotated[
        str | None,
        cli.option(
            "Where in a document its key is.",
            default="_id or id (elasticsearch), put or id (vespa), name or id (rules)",
            metavar="PATH",
        ),
    ] = None

    def read_mapping(self) -> Any:
        """The mapping, or `None`."""
        from tagmatch.files.json import read_json

        return None if self.mapping is None else read_json(self.mapping.read_bytes(), str(self.mapping))

    def documents(self, source: Source, mapping: Any, tm: TagMatch[Any]) -> Documents:
        """A function that makes rows of documents for an index."""
        from tagmatch.importing import Documents

        engine = tm._engine
        return Documents(
            source,
            mapping=mapping,
            tags=self.tags,
            key=self.key,
            field=self.field,
            key_type=tm.stats()["key_type"],
            declared=engine.declared,
            data=engine.schema(),
        )


@cli.with_options(translating=_Translating)
def import_(
    source: Annotated[Source, cli.argument("SOURCE", "What the documents are of: elasticsearch, vespa or rules.")],
    documents: Annotated[
        str, cli.argument("DOCUMENTS", "JSON Lines, one document on a line, or - for standard input.")
    ],
    index: cli.IndexToChange,
    *,
    key_type: cli.KeyTypeName = "string",
    expires: cli.Expires = None,
    data: _Data = None,
    translating: _Translating,
    form: cli.InputFormat = None,
    skip_invalid: cli.SkipInvalid = False,
    threads: cli.Threads = None,
) -> None:
    """Put the queries of a percolator, the predicates of Vespa or the rules of a rule engine into an index.

    Each key gets what its document asks for, in place of all that it had. What cannot be taken is refused by its path
    in the document. An index that is not there is made, with keys of the KEY_TYPE, and with the attributes and the
    analyzers of the mapping. Columns of data, those that the index has and those of --data, get the fields of their
    names.
    """
    from tagmatch import importing

    reading, mapping = _Reading(form=form, skip_invalid=skip_invalid, threads=threads), translating.read_mapping()
    new: dict[str, Any] = {"key_type": key_type}
    if mapping is not None:
        new |= importing.declared(mapping, tags=translating.tags)
    columns = cli.named(data, "--data")
    with _changed(index, reading, new, data=columns) as tm:
        translated = translating.documents(source, mapping, tm)
        _put(tm, reading.rows(tm, documents, expires, has_data=True, row_of=translated.row_at), columns)
    typer.echo(f"{documents}: {translated.report()}")


_Keys = Annotated[list[str], cli.argument("KEY", "Keys; -- before those that begin with -.")]


def delete(index: cli.IndexToChange, keys: _Keys, *, missing: cli.MissingName = "ignore") -> None:
    """Remove keys from all their sets."""
    with _changed(index, _Reading()) as tm:
        tm.delete_many(_keys_of(tm, keys), missing=missing)


def get(index: cli.Index, keys: _Keys, snapshot: cli.SnapshotNumber = None) -> None:
    """Write the record of each key as a line of JSON: its alternatives and its data; a key without sets is an error."""
    from tagmatch.broker.wire import record_shown, write_json

    with TagMatch.open(index, snapshot=snapshot, device="cpu") as tm:
        for key in _keys_of(tm, keys):
            record = tm.get(key)
            if record is None:
                raise NotStoredError(f"{index}: key {key!r} has no sets")
            typer.echo(write_json(record_shown(record)))


@contextlib.contextmanager
def _changed(
    index: str, reading: _Reading, new: Mapping[str, Any] | None = None, **more: Any
) -> Iterator[TagMatch[Any]]:
    """Make one change of all that is staged within, and say what the index has before and after it.

    An index that is not there is made if options for it are given.
    """
    options: Any = {"device": "cpu", "threads": reading.threads, "plane": reading.plane, "durability": "none"}
    options |= more
    if new is not None and not cli.located(index).has_index():
        tm = TagMatch[Any](index, **new, **options)
    else:
        try:
            tm = TagMatch.open(index, **options)
        except IndexNotFoundError as error:
            raise IndexNotFoundError(f"{error}; `tagmatch build` makes a new index") from None
    with tm:
        before = _size(tm.stats())
        yield tm
        try:
            with cli.status("changing the index"):
                changes = tm.consolidate()
        except IndexChangedError:
            raise IndexChangedError(
                f"another program has saved changes to the index {index} in the meantime, so that nothing was changed; "
                "run the command again"
            ) from None
        after = _size(tm.stats())
    typer.echo(f"{index}: {after}; before: {before}; {changes}")


def _size(stats: dict[str, Any]) -> str:
    return f"{counted(stats['sets'], 'set')}, {counted(stats['keys'], 'key')}"


_SHOWN = (
    "number", "layout", "sets", "keys", "key_type", "tags", "partitions", "max_partition_size", "seed", "index_bytes",
)  # fmt: skip


def export(
    index: cli.Index,
    output: Annotated[
        str | None,
        cli.argument(
            "OUTPUT",
            "Parquet, JSON Lines or CSV file (by suffix, the latter two also with .gz or .zst), or a stream: - "
            "for standard output.  [default: -]",
            callback=cli.user_path,
        ),
    ] = None,
    output_option: Annotated[
        str | None, cli.option("The same as OUTPUT.", "--output", "-o", callback=cli.user_path)
    ] = None,
    form: Annotated[
        FormatName | None, cli.option("Format of the output.", "--format", default="by suffix, else jsonl")
    ] = None,
    snapshot: cli.SnapshotNumber = None,
) -> None:
    """Write all stored sets and keys, as rows `tags`, `key`, `where`, `expires` and columns of data.

    `build` takes them, with --data for each column of data; `info` lists these.
    """
    from tagmatch.contents import pairs, schema_of
    from tagmatch.files.rows import row_writer
    from tagmatch.model.clock import now_us
    from tagmatch.partitioner.consolidation import without_expired

    if output is not None and output_option is not None:
        raise typer.BadParameter("means the same as OUTPUT; give one of them", param_hint="--output")
    target = next((path for path in (output, output_option) if path is not None), STANDARD_STREAM)
    exported = cli.located(index, snapshot).open()
    exported = without_expired(exported, exported.segments[0].options, now=now_us())
    batches = pairs(exported)
    if not cli.is_terminal_of_messages(target):
        batches = cli.with_progress("exporting", batches, sum(segment.live_keys for segment in exported.segments))
    with row_writer(target, schema_of(exported), form) as write:
        for batch in batches:
            write(batch)


def info(
    index: cli.Index,
    as_json: Annotated[bool, cli.option("Print JSON instead of a table.", "--json")] = False,
    plane: cli.Plane = False,
    snapshot: cli.SnapshotNumber = None,
) -> None:
    """Show what an index holds, which segments it has, and which snapshots can be opened by their numbers."""
    from rich.console import Console
    from rich.table import Table

    from tagmatch.model.storage.format import files_nbytes

    with TagMatch.open(index, snapshot=snapshot, plane=plane) as tm:
        stats, segments = tm.stats(), tm.snapshot.segments
    shown: dict[str, Any] = {name: stats[name] for name in _SHOWN}
    declared = {"attributes": stats["attributes"], "strict": stats["strict"], "data": stats["data"]}
    shown["file_bytes"] = files_nbytes(cli.located(index, snapshot).manifest())
    lists: dict[str, list[dict[str, Any]]] = {
        "segments": [{"rows": len(each), "live": each.live, "deleted": len(each) - each.live} for each in segments],
        "snapshots": [
            {"number": each.number, "sets": each.sets, "until": each.until and each.until.isoformat()}
            for each in TagMatch.snapshots(index)
        ],
    }
    if as_json:
        typer.echo(json.dumps(shown | declared | lists))
        return
    table = Table(show_header=False, box=None)
    for name, value in shown.items():
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    for name, said in stats["attributes"].items():
        table.add_row(f"attribute {name}", said)
    for name, kind in stats["data"].items():
        table.add_row(f"data {name}", kind)
    if stats["strict"]:
        table.add_row("other attributes", "are errors")
    for each in lists["segments"]:
        table.add_row(
            "segment", f"{counted(each['rows'], 'row', ',')}, {each['live']:,} live, {each['deleted']:,} deleted"
        )
    for each in lists["snapshots"]:
        until = f"until {each['until']}" if each["until"] else "the current one"
        table.add_row(f"snapshot {each['number']}", f"{counted(each['sets'], 'set', ',')}, {until}")
    Console(markup=False, emoji=False).print(table)  # brackets and colons are those of names and types


def check(
    index: cli.Index, plane: cli.Plane = False, threads: cli.Threads = None, snapshot: cli.SnapshotNumber = None
) -> None:
    """Verify the checksums and every invariant of an index, and the checksums of earlier snapshots that it keeps."""
    with TagMatch.open(index, snapshot=snapshot, plane=plane, threads=threads) as tm:
        with cli.status("checking"):
            tm.check()
            cli.located(index).check_kept()
        typer.echo(f"{tm.stats()['path']}: ok, {counted(len(tm), 'set')}")


def _attributes(text: str) -> dict[str, Any]:
    """An object of JSON."""
    from tagmatch.files.json import read_json

    try:
        found = read_json(text, repr(text))
    except InvalidValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{text!r} is no object of JSON")
    return found


def _location(text: str) -> tuple[float, float]:
    """Two numbers with a comma between."""
    try:
        lon, lat = map(float, text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no place: give two numbers, as in 9.19,45.46") from None
    return lon, lat


# Python does not read thousands of digits
_MOST_DIGITS = 100


def _keys_of(tm: TagMatch[Any], texts: list[str], option: str = "KEY") -> list[Any]:
    """Keys as the index has them: strings, or integers."""
    if tm.stats()["key_type"] == "string":
        return texts
    for text in texts:
        if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
            raise typer.BadParameter(
                f"{text!r:.60} is not an integer from 0 to 2**64 - 1, as the keys of this index are", param_hint=option
            )
    return [*map(int, texts)]


def match(
    index: cli.Index,
    queries: Annotated[
        str,
        cli.input_argument(
            "QUERIES", "columns `tags`, `attributes`, `location`, `within` and `id`, and others that are attributes"
        ),
    ],
    output: Annotated[
        str,
        cli.option(
            "Parquet or JSON Lines file (by suffix, the latter also with .gz or .zst), or a stream: - for "
            "standard output.",
            "--output",
            "-o",
            callback=cli.user_path,
        ),
    ] = "-",
    form: cli.InputFormat = None,
    attributes: cli.Columns = None,
    ignore_columns: cli.IgnoreColumnsOfQueries = None,
    output_format: Annotated[
        FormatName | None, cli.option("Format of the output.", default="by suffix, else jsonl")
    ] = None,
    unique: Annotated[bool, cli.option("Give, or count, each key of a query once.", "--unique")] = False,
    count: Annotated[bool, cli.option("Write how many keys there are, as `count`, not the keys.", "--count")] = False,
    exists: Annotated[
        bool, cli.option("Write whether there are any keys, as `exists`, not the keys.", "--exists")
    ] = False,
    count_by: Annotated[
        str | None,
        cli.option("A column of data: write how many keys have each value there, as `counts`.", metavar="COLUMN"),
    ] = None,
    highlights: Annotated[
        bool,
        cli.option(
            "Write, as `highlights`, the keys with the tags and tests of their sets, which held.", "--highlights"
        ),
    ] = False,
    columns: cli.DataColumns = None,
    limit: Annotated[
        int | None,
        cli.option("Most keys of each query: its best by --order-by or --score, else the least, each once.", min=1),
    ] = None,
    order_by: Annotated[
        str | None, cli.option('A column of data, and the order: "priority desc".', metavar="COLUMN")
    ] = None,
    score: Annotated[
        str | None,
        cli.option(
            'Columns of data and attributes with + - * min max: "priority * 2 + bid". The greatest is the best.',
            metavar="EXPRESSION",
        ),
    ] = None,
    only: cli.Only = None,
    snapshot: cli.SnapshotNumber = None,
    skip_invalid: cli.SkipInvalid = False,
    exact: Annotated[
        bool, cli.option("Verify matches, or answer by signature (layout balanced).", "--exact/--no-exact")
    ] = True,
    plane: cli.Plane = False,
    threads: cli.Threads = None,
) -> None:
    """Write, for each query, its id (or its row number, if it has no id) and the keys of all sets that it contains.

    Queries of a stream are answered as they come. A row that cannot be used ends the command, after the answers of
    those before it.
    """
    import pyarrow as pa

    from tagmatch.files.columns import EVERY_OTHER
    from tagmatch.files.rows import answer_writer, read_queries, rows_in
    from tagmatch.model.input.messages import queries_of

    ask: Callable[..., pa.Array]
    answers = {"--count": count, "--exists": exists, "--count-by": count_by, "--highlights": highlights}
    answers["--columns"] = columns
    given = [option for option, own in answers.items() if own not in (False, None)]
    if len(given) > 1:
        raise typer.BadParameter(f"is another answer than {given[0]}; give one of the two", param_hint=given[1])
    if limit is None and not (order_by is None and score is None):
        raise typer.BadParameter(
            "says by what some keys are the best: give --limit, too", param_hint="--order-by or --score"
        )
    if limit is not None and given not in ([], ["--columns"]):
        raise typer.BadParameter(f"is another answer than {given[0]}; give one of the two", param_hint="--limit")
    if limit is not None:
        name, ask = "keys", partial(TagMatch.match_best, limit=limit, order_by=order_by, score=score, columns=columns)
    elif highlights:
        name, ask = "highlights", partial(TagMatch.match_highlights)
    elif exists:
        name, ask = "exists", partial(TagMatch.match_exists_many)
    elif count_by is not None:
        name, ask = "counts", partial(TagMatch.match_counts, unique=unique, count_by=count_by)
    elif count:
        name, ask = "count", partial(TagMatch.match_counts, unique=unique)
    else:
        name, ask = "keys", partial(TagMatch.match_many, unique=unique, columns=columns)
    ask = partial(ask, only=only)
    with contextlib.suppress(OSError):
        if os.path.isfile(output) and os.path.samefile(queries, output):
            raise TagMatchError(f"{output}: the queries are in this file; give another one for the answers")
    with (
        cli.invalid_rows(skip=skip_invalid) as invalid,
        TagMatch.open(index, snapshot=snapshot, exact=exact, plane=plane, threads=threads) as tm,
        answer_writer(output, pa.field(name, ask(tm, []).type), output_format) as write,
    ):
        own, ignored = attributes or EVERY_OTHER, ignore_columns or ()
        options: Any = {"plane": plane, "declared": tm._engine.declared, "has_score": score is not None}
        batches = read_queries(queries, form, invalid, own, ignored, **options)
        if not cli.is_terminal_of_messages(output):
            batches = cli.with_progress("matching", batches, rows_in(queries, form), steps=True)
        notes: set[str | None] = set() if score is None else {None}
        for batch in batches:
            # What messages have besides comes in tables
            given = batch.drop_columns(["row", "id"]) if batch.num_columns > 3 else batch["tags"]
            asked = queries_of(given, plane=plane)
            if None not in notes:
                notes.add(tm._engine.note_on(asked))
            write(batch["row"], batch["id"], ask(tm, asked))
    for note in notes - {None} if None not in notes else ():
        typer.echo(f"tagmatch: {note}", err=True)


def explain(
    index: cli.Index,
    tags: Annotated[
        list[str] | None, cli.argument("TAG", "Tags of one query, if it has any; -- before those that begin with -.")
    ] = None,
    attributes: Annotated[
        dict[str, Any] | None,
        cli.option(
            """Attributes of the query, as an object: '{"price": 9.5, "city": ["Rome", "Milan"]}'.""",
            parser=_attributes,
            metavar="JSON",
        ),
    ] = None,
    location: Annotated[
        list[Any] | None,
        cli.option(
            "Where the query is, as two numbers: 9.19,45.46; may be given several times.",
            default="nowhere",
            parser=_location,
            metavar="LON,LAT",
        ),
    ] = None,
    within: Annotated[
        str | None,
        cli.option(
            "Where the clients must be that the query is for: 'circle(9.19, 45.46, 500)', or WKT.", metavar="AREA"
        ),
    ] = None,
    key: Annotated[
        str | None, cli.option("Write why this key is an answer, or is not: a tree of the tests of its sets.")
    ] = None,
    as_json: Annotated[bool, cli.option("Write the tree of a key as a line of JSON.", "--json")] = False,
    only: cli.Only = None,
    plane: cli.Plane = False,
    snapshot: cli.SnapshotNumber = None,
) -> None:
    """Write each stored set that one query contains, with its keys, as a line of JSON; or why it gets a key."""
    with TagMatch.open(index, snapshot=snapshot, device="cpu", plane=plane) as tm:
        if key is not None:
            (asked,) = _keys_of(tm, [key], "--key")
            reasons = tm.explain(tags or [], attributes, location=location or None, within=within, key=asked, only=only)
            typer.echo(json.dumps(reasons.to_dict(), ensure_ascii=False) if as_json else str(reasons))
            return
        for stored, keys in tm.explain(tags or [], attributes, location=location or None, within=within, only=only):
            conditions = sorted(str(tag) for tag in stored if isinstance(tag, Where))
            record: dict[str, Any] = {"tags": sorted(tag for tag in stored if not isinstance(tag, Where)), "keys": keys}
            if conditions:
                record["where"] = " and ".join(conditions)
            typer.echo(json.dumps(record, ensure_ascii=False, separators=(",", ":")))


app = cli.command_line("Exact subset matching: the keys of every stored tag set that is contained in a query set.")


def warmup(
    export: Annotated[
        Path | None,
        cli.option(
            "Compile for other computers, too, into this folder: they set XDG_CACHE_HOME to it, or to a copy of it."
        ),
    ] = None,
) -> None:
    """Compile all kernels now, not when they are first used: for images of containers."""
    with cli.status("compiling kernels, once, about two minutes"):
        calls.warm_up(export)


_CHANGING, _ASKING = (build, add, remove, put, delete), (get, match, explain, export, info, check)
for command in (*_CHANGING, *_ASKING, backup, restore, upgrade, serve, token, warmup):
    app.command()(command)
app.command("import")(import_)
# As database programs call it
app.command("dump", help="Another name of `export`.")(export)


#: What Spark calls formats
_OF_SPARK = {Kind.json_lines: "json", Kind.csv: "csv", Kind.parquet: "parquet"}


def partition(
    sets: Annotated[
        str,
        cli.argument(
            "SETS",
            "Any path or URI that Spark reads, with columns `tags` (array of strings), `key` (long or string) and "
            "optionally `where` (expressions), `expires` (timestamps), `constraints` and `area`; with --append, "
            "`removed` (boolean): the row's key is removed from its set.",
        ),
    ],
    index: Annotated[str, cli.argument("INDEX", "Folder that all machines mount, or URI of a store.")],
    layout: Annotated[
        Layout | None,
        cli.option(
            "How stored sets are grouped and ordered.", default=f"{LAYOUT_DEFAULTS.layout}, or as the index has it"
        ),
    ] = None,
    max_partition_size: Annotated[
        int | None,
        cli.option(
            "Most sets in a partition (layout balanced).",
            default=f"{LAYOUT_DEFAULTS.max_partition_size}, or as the index has it",
            min=1,
            max=MAX_PARTITION_SIZE,
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        str | None, cli.option("Spark's name of the format of SETS.", default="by suffix, else parquet")
    ] = None,
    master: Annotated[
        str | None, cli.option("local[2], spark://…, or sc://… for Spark Connect.", default="as Spark is configured")
    ] = None,
    sets_per_task: Annotated[int, cli.option("Sets that a task has in memory, about.", min=1)] = 1 << 20,
    plane: cli.Plane = False,
    data: _Data = None,
    ignore_columns: cli.IgnoreColumns = None,
    skip_invalid: Annotated[
        bool, cli.option("Leave out rows that cannot be stored, and tell how many.", "--skip-invalid")
    ] = False,
    overwrite: Annotated[bool, cli.option("Replace an index that is there already.", "--overwrite")] = False,
    append: Annotated[bool, cli.option("Add the sets to an index that is there already.", "--append")] = False,
) -> None:
    """Build an index on Spark from any table of sets, or add them to one."""
    if append and overwrite:
        raise typer.BadParameter("an index is replaced (--overwrite) or added to (--append), not both")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("tagmatch.partitioner").setLevel(logging.INFO)
    from tagmatch.files.columns import EVERY_OTHER
    from tagmatch.model.input.subscriptions import COLUMNS
    from tagmatch.partitioner.spark.shards import REMOVED
    from tagmatch.spark.join import partition as run_job
    from tagmatch.spark.session import location_in, read_table, spark_session

    if format is None:
        found = format_of_suffix(Path(sets))
        format = "parquet" if found is None else _OF_SPARK[found.kind]  # noqa: A001
    spark = spark_session("tagmatch-partition", master)
    try:
        location = location_in(spark, index, "INDEX")
        if location.has_index() and not (overwrite or append):
            raise IndexExistsError(
                f"there is an index at {location} already; give --overwrite to replace it, or --append to add to it"
            )
        table = read_table(spark, sets, format)
        ignored, columns = ignore_columns or (), cli.named(data, "--data")
        with cli.other_columns(ignored, [REMOVED, *columns]) as others:
            others.check(table.columns, sets)
        kept = {*COLUMNS, REMOVED, *columns} - ({REMOVED} if ignored == EVERY_OTHER and not append else {*ignored})
        table = table.drop(*(name for name in table.columns if name not in kept))
        made = run_job(
            table,
            index,
            mode="append" if append else "overwrite",
            layout=layout,
            max_partition_size=max_partition_size,
            data=columns or None,
            plane=plane,
            sets_per_task=sets_per_task,
            skip_invalid=skip_invalid,
        )
    finally:
        spark.stop()
    for problem, count in made.skipped.items():
        typer.echo(f"tagmatch-partition: skipped rows: {problem}: {count}", err=True)
    manifest = location.manifest()
    cli.note(
        f"{location}: {counted(manifest['sets'], 'set')}, layout {manifest['layout']}; "
        f"made one segment with {counted(made.sets, 'set')}, {counted(made.keys, 'key')}, {counted(made.tags, 'tag')}"
    )


def main_of_partition() -> None:
    """Entry point of the command `tagmatch-partition`."""
    command_line = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    command_line.command()(partition)
    cli.run(command_line)
