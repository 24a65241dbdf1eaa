"""Options of `tagmatch-bench`: the parameters of its commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import typer

from tagmatch.cli.shared import Threads

#: The sets of the growth measurement, 8 times as many, must fit the tagset table
MOST_SETS = 2**28
MOST_FILTERS = 100_000_000


def _parameter(name: str, kind: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def option(name: str, kind: Any, default: Any, words: str, *flags: str, **more: Any) -> Parameter:
    """An option of a command; `more` are arguments of `typer.Option`."""
    return _parameter(name, kind, typer.Option(default, *flags, help=words, **more))


def again(name: str, kind: Any, usual: str, words: str, *flags: str, **more: Any) -> Parameter:
    """An option that may be given several times; numbers come in ascending order, each once."""
    words = f"{words}; again for each.  [default: {usual}]"
    return option(
        name, list[kind] | None, None, words, *flags, **({"callback": _ascending, "show_default": False} | more)
    )


def named(name: str, known: Callable[[], Iterable[str]], words: str, **more: Any) -> Parameter:
    """An option of known names, which are looked up when one is given."""

    def check(names: list[str] | None) -> list[str] | None:
        for each in names or ():
            if each not in (all_known := list(known())):
                raise typer.BadParameter(f"{each!r} is not one of {', '.join(map(repr, all_known))}")
        return names

    kind = typer.Argument if more.pop("positional", False) else typer.Option
    return _parameter(name, list[str] | None, kind(None, callback=check, help=words, show_default=False, **more))


def skip(known: Callable[[], Iterable[str]], what: str = "system") -> Parameter:
    """What leaves out systems."""
    return named("skip", known, f"Leave out {'an' if what[0] in 'aeiou' else 'a'} {what}.", metavar=what.upper())


def part(names: Sequence[str]) -> Parameter:
    """Which parts of an experiment are wanted."""
    return one_or_more("parts", names, "all", "--part")


def one_of(names: Sequence[str]) -> dict[str, Any]:
    """Arguments of an option that must be one of these names."""

    def read(text: str) -> str:
        if text not in names:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, names))}")
        return text

    return {"parser": read, "metavar": f"<{'|'.join(names)}>"}


def one_or_more(name: str, names: Sequence[str], usual: str, flag: str) -> Parameter:
    """Some of these names."""
    words = f"Again for each.  [default: {usual}]"
    return option(name, list[str] | None, None, words, flag, show_default=False, **one_of(names))


def rounds(default: int = 3) -> Parameter:
    """Measurements of everything."""
    return option("rounds", int, default, "Measurements; their median counts.", min=1, max=1000)


def seconds(default: float = 0.2, words: str = "About what one measured call takes.") -> Parameter:
    """Time of a measurement."""
    return option("seconds", float, default, words, min=0.001, max=3600)


def sets(default: int, **more: Any) -> Parameter:
    """The size of an index."""
    return option("sets", int, default, "Distinct stored sets.", **({"min": 1, "max": MOST_SETS} | more))


def keys(default: float = 5.0, words: str = "Keys that a set has in the mean; with 1, each has one.") -> Parameter:
    """Keys of a set."""
    return option("keys_per_set", float, default, words, "--keys", min=1, max=1000)


def queries(default: int = 200_000, words: str = "Most queries of a call.", most: int = 2**31 - 1) -> Parameter:
    """Queries of a call."""
    return option("queries", int, default, words, min=1, max=most)


def messages(default: int) -> Parameter:
    """Messages of a call."""
    return option("queries", int, default, "Most messages of a call.", "--messages", min=1, max=10_000_000)


def cities(columns: str) -> Parameter:
    """A file of cities."""
    words = f"Cities with {columns}.  [default: the 10,000 largest]"
    more: dict[str, Any] = {"metavar": "PARQUET", "exists": True, "dir_okay": False, "show_default": False}
    return option("cities", Path | None, None, words, **more)


def whole(name: str, default: int, words: str, low: int = 1, most: int = MOST_FILTERS) -> Parameter:
    """A number of things."""
    return option(name, int, default, words, min=low, max=most)


def output(folder: str) -> Parameter:
    """Where results go."""
    flags, more = ("--output", "-o"), {"metavar": "FOLDER", "file_okay": False, "writable": True}
    return option("output", Path, Path("bench-results", folder), "Where results are written.", *flags, **more)


THREADS = Parameter("threads", Parameter.KEYWORD_ONLY, default=None, annotation=Threads)
SEED = option("seed", int, 1, "Seed of the workload.", min=0, max=2**63 - 1)
ALLOW_CHANGES = option(
    "allow_changes", bool, False, "Record results of code that is not committed; they say so.", "--allow-changes"
)


def command(app: typer.Typer, name: str, summary: str, options: Iterable[Parameter], run: Callable[..., None]) -> None:
    """Add a command, which gives `run` its options by name; one with `output` also takes `--allow-changes`."""
    options = [*options]
    recording = [ALLOW_CHANGES] if any(each.name == "output" for each in options) else []

    def call(**given: Any) -> None:
        run(**given)

    call.__signature__ = Signature([*options, *recording])  # type: ignore[attr-defined]
    call.__doc__ = summary
    app.command(name)(call)


def _ascending(values: Sequence[Any] | None) -> list[Any] | None:
    return sorted(set(values)) if values else None
