"""Systems that match constraints on attributes: built alike, timed in turn, all at once or one by one, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import U64Array
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.reference import satisfied_rows
from tagmatch_bench.harness.results import Result
from tagmatch_bench.harness.timing import Samples
from tagmatch_bench.systems.catalogue import CONTENT, CONTENT_ONE_BY_ONE, CONTENT_PHASES, CONTENT_SHARED, ENCODED
from tagmatch_bench.systems.content_matcher import ContentMatcher, Messages
from tagmatch_bench.systems.matcher import CallSize, Matcher, count_keys
from tagmatch_bench.systems.tagmatch_content import TagmatchContent, TagmatchMatching, TagmatchOneByOne
from tagmatch_bench.systems.tagmatch_encoded import TagmatchEncoded

WHOLE, MATCHING = "tagmatch, end to end", "tagmatch, matching alone"
GPU = "tagmatch, end to end, GPU"
OCM, SFF = "OCM", "SFF"
#: One by one: our own, called for each event, as its users call it
OURS, OURS_ON_GPU = "tagmatch", "tagmatch, GPU"
#: OCM called like that, too, so that one sees what the calls take
OCM_CALLED = "OCM, a call each"
#: One by one, all there are, in the order of tables. All but those three take the events in one call, whose kernel, or
#: on a device whose loop, has them one after the other: what the papers' programs do.
ALL = (*CONTENT_ONE_BY_ONE, OCM_CALLED, OURS, *ENCODED, OURS_ON_GPU)

# Those that take all that a scenario says
_OURS = (TagmatchContent, TagmatchMatching, TagmatchOneByOne, TagmatchEncoded)

#: Constraints that brute force compares, about, and of how many messages at least and at most
_COMPARED, _FEWEST, _MOST = 5e7, 5, 200


class Compared(Protocol):
    """Messages to which systems are compared with brute force, and with a system that answers more of them."""

    @property
    def name(self) -> str:
        """What the comparison is named."""

    @property
    def messages(self) -> pa.Table:
        """A column for each attribute."""

    @property
    def right(self) -> Sequence[Any]:
        """Right answers to the first messages, each key once."""

    @property
    def sample(self) -> int:
        """How many messages brute force answers."""

    @property
    def reference(self) -> tuple[str, int]:
        """The system that others are compared with, and how many times its own number of messages they answer."""

    def asked_of(self, system: Any) -> pa.Table:
        """The messages as a system takes them."""

    def edges_of(self, system: Any) -> Callable[[int, int], bool] | None:
        """Of a system of single precision: whether it may have a message's key or not."""


@dataclass(frozen=True)
class Scenario:
    """Subscriptions and messages."""

    name: str
    subscriptions: pa.Table  # columns `key` and `constraints`, as the compared systems take them
    messages: pa.Table  # a column for each attribute
    # the same as `TagMatch` takes them, if they say more: with long texts, several values, or tags
    own_subscriptions: pa.Table | None = None
    own_messages: pa.Table | None = None

    reference = OCM, 5

    @property
    def stored(self) -> pa.Table:
        """What `TagMatch` takes."""
        return self.subscriptions if self.own_subscriptions is None else self.own_subscriptions

    @property
    def asked(self) -> pa.Table:
        """And is asked."""
        return self.messages if self.own_messages is None else self.own_messages

    def asked_of(self, system: Any) -> pa.Table:
        """The messages as a system takes them."""
        return self.asked if isinstance(system, _OURS) else self.messages

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

    def edges_of(self, system: Any) -> None:
        """None, as nothing is rounded."""


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
    others = {
        name: partial(system, scenario.subscriptions, 1) for name, system in {**CONTENT, **CONTENT_PHASES}.items()
    }
    builds: dict[str, Callable[[], Matcher[Any]]] = {**others, GPU: partial(whole.again, device="cuda")}
    with ExitStack() as stack:
        systems = bench.build(result, builds, stack, scenario.name)
        return timed(bench, result, scenario, {WHOLE: whole, MATCHING: TagmatchMatching(whole), **systems})


