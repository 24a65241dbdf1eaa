"""What a person at the terminal sees of work that takes long."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, TypeVar

import typer

from tagmatch.files.formats import STANDARD_STREAM
from tagmatch.files.invalid import InvalidRows

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from tagmatch.files.others import OtherColumns

Batch = TypeVar("Batch", bound=Sized)

_STEP_ROWS = 1_000
_STEP_S = 0.1


def with_progress(what: str, batches: Iterable[Batch], total: int | None) -> Iterator[Batch]:
    """The batches, with a progress bar on standard error where that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    with _bar(what, console, total, shown=console.is_terminal) as advance:
        for batch in batches:
            yield batch
            advance(len(batch))


def in_steps(
    what: str, batches: Iterable[pa.RecordBatch], total: int | None, *, shown: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of batches, with a progress bar on standard error if it is to be shown: then in steps that take no long.

    Without one, batches stay whole, which is fastest.
    """
    if not shown:
        yield from batches
        return
    from rich.console import Console

    with _bar(what, Console(stderr=True), total, shown=True) as advance:
        for batch in batches:
            for step in steps(batch):
                yield step
                advance(len(step))


def steps(batch: pa.RecordBatch, clock: Callable[[], float] = time.monotonic) -> Iterator[pa.RecordBatch]:
    """A batch in slices of 1,000 rows, or of as many as are done in a tenth of a second."""
    first, size = 0, _STEP_ROWS
    while first < len(batch):
        start = clock()
        yield batch.slice(first, size)
        first += size
        size = max(_STEP_ROWS, int(size * _STEP_S / max(clock() - start, 1e-6)))


def is_terminal_of_messages(output: str) -> bool:
    """Whether what is written to a path shows on the terminal that shows standard error."""
    try:
        there = os.fstat(1) if output == STANDARD_STREAM else os.stat(output)
        return os.isatty(2) and stat.S_ISCHR(there.st_mode) and there.st_rdev == os.fstat(2).st_rdev
    except OSError:
        return False


@contextlib.contextmanager
def _bar(what: str, console: Console, total: int | None, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Give a function that moves the bar by a number of rows."""
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
    with Progress(*columns, console=console, disable=not shown, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda rows: progress.advance(task, rows)


def note_compilation() -> None:
    """Tell a person at the terminal if the kernels are being compiled, which takes as long as nothing else."""
    from tagmatch.model.kernels.jit import on_first_compilation

    on_first_compilation(lambda: note("compiling kernels, once, about 30 s"))


def status(what: str, console: Console | None = None) -> contextlib.AbstractContextManager[object]:
    """Shows what is going on, on a console (default: standard error) that is a terminal."""
    if console is None:
        from rich.console import Console

        console = Console(stderr=True)
    return console.status(what) if console.is_terminal else contextlib.nullcontext()


@contextlib.contextmanager
def invalid_rows(*, skip: bool) -> Iterator[InvalidRows]:
    """What takes rows that cannot be used. However the work ends, a line says then how many were skipped, if any."""
    invalid = InvalidRows(skip=skip)
    try:
        yield invalid
    finally:
        if invalid.count:
            rows = "row" if invalid.count == 1 else "rows"
            typer.echo(f"tagmatch: skipped {invalid.count} invalid {rows}; the first: {invalid.first}", err=True)


@contextlib.contextmanager
def other_columns(ignored: tuple[str, ...]) -> Iterator[OtherColumns]:
    """What takes columns of sets that have no meaning; if some do, a line names them when all has been read."""
    from tagmatch.files.others import OtherColumns
    from tagmatch.subscriptions import COLUMNS

    others = OtherColumns(COLUMNS, ignored)
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
