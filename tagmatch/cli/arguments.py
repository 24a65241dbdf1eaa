"""Arguments and options that several commands have, and what command lines have in common."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tagmatch import __version__
from tagmatch.options import MAX_THREADS


def command_line(description: str) -> typer.Typer:
    """A command line with subcommands, in the manner of all of ours: plain help and tracebacks, `--version`."""
    app = typer.Typer(
        help=description,
        no_args_is_help=True,
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


class LayoutName(StrEnum):
    """The layouts, as a command line takes them."""

    rarest = "rarest"
    balanced = "balanced"


Threads = Annotated[int | None, typer.Option(min=1, max=MAX_THREADS, help="Threads to use.  [default: all processors]")]
