"""The command line `tagmatch-workload`.

Its generators have their numbers as options.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, asdict, fields, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer

from tagmatch import __version__
from tagmatch.cli.shared import Threads, argument, command_line, note, option, run, status, with_options, with_progress
from tagmatch.files.formats import JSON_SUFFIXES, PARQUET_SUFFIXES, STANDARD_STREAM, is_stream
from tagmatch.files.rows import row_writer
from tagmatch.model.errors import InputFileError, TagMatchError
from tagmatch.model.options import available_threads
from tagmatch.model.parallel import even_ranges
from tagmatch.workloads import queries as of_queries
from tagmatch.workloads.archives import (
    Corpus,
    new_folder,
    read_facts,
    read_followed,
    read_tweets,
    write_shards,
)
from tagmatch.workloads.numbers import MAX_ROWS, NOBODY
from tagmatch.workloads.twitter import SETS_SCHEMA, Twitter, TwitterOptions


def of_numbers(scenarios: Mapping[str, Any]) -> Callable[..., Any]:
    """What makes an object of a data class, one of these scenarios with what the user gives, for `with_options`.

    There is an option for each field that `tagmatch.workloads.numbers.number` made. Where there are several scenarios,
    an option `--scenario` chooses one, the first by default.
    """
    default = next(iter(scenarios))

    def make(scenario: str = default, **numbers: Any) -> Any:
        return replace(scenarios[scenario], **{name: value for name, value in numbers.items() if value is not None})

    options = [_parameter(each, scenarios) for each in fields(scenarios[default]) if each.metadata]
    if len(scenarios) > 1:
        text = "What numbers are where no option says otherwise."
        options.insert(0, _keyword("scenario", Literal[tuple(scenarios)], option(text), default))
    make.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return make


def _parameter(number: Field[Any], scenarios: Mapping[str, Any]) -> inspect.Parameter:
    (_, usual), *others = ((name, getattr(options, number.name)) for name, options in scenarios.items())
    default = "; ".join([str(usual), *(f"{name}: {value}" for name, value in others if value != usual)])
    low, high, text = (number.metadata[name] for name in ("low", "high", "text"))
    given = option(text, default=default, min=low, max=high)
    return _keyword(number.name, int | None if number.type == "int" else float | None, given, None)


def _keyword(name: str, kind: Any, given: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, given])


app = command_line("Generate workloads: the Twitter-like one of §4.2 of the TagMatch paper, stored sets and queries.")

_MAX_SHARDS = 100_000
# Rows made at once: for a file, and for a stream, whose first rows are wanted soon
_FILE_ROWS, _STREAM_ROWS = 1 << 18, 1 << 13

_Seed = Annotated[int, option("Seed of the random numbers.", min=0, max=2**63 - 1)]
_Tweets = Annotated[
    str | None,
    option(
        "Real tweets: a Parquet, CSV or JSON Lines file with columns `author`, `hashtags` or `text`, and "
        "optionally `language`.",
        "--tweets",
        metavar="FILE",
    ),
]


@app.command()
@with_options(options=of_numbers({"twitter": TwitterOptions()}))
def twitter(
    out: Annotated[Path, argument("OUT", "Folder to be made.")],
    *,
    users: Annotated[int, option("Users; their numbers are the keys.", min=1, max=MAX_ROWS)] = 30_000,
    tweets: _Tweets = None,
    followers: Annotated[
        str | None,
        option(
            "A real distribution of the number of followed publishers: a Parquet, CSV or JSON Lines file with "
            "columns `followers` and optionally `users`, how many users follow that many.",
            metavar="FILE",
        ),
    ] = None,
    shards: Annotated[int | None, option("Files to write.", default="4 a thread", min=1, max=_MAX_SHARDS)] = None,
    threads: Threads = None,
    overwrite: Annotated[bool, option("Replace a workload that is in the folder.", "--overwrite")] = False,
    options: TwitterOptions,
) -> None:
    """Generate stored sets, the interests of users (§4.2.1): Parquet files with columns `tags` and `key`.

    First languages have the shares of tweets that Hong, Convertino, Chi counted (ICWSM 2011), second languages those of
    their speakers (Ethnologue 2019).
    """
    threads = threads or available_threads()
    corpus = None
    if tweets is not None:
        with status("reading tweets"):
            corpus = read_tweets(tweets)
    model = Twitter(options, corpus=corpus, followed=None if followers is None else read_followed(followers))
    with status("counting interests"):
        interests = model.interests(0, users, threads=threads)
    if not interests:
        raise TagMatchError(f"{followers}: none of the {users} users follows a publisher; give more --users")
    new_folder(out, overwrite=overwrite)
    facts = {
        "generator": "twitter",
        "version": __version__,
        "users": users,
        "tweets": None if corpus is None else {"file": tweets, **corpus.facts()},
        "followers": followers,
        "options": asdict(options),
    }
    parts = [partial(model.stream, *part) for part in even_ranges(users, shards or 4 * threads)]
    written = write_shards(out, parts, SETS_SCHEMA, facts, threads=threads)
    for _ in with_progress("generating", written, interests):
        pass
    note(f"{out}: {interests} interests of {users} users")


@app.command()
def queries(
    sets: Annotated[
        str,
        argument(
            "SETS",
            "Parquet or JSON Lines file with column `tags`, or a folder of Parquet files; - for JSON Lines on "
            "standard input.",
        ),
    ],
    out: Annotated[
        str,
        argument(
            "OUT", "Parquet or JSON Lines file (by suffix), with --rate a folder; - for JSON Lines on standard output."
        ),
    ],
    count: Annotated[
        int | None, option("Queries.", default="100000, with --rate without end", min=1, max=2**62)
    ] = None,
    min_extra: Annotated[int, option("Fewest tags besides the stored set.", min=0)] = 2,
    max_extra: Annotated[int, option("Most tags besides the stored set.", min=0)] = 4,
    draw: Annotated[
        of_queries.Draw, option("Draw these tags in proportion to their frequency in SETS, or all alike.")
    ] = "frequency",
    plain: Annotated[
        bool, option("Write plain tweets instead, with their authors; SETS is of `twitter`.", "--plain")
    ] = False,
    tweets: _Tweets = None,
    rate: Annotated[float | None, option("Write this many queries a second, when they are due.")] = None,
    burstiness: Annotated[
        float,
        option(
            "With --rate, squared coefficient of variation of the gaps: 0 even, 1 a Poisson stream, more: bursts.",
            min=0,
        ),
    ] = 1.0,
    interval: Annotated[
        float,
        option(
            "With --rate and a folder, seconds of queries in a file; the file of an interval appears at its end.",
            min=0.001,
            max=1e9,
        ),
    ] = 1.0,
    seed: _Seed = 1,
    threads: Threads = None,
) -> None:
    """Generate queries: a random stored set each and a few random tags more (§4.2.2); columns `id` and `tags`."""
    threads = threads or available_threads()
    with _usage("--rate and --burstiness"):
        times = None if rate is None else of_queries.arrival_times(rate, burstiness, seed)
    if rate is not None and out != STANDARD_STREAM and Path(out).suffix:
        raise typer.BadParameter(f"with --rate, it is a folder or -, not {out}", param_hint="OUT")
    with _usage("--max-extra"):
        options = of_queries.QueryOptions(seed, min_extra, max_extra, draw)
    if plain:
        make: Callable[[int, int], pa.ListArray] = partial(_twitter_of(sets, tweets).plain_tweets, seed=seed)
    else:
        if tweets is not None:
            raise typer.BadParameter("is for --plain only", param_hint="--tweets")
        with status("reading sets"):
            stored = of_queries.StoredSets.learn(of_queries.read_tags(sets), seed=seed, threads=threads)
        if not len(stored):
            raise InputFileError(f"{sets} holds no sets that queries could extend")
        make = partial(of_queries.Extender(stored, options).queries, threads=threads)
    if times is None:
        count = count or 100_000
        is_text(out)
        with row_writer(out, of_queries.SCHEMA, with_nulls=False) as write:
            for batch in with_progress("generating", of_queries.rows(make, count, _FILE_ROWS), count):
                write(batch)
        return
    pairs = of_queries.paced(of_queries.rows(make, count, _STREAM_ROWS), times)
    written: Any = (
        of_queries.stream_to_stdout(pairs)
        if out == STANDARD_STREAM
        else of_queries.stream_to_folder(pairs, Path(out), interval)
    )
    # A stream ends when its user has had enough
    with contextlib.suppress(KeyboardInterrupt):
        for _ in with_progress("streaming", written, count):
            pass


def is_text(path: str) -> bool:
    """Whether a file is of JSON Lines, not Parquet; TagMatchError if its name says that it is of neither."""
    suffix = Path(path).suffix.lower()
    if not is_stream(path) and suffix not in PARQUET_SUFFIXES | JSON_SUFFIXES:
        known = ", ".join(sorted(PARQUET_SUFFIXES | JSON_SUFFIXES))
        raise TagMatchError(f"{path}: the name must end in one of {known}")
    return suffix not in PARQUET_SUFFIXES


@contextlib.contextmanager
def _usage(name: str) -> Iterator[None]:
    """A value that is refused within is a wrong use of the command."""
    try:
        yield
    except TagMatchError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


def _twitter_of(sets: str, tweets: str | None) -> Twitter:
    """Return what generated a folder of stored sets."""
    facts = read_facts(Path(sets))
    if facts is None or facts.get("generator") != "twitter":
        raise InputFileError(f"{sets} was not made by `tagmatch-workload twitter`, as --plain needs")
    try:
        options, made_of = TwitterOptions(**facts["options"]), facts.get("tweets")
        file = None if made_of is None else made_of["file"]
    except (TypeError, KeyError, TagMatchError) as error:
        raise InputFileError(f"{sets}: its options in _workload.json cannot be used: {error}") from None
    corpus: Corpus | None = None
    if made_of is None and tweets is not None:
        raise InputFileError(f"{sets} was made of synthetic tweets; leave out --tweets")
    if made_of is not None:
        if tweets is None:
            raise InputFileError(f"{sets} was made of the tweets in {file}; give them with --tweets")
        corpus = read_tweets(tweets)
        if {"file": file, **corpus.facts()} != made_of:
            raise InputFileError(f"{tweets} does not hold the tweets that {sets} was made of")
    return Twitter(options, corpus=corpus, followed=NOBODY)  # tweets do not depend on who follows whom


def main() -> None:
    """Entry point of the command `tagmatch-workload`; other packages add commands to it, as tagmatch-bench does."""
    for commands in entry_points(group="tagmatch.workloads"):
        commands.load()
    run(app)
