"""What command lines have in common: how they run, arguments and options, and what a person sees of long work."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import stat
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tagmatch import __version__
from tagmatch.cli import end_if_interrupted
from tagmatch.files.formats import STANDARD_OUTPUT, STANDARD_STREAM, FormatName, whole_text
from tagmatch.model.errors import TagMatchError
from tagmatch.model.names import MESSAGE_COLUMNS, counted
from tagmatch.model.options import MAX_KEPT_SNAPSHOTS, MAX_PARTITION_SIZE, MAX_THREADS, KeyType, Layout, Missing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from tagmatch.files.columns import InvalidRows, OtherColumns
    from tagmatch.model.storage.repository import Repository


def run(command: Callable[[], object]) -> None:
    """Run a command line: errors become one line on standard error and exit code 1."""
    try:
        with _own_streams():
            command()
    except BaseException as error:
        end_if_interrupted()
        line = _line(error)
        if line is None:
            raise
        if isinstance(error, OSError):
            # Standard output may take no more, as its reader has gone or its disk is full; nor may it be tried at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if line:
            typer.echo(f"tagmatch: {' '.join(line.split())}", err=True)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


def _line(error: BaseException) -> str | None:
    """The text about an error for a person; `None` for an unexpected error."""
    match error:
        case TagMatchError():
            return str(error)
        case BrokenPipeError():  # the reader has had enough
            return ""
        case OSError():
            return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        case MemoryError():
            return f"not enough memory: {error}".removesuffix(": ")
        case KeyboardInterrupt():
            return "interrupted"
        case Exception() if type(error).__module__ == "pyarrow.lib":
            return f"Arrow has failed: {error}"
    return None


@contextlib.contextmanager
def _own_streams() -> Iterator[None]:
    """Standard output that loses nothing, and warnings in one line."""
    found = sys.stdout
    own = whole_text(1, STANDARD_OUTPUT) if found is sys.__stdout__ else found
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: typer.echo(f"tagmatch: warning: {message}", err=True)
        try:
            sys.stdout = own
            yield
        finally:
            sys.stdout = found
            own.flush()


def command_line(description: str) -> typer.Typer:
    """A command line with subcommands: plain help and tracebacks, `--version`."""
    app = typer.Typer(help=description, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.callback()
    def common(
        version: Annotated[
            bool, option("Show the version.", "--version", callback=_show_version, is_eager=True)
        ] = False,
    ) -> None: ...

    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tagmatch {__version__}")
        raise typer.Exit


def user_path(text: str | None) -> str | None:
    """A path as a person writes it, if one is given; errors: see `repository.user_path`."""
    from tagmatch.model.storage import repository

    return None if text is None else repository.user_path(text)


def located(text: str, snapshot: int | None = None, name: str = "INDEX") -> Repository:
    """The place of an index, present or future; messages call the argument by the name."""
    from tagmatch.model.storage.repository import location_of

    return location_of(text, name, snapshot)


def with_options(**parts: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameter by those of the function that makes its value, `make(**options)`."""
    options = {name: list(inspect.signature(make, eval_str=True).parameters.values()) for name, make in parts.items()}

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_parts(**given: Any) -> None:
            made = {
                name: make(**{each.name: given.pop(each.name) for each in options[name]})
                for name, make in parts.items()
            }
            command(**given, **made)

        signature = inspect.signature(command, eval_str=True)
        every = [each for own in signature.parameters.values() for each in options.get(own.name, [own])]
        every = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in every]
        with_parts.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        with_parts.__annotations__ = {each.name: each.annotation for each in every}
        return with_parts

    return decorated


_DURATION = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _expiry(text: str) -> datetime:
    """A time with a zone, or so long from now."""
    from tagmatch.model.clock import now_us

    try:
        if found := _DURATION.fullmatch(text):
            return datetime.fromtimestamp(now_us() / 1e6, UTC) + timedelta(**{_UNITS[found[2]]: int(found[1])})
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no time, such as 2027-01-31T12:00:00Z, and none from now, such as 30d"
        ) from None
    if time.utcoffset() is None:
        raise typer.BadParameter(f"{text!r} has no time zone; write Z behind it for UTC, or an offset such as +01:00")
    return time


def option(text: str, *names: str, default: str = "", **more: Any) -> Any:
    """An option; its help also says what holds without it, where that is no value."""
    return typer.Option(*names, help=f"{text}  [default: {default}]" if default else text, **more)


def argument(name: str, text: str, **more: Any) -> Any:
    """An argument, which messages call by this name."""
    return typer.Argument(metavar=name, help=text, show_default=False, **more)


def location_argument(name: str, description: str, *, is_to_change: bool = False) -> Any:
    """An argument of this name for the place of an index; with `is_to_change`, one that can be changed."""

    def read(text: str | None) -> str | None:
        if text is None:
            return None
        location = located(text, name=name)
        if is_to_change:
            location.check_writable()
        address = location.address
        return f"./{address}" if address.startswith("~") else address  # it is not read as a home folder once more

    return argument(name, description, callback=read)


