"""The command line `tagmatch-workload`."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagmatch import __version__
from tagmatch.cli.run import run
from tagmatch.cli.shared import Threads, command_line, note, status, with_progress
from tagmatch.files.formats import STANDARD_STREAM
from tagmatch.model.errors import InputFileError, TagMatchError
from tagmatch.model.options import available_threads
from tagmatch.model.parallel import even_ranges
from tagmatch.workloads.commands.content import content
from tagmatch.workloads.commands.location import location
from tagmatch.workloads.commands.numbers import with_numbers
from tagmatch.workloads.pacing import arrival_times, paced
from tagmatch.workloads.queries import Extender, QueryOptions, StoredSets
from tagmatch.workloads.queries.stored import SCHEMA, json_lines, read_tags, rows, stream_to_folder, stream_to_stdout
from tagmatch.workloads.shards import new_folder, read_facts, row_writer, write_shards
from tagmatch.workloads.twitter import Twitter, TwitterOptions
from tagmatch.workloads.twitter.corpus import Corpus, read_followed, read_tweets
from tagmatch.workloads.twitter.generate import MAX_USERS, SETS_SCHEMA
from tagmatch.workloads.twitter.laws import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

app = command_line(
    "Generate workloads: the Twitter-like one of §4.2 of the TagMatch paper, stored sets and queries, a "
    "content-based one, constraints and attributes, and a location-based one, areas and positions."
)

_MAX_SHARDS = 100_000
# Rows made at once: for a file, and for a stream, whose first rows are wanted soon
_FILE_ROWS, _STREAM_ROWS = 1 << 18, 1 << 13

_Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the random numbers.")]
_Tweets = Annotated[
    str | None,
    typer.Option(
        "--tweets",
        metavar="FILE",
        help="Real tweets: a Parquet, CSV or JSON Lines file with columns `author`, `hashtags` or `text`, and "
        "optionally `language`.",
    ),
]


class _Draw(StrEnum):
    frequency = "frequency"
    uniform = "uniform"


@app.command()
@with_numbers({"twitter": TwitterOptions()})
def twitter(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to be made.", show_default=False)],
    *,
    users: Annotated[int, typer.Option(min=1, max=MAX_USERS, help="Users; their numbers are the keys.")] = 30_000,
    tweets: _Tweets = None,
    followers: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A real distribution of the number of followed publishers: a Parquet, CSV or JSON Lines file with "
            "columns `followers` and optionally `users`, how many users follow that many.",
        ),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, max=_MAX_SHARDS, help="Files to write.  [default: 4 a thread]")
    ] = None,
    threads: Threads = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a workload that is in the folder.")] = False,
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
            corpus = read_tweets(tweets, threads=threads)
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
        typer.Argument(
            metavar="SETS",
            help="Parquet or JSON Lines file with column `tags`, or a folder of Parquet files; - for JSON Lines on "
            "standard input.",
            show_default=False,
        ),
    ],
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="Parquet or JSON Lines file (by suffix), with --rate a folder; - for JSON Lines on standard output.",
            show_default=False,
        ),
    ],
    count: Annotated[
        int | None,
        typer.Option(min=1, max=2**62, help="Queries.  [default: 100000, with --rate without end]", show_default=False),
    ] = None,
    min_extra: Annotated[int, typer.Option(min=0, help="Fewest tags besides the stored set.")] = 2,
    max_extra: Annotated[int, typer.Option(min=0, help="Most tags besides the stored set.")] = 4,
    draw: Annotated[
        _Draw, typer.Option(help="Draw these tags in proportion to their frequency in SETS, or all alike.")
    ] = _Draw.frequency,
    plain: Annotated[
        bool, typer.Option("--plain", help="Write plain tweets instead, with their authors; SETS is of `twitter`.")
    ] = False,
    tweets: _Tweets = None,
    rate: Annotated[
        float | None, typer.Option(help="Write this many queries a second, when they are due.", show_default=False)
    ] = None,
    burstiness: Annotated[
        float,
        typer.Option(
            min=0,
            help="With --rate, squared coefficient of variation of the gaps: 0 even, 1 a Poisson stream, more: bursts.",
        ),
    ] = 1.0,
    interval: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=1e9,
            help="With --rate and a folder, seconds of queries in a file; the file of an interval appears at its end.",
        ),
    ] = 1.0,
    seed: _Seed = 1,
    threads: Threads = None,
) -> None:
    """Generate queries: a random stored set each and a few random tags more (§4.2.2); columns `id` and `tags`."""
    threads = threads or available_threads()
    times = None if rate is None else _usage("--rate and --burstiness", lambda: arrival_times(rate, burstiness, seed))
    if rate is not None and out != STANDARD_STREAM and Path(out).suffix:
        raise typer.BadParameter(f"with --rate, it is a folder or -, not {out}", param_hint="OUT")
    options = _usage("--max-extra", lambda: QueryOptions(seed, min_extra, max_extra, draw.value))
    if plain:
        make: Callable[[int, int], pa.ListArray] = partial(_twitter_of(sets, tweets, threads).plain_tweets, seed=seed)
    else:
        if tweets is not None:
            raise typer.BadParameter("is for --plain only", param_hint="--tweets")
        with status("reading sets"):
            stored = StoredSets.learn(read_tags(sets), seed=seed, threads=threads)
        if not len(stored):
            raise InputFileError(f"{sets} holds no sets that queries could extend")
        make = partial(Extender(stored, options).queries, threads=threads)
    if times is None:
        count = count or 100_000
        with row_writer(out, SCHEMA, json_lines) as write:
            for batch in with_progress("generating", rows(make, count, _FILE_ROWS), count):
                write(batch)
        return
    pairs = paced(rows(make, count, _STREAM_ROWS), times)
    written: Any = stream_to_stdout(pairs) if out == STANDARD_STREAM else stream_to_folder(pairs, Path(out), interval)
    # A stream ends when its user has had enough
    with contextlib.suppress(KeyboardInterrupt):
        for _ in with_progress("streaming", written, count):
            pass


app.command()(content)
app.command()(location)


def _usage(option: str, make: Callable[[], Any]) -> Any:
    """Return what `make` makes; a value that it refuses is a wrong use of the command."""
    try:
        return make()
    except TagMatchError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _twitter_of(sets: str, tweets: str | None, threads: int) -> Twitter:
    """Return what generated a folder of stored sets."""
    facts = read_facts(Path(sets))
    if facts is None or facts.get("generator") != "twitter":
        raise InputFileError(f"{sets} was not made by `tagmatch-workload twitter`, as --plain needs")
    try:
        options = TwitterOptions(**facts["options"])
    except (TypeError, KeyError, TagMatchError) as error:
        raise InputFileError(f"{sets}: its options in _workload.json cannot be used: {error}") from None
    made_of = facts.get("tweets")
    corpus: Corpus | None = None
    if made_of is None and tweets is not None:
        raise InputFileError(f"{sets} was made of synthetic tweets; leave out --tweets")
    if made_of is not None:
        if tweets is None:
            raise InputFileError(f"{sets} was made of the tweets in {made_of['file']}; give them with --tweets")
        corpus = read_tweets(tweets, threads=threads)
        if corpus.facts() != {name: made_of[name] for name in corpus.facts()}:
            raise InputFileError(f"{tweets} does not hold the tweets that {sets} was made of")
    return Twitter(options, corpus=corpus, followed=NOBODY)  # tweets do not depend on who follows whom


def main() -> None:
    """Entry point of the command `tagmatch-workload`."""
    run(app)
