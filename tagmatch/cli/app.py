"""The command line `tagmatch`. Commands import what they need when they run, so that help comes at once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagmatch.calls import backup as back_up
from tagmatch.calls import restore as bring_back
from tagmatch.cli.shared import (
    ColumnNames,
    Expires,
    IgnoreColumns,
    IgnoreColumnsOfQueries,
    Index,
    IndexToChange,
    InputFormat,
    KeepSnapshots,
    KeyTypeName,
    LayoutName,
    MatchAll,
    MaxPartitionSize,
    MissingName,
    Plane,
    SkipInvalid,
    SnapshotNumber,
    Threads,
    argument,
    column_names,
    command_line,
    input_argument,
    invalid_rows,
    is_terminal_of_messages,
    location_argument,
    note,
    note_compilation,
    option,
    other_columns,
    status,
    user_path,
    with_progress,
)
from tagmatch.embedded import TagMatch
from tagmatch.files.formats import STANDARD_STREAM, FormatName
from tagmatch.model.errors import (
    IndexChangedError,
    IndexExistsError,
    IndexNotFoundError,
    InputFileError,
    InvalidValueError,
)
from tagmatch.model.options import LAYOUT_DEFAULTS, Order
from tagmatch.model.where.constraints import Where

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.model.storage.copies import Copied


def _optional_index(text: str | None) -> str | None:
    if text is None:
        return None
    from tagmatch.model.storage.repository import location_of

    return location_of(text, "INDEX").address


#: What the extra `serve` brings
_PACKAGES = {"grpc": "grpcio", "prometheus_client": "prometheus-client"}


def require_packages() -> None:
    """Check for the packages of a service, before anything else takes time or goes to a log; TagMatchError."""
    from importlib.util import find_spec

    from tagmatch.model.errors import TagMatchError

    missing = [package for module, package in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        what = " and ".join(missing)
        raise TagMatchError(f"the service needs {what}; install it with: pip install 'tagmatch[serve]'")


def serve(
    index: Annotated[
        str | None,
        argument(
            "INDEX",
            "Folder of the index, or its URI on a store.  [default: `path` in [index] of the configuration]",
            callback=_optional_index,
        ),
    ] = None,
    config: Annotated[
        str | None,
        option("The configuration, in TOML.", metavar="FILE", callback=lambda text: text and user_path(text)),
    ] = None,
    host: Annotated[str | None, option("Address to listen on.", default="127.0.0.1")] = None,
    port: Annotated[
        int | None,
        option("Port; 0: any that is free.", default="8815", min=0, max=65_535),
    ] = None,
    channel: Annotated[
        list[str] | None,
        option(
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
        option(
            "In which order messages of channels are matched. fifo: as they come; deadlines are only measured. "
            "edf: the earliest deadline first; what cannot be in time is refused or dropped, and its client gets "
            'an error. dfgs: as "Pub/Sub on Stream" (DEBS 2012) has it.',
            default="fifo",
        ),
    ] = None,
    check: Annotated[bool, option("Only check the configuration.", "--check")] = False,
) -> None:
    """Serve an index over Arrow Flight, until SIGTERM or Ctrl-C; what is under way then is still answered."""
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is said in one line, or logged
    require_packages()
    from tagmatch.broker.config import Config
    from tagmatch.broker.config_file import check_files, read_config
    from tagmatch.broker.service import notes_on, run, with_arguments
    from tagmatch.model.options import channel_of

    channels = [channel_of(text) for text in channel or ()]
    found = with_arguments(Config() if config is None else read_config(config), index, host, port, channels, order)
    found.check_exposure()
    check_files(found, config)
    if check:
        name = config or "the configuration"
        typer.echo(f"{name}: ok")
        for note in notes_on(found):
            typer.echo(f"{name}: {note}", err=True)
        return
    run(found, lambda line: typer.echo(f"tagmatch: {line}"))


def token(
    name: Annotated[str, typer.Argument(help="Name of the user.", show_default=False)] = "someone",
    role: Annotated[str, option("What the user may do: read, write or admin.")] = "read",
    output: Annotated[
        Path | None,
        option("Write the token to this new file, which only you can read, and do not print it.", "--output", "-o"),
    ] = None,
) -> None:
    """Make a token for a user, and print what the configuration of the service needs to know of it."""
    from tagmatch.broker.access import new_token
    from tagmatch.broker.config import ROLES

    if role not in ROLES:
        raise typer.BadParameter(f"{role!r} is none of {', '.join(ROLES)}", param_hint="--role")
    if '"' in name or "\\" in name or not name.isprintable():
        raise typer.BadParameter("it must be a plain name", param_hint="NAME")
    made, digest = new_token()
    if output is None:
        typer.echo(f"# the token, for the client only: {made}")
    else:
        _write_token(output, made)
    typer.echo(f'[[users]]\nname = "{name}"\ntoken_sha256 = "{digest}"\nrole = "{role}"')


def _write_token(output: Path, made: str) -> None:
    """Write a token to a new file, or to a stream."""
    import os

    from tagmatch.files.formats import is_stream
    from tagmatch.model.errors import TagMatchError

    new = 0 if is_stream(str(output)) else os.O_CREAT | os.O_EXCL
    try:
        with open(os.open(output, os.O_WRONLY | new, 0o600), "w") as file:
            file.write(f"{made}\n")
    except FileExistsError:
        raise TagMatchError(
            f"{output} is there already, most likely with a token in use; give another name, or remove it first"
        ) from None


_Target = Annotated[
    str, location_argument("TARGET", "Folder for the copy, or URI on a store; new, empty, or an earlier backup.")
]
_Backup = Annotated[str, location_argument("BACKUP", "Folder of the backup (or of any index), or its URI on a store.")]


def backup(index: Index, target: _Target, keep_snapshots: KeepSnapshots = None) -> None:
    """Copy an index, with the changes that are staged, to a folder or a store; programs may change it meanwhile.

    Files that an earlier backup there has are not copied again. The copy is an index, too.
    """
    with status("copying"):
        copied = back_up(index, target, keep_snapshots=keep_snapshots)
    _tell(target, copied)


def restore(
    backup: _Backup,
    index: Index,
    snapshot: SnapshotNumber = None,
    replace: Annotated[bool, option("Replace an index that is there, with what is staged in it.", "--replace")] = False,
) -> None:
    """Make an index of a backup: all of it, with the checksums that it was written with, or nothing."""
    try:
        with status("copying"):
            copied = bring_back(backup, index, snapshot=snapshot, replace=replace)
    except IndexExistsError as error:
        raise IndexExistsError(str(error).replace("`replace`", "--replace")) from None
    _tell(index, copied)


def _tell(address: str, copied: Copied) -> None:
    from tagmatch.model.storage.repository import location_of

    staged = f", {copied.staged} staged {'change' if copied.staged == 1 else 'changes'}" if copied.staged else ""
    typer.echo(
        f"{location_of(address, 'INDEX')}: snapshot {copied.number}, {copied.sets} sets{staged}; "
        f"{copied.new_bytes} bytes copied, {copied.old_bytes} there already"
    )


_Sets = Annotated[str, input_argument("SETS", "columns `key` and `tags`, or `where`, `constraints` or `area`, or all")]


def build(
    sets: _Sets,
    index: IndexToChange,
    key_type: KeyTypeName = "integer",
    layout: LayoutName = LAYOUT_DEFAULTS.layout,
    max_partition_size: MaxPartitionSize = LAYOUT_DEFAULTS.max_partition_size,
    expires: Expires = None,
    form: InputFormat = None,
    skip_invalid: SkipInvalid = False,
    ignore_columns: IgnoreColumns = None,
    match_all: MatchAll = False,
    plane: Plane = False,
    threads: Threads = None,
    keep_snapshots: KeepSnapshots = None,
    overwrite: Annotated[bool, option("Replace an index that is there already.", "--overwrite")] = False,
    allow_empty: Annotated[
        bool, option("Make an index also where there is no row that can be used.", "--allow-empty")
    ] = False,
) -> None:
    """Build an index from a file of sets."""
    from tagmatch.model.storage.repository import location_of

    if location_of(index, "INDEX").has_index() and not overwrite:
        raise IndexExistsError(f"there is an index at {index} already; give --overwrite to replace it")
    note_compilation()
    options: Any = {"key_type": key_type, "layout": layout, "max_partition_size": max_partition_size}
    with TagMatch(device="cpu", threads=threads, plane=plane, **options) as tm:
        _add(tm, expires, _rows(tm, sets, form, skip_invalid, ignore_columns, match_all, expires=True))
        if not (tm.stats()["staged"] or allow_empty):
            # Most likely what was to write it has failed, and an index that is there would be lost
            raise InputFileError(f"{sets} has no set, so no index is made; --allow-empty makes an empty one")
        with status("building the index"):
            changes = tm.consolidate()
            tm.save(index, keep_snapshots=keep_snapshots)
        stats = tm.stats()
    note(f"{index}: {_size(stats)}, {stats['tags']} tags, layout {stats['layout']}; {changes}")


def add(
    index: IndexToChange,
    sets: _Sets,
    expires: Expires = None,
    form: InputFormat = None,
    skip_invalid: SkipInvalid = False,
    ignore_columns: IgnoreColumns = None,
    match_all: MatchAll = False,
    plane: Plane = False,
    threads: Threads = None,
) -> None:
    """Add sets, each with a key, to an index; what it has already stays as it is."""

    def stage(tm: TagMatch[Any]) -> None:
        _add(tm, expires, _rows(tm, sets, form, skip_invalid, ignore_columns, match_all, expires=True))

    _change(index, stage, plane=plane, threads=threads)


def remove(
    index: IndexToChange,
    sets: _Sets,
    form: InputFormat = None,
    skip_invalid: SkipInvalid = False,
    ignore_columns: IgnoreColumns = None,
    match_all: MatchAll = False,
    plane: Plane = False,
    threads: Threads = None,
    missing: MissingName = "ignore",
) -> None:
    """Remove keys of sets from an index; a set without keys goes, and what the index does not have is counted."""

    def stage(tm: TagMatch[Any]) -> None:
        for rows in _rows(tm, sets, form, skip_invalid, ignore_columns, match_all):
            tm.remove_subscriptions(_with_values(rows), missing=missing)

    _change(index, stage, plane=plane, threads=threads)


def _change(index: str, stage: Callable[[TagMatch[Any]], None], *, plane: bool, threads: int | None) -> None:
    """Make one change of all that is staged, and say what the index has before and after it."""
    note_compilation()
    try:
        tm = TagMatch.open(index, device="cpu", threads=threads, plane=plane, durability="none")
    except IndexNotFoundError as error:
        raise IndexNotFoundError(f"{error}; `tagmatch build` makes a new index") from None
    with tm:
        before = _size(tm.stats())
        stage(tm)
        with status("changing the index"):
            try:
                changes = tm.consolidate()
            except IndexChangedError:
                raise IndexChangedError(
                    f"another program has saved changes to the index {index} in the meantime, so that nothing was "
                    "changed; run the command again"
                ) from None
        after = _size(tm.stats())
    typer.echo(f"{index}: {after}; before: {before}; {changes}")


def _add(tm: TagMatch[Any], expires: datetime | None, batches: Iterator[pa.RecordBatch]) -> None:
    """Stage additions, of which those without a time of their own get this one."""
    import pyarrow as pa

    from tagmatch.model.expiry import TIME

    for rows in batches:
        if expires is not None and "expires" in rows.schema.names:
            rows = rows.set_column(rows.schema.names.index("expires"), "expires", rows["expires"].fill_null(expires))
        elif expires is not None:
            rows = rows.append_column("expires", pa.repeat(pa.scalar(expires, TIME), len(rows)))
        tm.add_subscriptions(_with_values(rows))


def _with_values(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without optional columns that have no value in any of them."""
    return rows.select(
        [name for name in rows.schema.names if name in ("tags", "key") or rows[name].null_count < len(rows)]
    )


