"""How all command lines run: errors become one line on standard error and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator

import typer

from tagmatch.cli.interrupt import end_if_interrupted
from tagmatch.files.streams import STANDARD_OUTPUT, whole_text
from tagmatch.model.errors import TagMatchError


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
            _give_up_output()
        if line:
            typer.echo(f"tagmatch: {' '.join(line.split())}", err=True)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


def _line(error: BaseException) -> str | None:
    """What a person is to read about an error; `None` if the error is none of those expected."""
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


def _give_up_output() -> None:
    """Standard output may take no more, as its reader has gone or its disk is full; nor may it be tried at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
