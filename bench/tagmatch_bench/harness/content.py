"""Systems that match constraints on attributes: built alike, timed in turn, all at once or one by one, and compared."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow.compute as pc

from tagmatch_bench.harness.reference import satisfied_rows
from tagmatch_bench.harness.results import Answers
from tagmatch_bench.harness.timing import Samples, rates
from tagmatch_bench.systems.catalogue import CONTENT, CONTENT_ONE_BY_ONE, CONTENT_PHASES, CONTENT_SHARED, ENCODED
from tagmatch_bench.systems.matcher import CallSize, UnavailableError, count_keys, wrong_and_missing
from tagmatch_bench.systems.tagmatch_content import TagmatchContent, TagmatchMatching, TagmatchOneByOne
from tagmatch_bench.systems.tagmatch_encoded import TagmatchEncoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from tagmatch.model.arrays import U64Array
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result
    from tagmatch_bench.systems.content_matcher import ContentMatcher, Messages
    from tagmatch_bench.systems.matcher import Matcher


WHOLE, MATCHING = "tagmatch, end to end", "tagmatch, matching alone"
GPU = "tagmatch, end to end, GPU"
OCM, SFF = "OCM", "SFF"

# Those that take all that a scenario says
_OURS = (TagmatchContent, TagmatchMatching, TagmatchOneByOne, TagmatchEncoded)

#: Constraints that brute force compares, about, and of how many messages at least and at most
_COMPARED, _FEWEST, _MOST = 5e7, 5, 200
#: Of what OCM answers while it is timed, how many times as many messages others are compared with it on
_MORE = 5


@dataclass(frozen=True)
class Scenario:
    """Subscriptions and messages.

    Attributes
    ----------
    name : str
    subscriptions : pyarrow.Table
        Columns `key` and `constraints`, as the compared systems take them.
    messages : pyarrow.Table
        A column for each attribute.
    own_subscriptions, own_messages : pyarrow.Table, optional
        The same as `TagMatch` takes them, where they say more: with long texts, several values, or tags.
    """

    name: str
    subscriptions: pa.Table
    messages: pa.Table
    own_subscriptions: pa.Table | None = None
    own_messages: pa.Table | None = None

    @property
    def stored(self) -> pa.Table:
        """What `TagMatch` takes."""
        return self.subscriptions if self.own_subscriptions is None else self.own_subscriptions

    @property
    def asked(self) -> pa.Table:
        """And is asked."""
        return self.messages if self.own_messages is None else self.own_messages

    @cached_property
    def constraints(self) -> int:
        """How many constraints there are."""
        return int(pc.sum(pc.list_value_length(self.subscriptions["constraints"])).as_py())

    @property
    def sample(self) -> int:
        """How many messages brute force answers."""
        return min(max(int(_COMPARED / max(self.constraints, 1)), _FEWEST), _MOST, len(self.messages))

    @cached_property
    def right(self) -> list[U64Array]:
        """Right answers to the first messages, each key once."""
        keys = self.subscriptions["key"].to_numpy()
        return [np.unique(keys[rows]) for rows in satisfied_rows(self.subscriptions, self.messages[: self.sample])]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found of a scenario: microseconds a message by system, and the keys of an answer in the mean."""

    micros: Mapping[str, Samples]
    keys_per_message: float

    def ratio(self, system: str, other: str) -> float:
        """How many times as fast as another one a system is."""
        return self.micros[other].over(self.micros[system])


def measure(bench: Bench, result: Result, scenario: Scenario, whole: TagmatchContent) -> Measured:
    """Time all systems on one thread, each key of an answer once, and compare all answers."""
    systems: dict[str, Matcher[Any]] = {WHOLE: whole, MATCHING: TagmatchMatching(whole)}
    with ExitStack() as stack:
        for name, system in {**CONTENT, **CONTENT_PHASES}.items():
            with bench.doing(f"content: building {name}, {scenario.name}"):
                systems[name] = system(scenario.subscriptions, 1)
                stack.callback(systems[name].close)
        try:
            systems[GPU] = whole.again(device="cuda")
            stack.callback(systems[GPU].close)
        except UnavailableError as error:
            result.unavailable[GPU] = str(error)
        return timed(bench, result, scenario, systems)


def timed(bench: Bench, result: Result, scenario: Scenario, systems: Mapping[str, Matcher[Any]]) -> Measured:
    """Time these systems in turn, and compare all answers."""
    options = bench.options
    prepared = {
        name: system.prepare(scenario.asked if isinstance(system, _OURS) else scenario.messages)
        for name, system in systems.items()
    }

    def ask(name: str, count: int) -> Any:
        return systems[name].match_many(prepared[name][:count], unique=True)

    sizes = {name: CallSize(whole=each.packet_size) for name, each in prepared.items() if hasattr(each, "packet_size")}
    # A device has work for all threads, and is slower with less
    if isinstance(on_gpu := systems.get(GPU), TagmatchContent):
        sizes[GPU] = on_gpu.call_size
    with bench.doing(f"content: matching, {scenario.name}"):
        works = {name: partial(ask, name) for name in systems}
        found = rates(works, len(scenario.messages), rounds=options.rounds, seconds=options.seconds, sizes=sizes)
    with bench.doing(f"content: checking, {scenario.name}"):
        keys = _compare(result, scenario, systems, prepared, found)
    micros = {name: Samples(tuple(1e6 / rate for rate in found[name].values), found[name].items) for name in found}
    return Measured(micros, keys)


def _compare(
    result: Result,
    scenario: Scenario,
    systems: Mapping[str, Matcher[Any]],
    prepared: Mapping[str, Any],
    found: Mapping[str, Samples],
) -> float:
    """Compare the answers with those of brute force, and with those of OCM to all that were timed, if it is there.

    Returns the keys of an answer, in the mean.
    """
    messages = len(scenario.messages)
    others = min(messages, _MORE * found[OCM].items) if OCM in found else 0
    answers = {
        name: systems[name].match_many(
            prepared[name][: min(messages, max(scenario.sample, others if name == OCM else found[name].items))],
            unique=True,
        )
        for name in systems
    }
    for name, given in answers.items():
        add_answers(result, f"{scenario.name}, beside brute force", name, given[: scenario.sample], scenario.right)
        if name != OCM and OCM in answers:
            both = min(len(given), len(answers[OCM]))
            add_answers(result, f"{scenario.name}, beside OCM", name, given[:both], answers[OCM][:both])
    most = max(answers.values(), key=len)
    return count_keys(most) / max(len(most), 1)


def add_answers(result: Result, where: str, system: str, given: Any, right: Any) -> None:
    """Add how an exact system's answers compare with the right ones."""
    wrong, missing = wrong_and_missing(given, right)
    result.answers.append(Answers(where, system, True, len(given), count_keys(given), wrong, missing))


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
        builds = _builds_one_by_one(bench, scenario, stack, built)
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


def _builds_one_by_one(
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