def _rows(
    tm: TagMatch[Any],
    sets: str,
    form: str | None,
    skip_invalid: bool,
    ignored: ColumnNames | None,
    match_all: bool,
    *,
    expires: bool = False,
) -> Iterator[pa.RecordBatch]:
    from tagmatch.files.rows import read_sets, rows_in

    stats = tm.stats()
    options: Any = {"expires": expires, "plane": stats["plane"], "match_all": match_all}
    with invalid_rows(skip=skip_invalid) as invalid, other_columns(ignored.names if ignored else ()) as others:
        batches = read_sets(sets, form, invalid, stats["key_type"], others=others, **options)
        yield from with_progress("reading sets", batches, rows_in(sets, form))


def _size(stats: dict[str, Any]) -> str:
    return f"{stats['sets']} sets, {stats['keys']} keys"


_SHOWN = (
    "number", "layout", "sets", "keys", "key_type", "tags", "partitions", "max_partition_size", "seed", "index_bytes",
)  # fmt: skip


def _optional_path(text: str | None) -> str | None:
    return None if text is None else user_path(text)


def export(
    index: Index,
    output: Annotated[
        str | None,
        argument(
            "OUTPUT",
            "Parquet, JSON Lines or CSV file (by suffix, the latter two also with .gz or .zst), or a stream: - "
            "for standard output.  [default: -]",
            callback=_optional_path,
        ),
    ] = None,
    output_option: Annotated[
        str | None,
        option("The same as OUTPUT.", "--output", "-o", callback=_optional_path),
    ] = None,
    form: Annotated[
        FormatName | None,
        option("Format of what is written.", "--format", default="by suffix, else jsonl"),
    ] = None,
    snapshot: SnapshotNumber = None,
) -> None:
    """Write all stored sets and keys, as rows `tags`, `key`, `where` and `expires`, which `build` takes."""
    from tagmatch.contents import pairs, schema_of
    from tagmatch.files.rows import row_writer
    from tagmatch.model.clock import now_us
    from tagmatch.model.storage.repository import location_of
    from tagmatch.partitioner.consolidation import without_expired

    if output is not None and output_option is not None:
        raise typer.BadParameter("stands for OUTPUT; give one of them", param_hint="--output")
    target = next((path for path in (output, output_option) if path is not None), STANDARD_STREAM)
    exported = location_of(index, "INDEX", snapshot).open()
    exported = without_expired(exported, exported.segments[0].options, now=now_us())
    batches = pairs(exported)
    if not is_terminal_of_messages(target):
        batches = with_progress("exporting", batches, sum(segment.live_keys for segment in exported.segments))
    with row_writer(target, schema_of(exported), form) as write:
        for batch in batches:
            write(batch)


