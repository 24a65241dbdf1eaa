"""Latency of systems that match constraints on attributes: microseconds an event, of events that come one by one."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from tagmatch_bench.harness.content import OCM, timed
from tagmatch_bench.systems.catalogue import CONTENT_ONE_BY_ONE, CONTENT_SHARED, ENCODED
from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.tagmatch_content import TagmatchContent, TagmatchOneByOne
from tagmatch_bench.systems.tagmatch_encoded import TagmatchEncoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.content import Measured, Scenario
    from tagmatch_bench.harness.results import Result
    from tagmatch_bench.systems.content_matcher import ContentMatcher, Messages
    from tagmatch_bench.systems.matcher import Matcher

#: Our own, called for each event, as its users call it
OURS, OURS_ON_GPU = "tagmatch", "tagmatch, GPU"
#: OCM called like that, too, so that one sees what the calls take
OCM_CALLED = "OCM, a call each"

#: All there are, in the order of tables. All but those three take the events in one call, whose kernel, or on a device
#: whose loop, has them one after the other: what the papers' programs do.
ALL = (*CONTENT_ONE_BY_ONE, OCM_CALLED, OURS, *ENCODED, OURS_ON_GPU)


class _Called:
    """A system that is called for each message."""

    def __init__(self, system: ContentMatcher) -> None:
        self._system = system
        self.exact = system.exact

    def prepare(self, messages: pa.Table) -> list[Messages]:
        prepared = self._system.prepare(messages)
        return [prepared[i : i + 1] for i in range(len(messages))]

    def match_many(self, messages: list[Messages], *, unique: bool = False) -> list[Any]:
        return [self._system.match_many(each, unique=unique)[0].values for each in messages]

    def nbytes(self) -> int | None:
        return self._system.nbytes()

    def close(self) -> None:
        """Leave the system open, which is not this one's."""


def latency(bench: Bench, result: Result, scenario: Scenario, systems: Iterable[str] = ALL) -> Measured:
    """Time systems in turn, event by event, each key of an answer once, and compare all answers with brute force.

    Those that share a message out to threads have `bench.options.threads`, all others one. A call has as many of the
    scenario's events as take about `bench.options.seconds`, and there are `bench.options.rounds` of them. What is to be
    skipped and what cannot run here is noted in the result.

    Parameters
    ----------
    bench : Bench
    result : Result
        Takes the comparisons, too: with brute force, and where OCM is there, with its answers to more events.
    scenario : Scenario
    systems : iterable of str
        Of `ALL`.

    Returns
    -------
    Measured
        Microseconds an event, of each system that runs here.
    """
    with ExitStack() as stack:
        built: dict[str, Matcher[Any]] = {}
        builds = _builds(bench, scenario, stack, built)
        for name in systems:
            if name in bench.options.skip:
                result.unavailable[name] = "skipped"
                continue
            with bench.doing(f"{result.name}: building {name}, {scenario.name}"):
                try:
                    built[name] = builds[name]()
                except UnavailableError as error:
                    result.unavailable[name] = str(error)
                    continue
            stack.callback(built[name].close)
        return timed(bench, result, scenario, built)


def _builds(
    bench: Bench, scenario: Scenario, stack: ExitStack, built: Mapping[str, Matcher[Any]]
) -> dict[str, Callable[[], Matcher[Any]]]:
    """How each system is built; what several have in common is built once."""

    @cache
    def whole() -> TagmatchContent:
        made = TagmatchContent(scenario.stored)
        stack.callback(made.close)
        return made

    def on_gpu() -> Matcher[Any]:
        other = whole().again(device="cuda")
        stack.callback(other.close)
        return TagmatchOneByOne(other)

    def encoded(name: str) -> Matcher[Any]:
        (segment,) = whole().index.snapshot.segments
        return TagmatchEncoded.of(segment, ENCODED[name].options["path"])

    def compared(name: str) -> Matcher[Any]:
        threads = bench.options.threads if name in CONTENT_SHARED else 1
        return CONTENT_ONE_BY_ONE[name](scenario.subscriptions, threads)

    return {
        **{name: partial(compared, name) for name in CONTENT_ONE_BY_ONE},
        OCM_CALLED: lambda: _Called(cast("ContentMatcher", built.get(OCM) or compared(OCM))),
        OURS: lambda: TagmatchOneByOne(whole()),
        **{name: partial(encoded, name) for name in ENCODED},
        OURS_ON_GPU: on_gpu,
    }
