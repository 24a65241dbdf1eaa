"""What a person at the terminal sees of work that takes long."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

Batch = TypeVar("Batch", bound=Sized)


def with_progress(what: str, batches: Iterable[Batch], total: int | None) -> Iterator[Batch]:
    """The batches, with a progress bar on standard error where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

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
    if console is None:
        from rich.console import Console

        console = Console(stderr=True)
    return console.status(what) if console.is_terminal else contextlib.nullcontext()


def note(text: str) -> None:
    """Tell a person at the terminal; keep logs of scripts quiet."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)