def info(
    index: Index,
    as_json: Annotated[bool, option("Print JSON instead of a table.", "--json")] = False,
    plane: Plane = False,
    snapshot: SnapshotNumber = None,
) -> None:
    """Show what an index holds, which segments it has, and which snapshots can be opened by their numbers."""
    from rich.console import Console
    from rich.table import Table

    from tagmatch.model.storage.format import files_nbytes
    from tagmatch.model.storage.repository import location_of

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
    from tagmatch.model.storage.repository import location_of

    with TagMatch.open(index, snapshot=snapshot, plane=plane, threads=threads) as tm:
        with status("checking"):
            tm.check()
            location_of(index, "INDEX").check_kept()
        typer.echo(f"{tm.stats()['path']}: ok, {len(tm)} sets")


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
        option(
            "Parquet or JSON Lines file (by suffix, the latter also with .gz or .zst), or a stream: - for "
            "standard output.",
            "--output",
            "-o",
            callback=user_path,
        ),
    ] = "-",
    form: InputFormat = None,
    attributes: Annotated[
        ColumnNames | None,
        option(
            "Columns that are an attribute each, whatever they are called.",
            default="every one but `tags`, `attributes`, `location`, `within` and `id`",
            parser=_columns,
            metavar="NAME,...",
        ),
    ] = None,
    ignore_columns: IgnoreColumnsOfQueries = None,
    output_format: Annotated[
        FormatName | None,
        option("Format of what is written.", default="by suffix, else jsonl"),
    ] = None,
    unique: Annotated[bool, option("Give each key of a query once.", "--unique")] = False,
    snapshot: SnapshotNumber = None,
    skip_invalid: SkipInvalid = False,
    exact: Annotated[
        bool, option("Verify matches, or answer by signature (layout balanced).", "--exact/--no-exact")
    ] = True,
    plane: Plane = False,
    threads: Threads = None,
) -> None:
    """Write, for each query, its id (or, where it has none, its row number) and the keys of all sets that it contains.

    Queries of a stream are answered as they come. A row that cannot be used ends the command, after the answers of
    those before it.
    """
    from tagmatch.files.columns import EVERY_OTHER
    from tagmatch.files.rows import answer_writer, read_queries, rows_in

    _refuse_same_file(queries, output)
    note_compilation()
    with (
        invalid_rows(skip=skip_invalid) as invalid,
        TagMatch.open(index, snapshot=snapshot, exact=exact, plane=plane, threads=threads) as tm,
        answer_writer(output, tm.match_many([]).type, output_format) as write,
    ):
        own = attributes.names if attributes else EVERY_OTHER
        ignored = ignore_columns.names if ignore_columns else ()
        batches = read_queries(queries, form, invalid, own, ignored, plane=plane)
        if not is_terminal_of_messages(output):
            batches = with_progress("matching", batches, rows_in(queries, form), steps=True)
        for batch in batches:
            # What says where messages are comes in tables
            queries_of_batch = batch.drop_columns(["row", "id"]) if batch.num_columns > 3 else batch["tags"]
            write(batch["row"], batch["id"], tm.match_many(queries_of_batch, unique=unique))


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
        argument("TAG", "Tags of one query; -- before those that begin with -."),
    ],
    attributes: Annotated[
        dict[str, Any] | None,
        option(
            """Attributes of the query, as an object: '{"price": 9.5, "city": ["Rome", "Milan"]}'.""",
            parser=_attributes,
            metavar="JSON",
        ),
    ] = None,
    location: Annotated[
        _Location | None,
        option(
            "Where the query is, as two numbers: 9.19,45.46.", default="nowhere", parser=_location, metavar="LON,LAT"
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


app = command_line("Exact subset matching: the keys of every stored tag set that is contained in a query set.")


def warmup() -> None:
    """Compile all kernels now, not when they are first used: for images of containers."""
    from tagmatch.calls import warm_up

    with status("compiling kernels, once, about a minute"):
        warm_up()


for command in (build, add, remove, match, explain, export, info, check, backup, restore, serve, token, warmup):
    app.command()(command)
# As database programs call it
app.command("dump", help="Another name of `export`.")(export)