def timed(bench: Bench, result: Result, scenario: Compared, systems: Mapping[str, Matcher[Any]]) -> Measured:
    """Time these systems in turn, and compare all answers."""
    prepared = {name: system.prepare(scenario.asked_of(system)) for name, system in systems.items()}

    def ask(name: str, count: int) -> Any:
        return systems[name].match_many(prepared[name][:count], unique=True)

    sizes = {name: CallSize(whole=getattr(each, "packet_size", 1), most=len(each)) for name, each in prepared.items()}
    # A device has work for all threads, and is slower with less
    if isinstance(on_gpu := systems.get(GPU), TagmatchContent):
        sizes[GPU] = on_gpu.call_size
    works = {name: partial(ask, name) for name in systems}
    found = bench.rates(f"{result.name}: matching, {scenario.name}", works, len(scenario.messages), sizes)
    with bench.doing(f"{result.name}: checking, {scenario.name}"):
        keys = _compare(result, scenario, systems, works, {name: each.items for name, each in found.items()})
    return Measured({name: each.per(1e6) for name, each in found.items()}, keys)


def _compare(
    result: Result,
    scenario: Compared,
    systems: Mapping[str, Matcher[Any]],
    works: Mapping[str, Callable[[int], Any]],
    items: Mapping[str, int],
) -> float:
    """Compare answers with brute force, and all that were timed with one system's; returns the keys of an answer."""
    messages, (other, more) = len(scenario.messages), scenario.reference
    wanted = {name: max(scenario.sample, more * count if name == other else count) for name, count in items.items()}
    answers = {name: work(min(messages, wanted[name])) for name, work in works.items()}
    for name, given in answers.items():
        compare = partial(add_answers, result, scenario, name, systems[name])
        compare("against brute force", given, scenario.right)
        if name != other and other in answers:
            compare(f"against {other}", given, answers[other])
    most = max(answers.values(), key=len)
    return count_keys(most) / max(len(most), 1)


def add_answers(result: Result, scenario: Compared, name: str, system: Any, where: str, given: Any, right: Any) -> None:
    """Add how an exact system's answers compare with the right ones, to as many messages as both have."""
    count = min(len(given), len(right))
    may_differ = scenario.edges_of(system)
    result.compare(f"{scenario.name}, {where}", name, given[:count], right[:count], may_differ=may_differ)


class _Called:
    """A system that is called for each message."""

    def __init__(self, system: ContentMatcher) -> None:
        self._system = system
        self.exact, self.nbytes = system.exact, system.nbytes

    def prepare(self, messages: pa.Table) -> list[Messages]:
        prepared = self._system.prepare(messages)
        return [prepared[i : i + 1] for i in range(len(messages))]

    def match_many(self, messages: list[Messages], *, unique: bool = False) -> list[Any]:
        return [self._system.match_many(each, unique=unique)[0].values for each in messages]

    def close(self) -> None:
        """Leave the system open, which is not this one's."""


def latency(bench: Bench, result: Result, scenario: Scenario, systems: Iterable[str] = ALL) -> Measured:
    """Time systems in turn, event by event, each key of an answer once, and compare all answers with brute force."""
    with ExitStack() as stack:
        builds = _builds_one_by_one(bench, scenario, stack)
        built = bench.build(result, {name: builds[name] for name in systems}, stack, scenario.name)
        return timed(bench, result, scenario, built)


def _builds_one_by_one(bench: Bench, scenario: Scenario, stack: ExitStack) -> dict[str, Callable[[], Matcher[Any]]]:
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

    @cache
    def compared(name: str) -> Matcher[Any]:
        threads = bench.options.threads if name in CONTENT_SHARED else 1
        found: Matcher[Any] = CONTENT_ONE_BY_ONE[name](scenario.subscriptions, threads)
        return found

    return {
        **{name: partial(compared, name) for name in CONTENT_ONE_BY_ONE},
        OCM_CALLED: lambda: _Called(cast("ContentMatcher", compared(OCM))),
        OURS: lambda: TagmatchOneByOne(whole()),
        **{name: partial(encoded, name) for name in ENCODED},
        OURS_ON_GPU: on_gpu,
    }