def input_argument(name: str, columns: str) -> Any:
    """An argument of this name that says what to read, with these columns."""
    description = (
        f"Parquet, JSON Lines or CSV file (by suffix, the latter two also with .gz or .zst) with {columns}, a folder "
        "of such files, or a stream: - for standard input, or a pipe, of JSON Lines."
    )
    return argument(name, description, callback=user_path)


def _column_names(text: str, known: Collection[str], but: str = "and cannot be left aside") -> tuple[str, ...]:
    """Names of columns with commas between, or `*`. Known ones must not be among them; `but` says why."""
    names = tuple(text.split(","))
    for name in names:
        if names.count(name) > 1:
            raise typer.BadParameter(f"{text!r} names {name!r} twice")
        if not name:
            raise typer.BadParameter(f"{text!r} has an empty name")
        if name in known:
            raise typer.BadParameter(f"the column {name!r} has its own meaning, {but}")
        if name == "*" and len(names) > 1:
            raise typer.BadParameter(f"{text!r} names columns besides '*', which is every column")
    return names


def _columns_to_ignore(text: str) -> tuple[str, ...]:
    from tagmatch.model.input.subscriptions import COLUMNS

    return _column_names(text, COLUMNS)


Index = Annotated[str, location_argument("INDEX", "Folder of the index, or its URI on a store.")]
IndexToChange = Annotated[str, location_argument("INDEX", "Folder of the index.", is_to_change=True)]
InputFormat = Annotated[FormatName | None, option("Format of the input.", "--format", default="by suffix, else jsonl")]
SkipInvalid = Annotated[
    bool, option("Leave out rows that cannot be used, and say at the end how many there were.", "--skip-invalid")
]
# Names of columns, a tuple, or `None`
IgnoreColumns = Annotated[
    Any,
    option(
        "Columns to leave aside without a word; '*' for all that have no meaning. Without it, one that is "
        "most likely misspelt, such as `wher`, is an error.",
        parser=_columns_to_ignore,
        metavar="NAME,...",
    ),
]
IgnoreColumnsOfQueries = Annotated[
    Any,
    option(
        "Columns to leave aside, which are no attributes; '*' for all except those with a fixed meaning.",
        "--ignore-columns",
        parser=lambda text: _column_names(text, MESSAGE_COLUMNS),
        metavar="NAME,...",
    ),
]
DataColumns = Annotated[
    Any,
    option(
        "Columns of data to write with each key, within `keys`.",
        "--columns",
        parser=lambda text: _column_names(text, ()),
        metavar="NAME,...",
    ),
]
Columns = Annotated[
    Any,
    option(
        "Columns that are an attribute each, under any name.",
        default="every one but `tags`, `attributes`, `location`, `within` and `id`",
        parser=lambda text: _column_names(text, ("tags", "id", "attributes"), "and is no attribute"),
        metavar="NAME,...",
    ),
]
MatchAll = Annotated[
    bool, option("Rows that have neither tags nor a condition match every message, and are no errors.", "--match-all")
]
Plane = Annotated[
    bool, option("Areas are on the plane, in any unit, not in degrees and metres on the sphere.", "--plane")
]
Expires = Annotated[
    datetime | None,
    option(
        "Expiry of the keys in rows without a time in a column `expires`: "
        "2027-01-31T12:00:00Z, or from now 90s, 15m, 12h, 30d.",
        default="never",
        parser=_expiry,
        metavar="TIME",
    ),
]
LayoutName = Annotated[Layout, option("How stored sets are grouped and ordered.")]
KeyTypeName = Annotated[KeyType, option("What the keys are.")]
MaxPartitionSize = Annotated[int, option("Most sets in a partition (layout balanced).", min=1, max=MAX_PARTITION_SIZE)]


@dataclass(frozen=True, slots=True)
class Declaring:
    """What is declared of attributes, as options say."""

    attribute: Annotated[
        list[str] | None,
        option("Type of an attribute: texts become values of it. May be repeated.", "--attribute", metavar="NAME=TYPE"),
    ] = None
    analyzer: Annotated[
        list[str] | None,
        option(
            "What texts of a declared attribute become, such as casefold(words()). May be repeated.",
            "--analyzer",
            metavar="NAME=ANALYZER",
        ),
    ] = None
    strict: Annotated[bool, option("Refuse attributes that are not declared, and values of other types.")] = False

    def options(self) -> dict[str, Any]:
        """The same as options of `TagMatch`."""
        attributes, analyzers = named(self.attribute, "--attribute"), named(self.analyzer, "--analyzer")
        return {"attributes": attributes, "analyzers": analyzers, "strict": self.strict}


