"""Single messages with attributes, and places: `submit` and `amatch` beside `match`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tagmatch.workloads.content import SCENARIOS as CONTENT
from tagmatch.workloads.content import Content
from tagmatch.workloads.location import SCENARIOS as LOCATED
from tagmatch.workloads.location import Location
from tagmatch_bench.harness.results import Target
from tagmatch_bench.harness.timing import Samples, alternate
from tagmatch_bench.systems.tagmatch_content import TagmatchContent, TagmatchOneByOne
from tagmatch_bench.systems.tagmatch_located import LocatedOneByOne, TagmatchLocated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tagmatch import TagMatch
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result

    # What `match`, `submit` and `amatch` get
    Asked = tuple[tuple[Any, ...], dict[str, Any]]

# Keys of a small answer, at most: as many as `submit` gives at once
_SMALL = 4096
#: Percent
_DONE = Target(100)
_AGAINST_MATCH = Target(2, at_most=True)


def at_once(bench: Bench, result: Result) -> None:
    """How long `submit` and `amatch` take for a message, and how many futures are done when `submit` returns."""
    for what, index, messages in _indexes(bench):
        with index, bench.doing(f"threads: single messages, {what}"):
            small = [(given, named) for given, named in messages if len(index.match(*given, **named)) <= _SMALL]
            futures = [index.submit(*given, **named).done() for given, named in small]
            seconds = _seconds(bench, index, small)
        done = Samples((100 * sum(futures) / max(1, len(futures)),))
        result.add(
            f"{what}: futures that are done when submit returns, of {len(small):,} small answers", done, "%", _DONE
        )
        for way in ("submit", "amatch"):
            ratio = seconds[way].ratios(seconds["match"])
            result.add(f"{what}: {way} against match", ratio, "times as long", _AGAINST_MATCH)


def _indexes(bench: Bench) -> Iterator[tuple[str, TagMatch, list[Asked]]]:
    """Subscriptions of the workloads of PCM and CLCB, as many as there are sets, and messages."""
    count, queries = bench.sets(), bench.queries
    content, location = Content(CONTENT["pcm"]), Location(LOCATED["clcb"])
    whole = TagmatchContent(content.subscriptions(0, min(count, content.filters)), threads=bench.options.threads)
    attributes = TagmatchOneByOne(whole).prepare(content.messages(0, queries))
    yield "conditions", whole.index, [(((), each), {}) for each in attributes]
    located = TagmatchLocated(location.subscriptions(0, min(count, location.filters)), threads=bench.options.threads)
    rows = LocatedOneByOne(located).prepare(location.messages(0, queries))
    yield "areas and conditions", located.index, [((tags, each), {"location": place}) for tags, each, place in rows]


def _seconds(bench: Bench, index: TagMatch, messages: list[Asked]) -> dict[str, Samples]:
    """Seconds that all messages take, one after the other, by each way to ask, in turn."""

    def match() -> None:
        for given, named in messages:
            index.match(*given, **named)

    def submit() -> None:
        for given, named in messages:
            index.submit(*given, **named).result()

    async def await_each() -> None:
        for given, named in messages:
            await index.amatch(*given, **named)

    ways = {"match": match, "submit": submit, "amatch": lambda: asyncio.run(await_each())}
    return alternate(ways, bench.options.rounds)