def named(given: list[str] | None, name: str) -> dict[str, str]:
    """What names have, of texts `NAME=TEXT`."""
    found = {}
    for each in given or ():
        own, sign, text = each.partition("=")
        if not sign or own in found:
            raise typer.BadParameter(f"{each!r} is not written as NAME=…, with another name each", param_hint=name)
        found[own] = text
    return found


Only = Annotated[
    str | None, option("Only keys whose data satisfies this, as 'tenant = \"acme\"'.", metavar="EXPRESSION")
]
SnapshotNumber = Annotated[
    int | None, option("Number of a snapshot, as `info` lists them.", "--snapshot", default="the current one", min=0)
]
KeepSnapshots = Annotated[
    int | None,
    option(
        "Earlier snapshots to keep from now on.",
        default="as many as until now, at first none",
        min=0,
        max=MAX_KEPT_SNAPSHOTS,
    ),
]
MissingName = Annotated[
    Missing,
    option(
        "What happens to a row that the index does not have: it changes nothing, or nothing is changed and "
        "it is an error.",
        "--missing",
    ),
]
Threads = Annotated[int | None, option("Threads to use.", default="all processors", min=1, max=MAX_THREADS)]


Batch = TypeVar("Batch", bound=Sized)

_STEP_ROWS = 1_000
_STEP_S = 0.1


def with_progress(what: str, batches: Iterable[Batch], total: int | None, *, steps: bool = False) -> Iterator[Batch]:
    """The batches, with a progress bar on standard error where that is a terminal, which then may come in steps.

    Steps take no long, so that the bar moves; without a bar, batches stay whole, which is fastest.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield from batches
        return
    with _bar(console) as progress:
        task = progress.add_task(what, total=total)
        for batch in batches:
            for step in in_steps(batch) if steps else (batch,):
                yield step
                progress.advance(task, len(step))


def in_steps(batch: Any, clock: Callable[[], float] = time.monotonic) -> Iterator[Any]:
    """A batch in slices of 1,000 rows, or of as many as are done in a tenth of a second."""
    first, size = 0, _STEP_ROWS
    while first < len(batch):
        start = clock()
        yield batch.slice(first, size)
        first += size
        size = max(_STEP_ROWS, int(size * _STEP_S / max(clock() - start, 1e-6)))


def is_terminal_of_messages(output: str) -> bool:
    """Whether output to a path shows on the terminal that shows standard error."""
    try:
        there = os.fstat(1) if output == STANDARD_STREAM else os.stat(output)
        return os.isatty(2) and stat.S_ISCHR(there.st_mode) and there.st_rdev == os.fstat(2).st_rdev
    except OSError:
        return False


def _bar(console: Console) -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            rate = task.finished_speed or task.speed
            return Text("" if rate is None else f"{rate:,.0f}/s")

    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(),
        TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn(),
    )  # fmt: skip
    return Progress(*columns, console=console, transient=True)


def status(what: str, console: Console | None = None) -> contextlib.AbstractContextManager[object]:
    """Shows the progress of work, on a console (default: standard error) that is a terminal."""
    if console is None:
        from rich.console import Console

        console = Console(stderr=True)
    return console.status(what) if console.is_terminal else contextlib.nullcontext()


@contextlib.contextmanager
def invalid_rows(*, skip: bool, most: int = 1) -> Iterator[InvalidRows]:
    """What takes rows that cannot be used. However the work ends, a line says then how many were skipped, if any.

    If `most` is greater than 1, the first `most` have a line each before that one, or all if no terminal shows them.
    """
    from tagmatch.files.columns import InvalidRows

    invalid = InvalidRows(skip=skip, most=most if most == 1 or sys.stderr.isatty() else sys.maxsize)
    try:
        yield invalid
    finally:
        if invalid.count:
            rows = counted(invalid.count, "invalid row")
            if most > 1:
                for error in invalid.first:
                    typer.echo(f"tagmatch: skipped: {error}", err=True)
                is_part = invalid.count > len(invalid.first)
                shown = f", the first {most} are above; 2> FILE writes all to a file" if is_part else ""
                typer.echo(f"tagmatch: skipped {rows}{shown}", err=True)
            else:
                typer.echo(f"tagmatch: skipped {rows}; the first: {invalid.first[0]}", err=True)


@contextlib.contextmanager
def other_columns(ignored: tuple[str, ...], data: Iterable[str] = ()) -> Iterator[OtherColumns]:
    """What takes columns of sets that have no meaning; if some do, a line names them when all has been read."""
    from tagmatch.files.columns import OtherColumns
    from tagmatch.model.input.subscriptions import COLUMNS

    others = OtherColumns((*COLUMNS, *data), ignored)
    yield others
    if others.seen:
        names = ", ".join(map(repr, others.seen))
        typer.echo(
            f"tagmatch: columns without a meaning were left aside: {names}; --ignore-columns leaves out this line",
            err=True,
        )


def note(text: str) -> None:
    """Tell a person at the terminal; keep logs of scripts quiet."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)
