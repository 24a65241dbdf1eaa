"""`tagmatch-bench broker`: Figure 10 of PCM, a whole broker between sockets, offered ever more events a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any, Literal, cast

import pyarrow as pa

from tagmatch.model.arrays import Lists
from tagmatch_bench.broker.broker import Brokered, ContentEngine, Engine, TagmatchEngine, brokered
from tagmatch_bench.broker.client import Client
from tagmatch_bench.broker.wire import Events
from tagmatch_bench.figures import content_scenarios as scenarios
from tagmatch_bench.figures.published import PCM_FIG10
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.content import Scenario
from tagmatch_bench.harness.results import Answers, Result, Target
from tagmatch_bench.harness.timing import Samples, without_garbage_collection
from tagmatch_bench.systems.catalogue import CONTENT, CONTENT_GPU, CONTENT_SHARED
from tagmatch_bench.systems.content_matcher import ContentMatcher
from tagmatch_bench.systems.matcher import Matcher, lists_in
from tagmatch_bench.systems.tagmatch_content import TagmatchContent

OCM, OCM_EVENTS, SFF, SFF_ME, CCM = "OCM", "OCM, sharing events", "SFF", "SFF ME", "CCM"
OURS, OURS_ON_GPU = "tagmatch", "tagmatch, GPU"
#: All engines, in the order of tables; `SFF ME` is the paper's name for several events at once
ENGINES = (OCM, OCM_EVENTS, CCM, SFF, SFF_ME, OURS, OURS_ON_GPU)

_RATE = "events/s"
_ALL_ACCOUNTED = Target(0, at_most=True, required=True)

#: Outcomes of the events of each engine at each rate, one round after the other
Found = dict[tuple[str, float], list[Brokered]]


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """What is offered to which broker; see the command's help."""

    scenario: Literal["pcm", "dense"] = "pcm"
    constraints: int = 1_000_000
    rates: tuple[float, ...] = (1_000, 3_000, 10_000, 20_000, 40_000, 70_000, 100_000)
    queue: int = 100
    events: int = 1000


def broker(bench: Bench, sizes: BrokerOptions) -> Result:
    """Measure every engine at every rate."""
    options = sizes
    result = bench.result(
        "broker",
        "A broker between sockets",
        f"""PCM's Figure 10 (Margara, Cugola, IEEE TPDS 2014, §4.2). One client, in its own process, sends events to a
        broker on the same machine at a rate, through a socket of TCP, and gets their deliveries. In the broker one
        thread reads and decodes events into a queue of {options.queue}, the engine takes all that wait, and one
        thread writes what it finds; events for which the queue has no room are dropped. *Processed* are events that
        were matched and delivered, in seconds from the first event to the last delivery. *Delays* count from when an
        event was due to be sent until all of its delivery has come. There are {options.events:,} different events,
        which repeat in turn. *OCM* has {bench.options.threads} threads share out the tables of one event after the
        other, as published, and wait for each other twice an event: where other work takes their cores, for long.
        *OCM, sharing events* and *SFF ME* have each event matched by one of these threads, *SFF* all by one thread.
        *CCM* has up to 64 events in one kernel. *tagmatch* is called by `match_unique` for each event, but from 50
        on that wait by `match_many` with a column of maps; with a GPU always so. Client, connections and engine share
        the cores. CCM and *tagmatch, GPU* match on a CUDA device, all others on the CPU. Answers are compared with
        OCM's, and its own with brute force. The paper's numbers, read off its text, are of six cores of 2012 and a GTX
        460, with a remote client; OCM would process 109,000 events/s and CCM 48,000, it says, by their latencies
        alone.""",
        **asdict(options),
    )
    with bench.doing(f"broker: generating {options.constraints:,} constraints"):
        scenario = _scenario(options, bench.options.seed)
    with ExitStack() as stack:
        with bench.doing("broker: finding the right answers with OCM"):
            reference = cast("ContentMatcher", CONTENT["OCM"](scenario.subscriptions, bench.options.threads))
            expected = _expected(result, scenario, reference)
        engines = _engines(bench, result, scenario, reference, stack)
        client = Client(Events.of(scenario.messages), scenario.messages.column_names)
        found = _offered(bench, options, engines, stack.enter_context(client), expected)
    _show(result, options, found)
    _account(result, found)
    return result


def _scenario(options: BrokerOptions, seed: int) -> Scenario:
    if options.scenario == "pcm":
        return scenarios.pcm(options.constraints, options.events, seed)
    return scenarios.dense(max(1, options.constraints // scenarios.OF_A_DENSE_FILTER), options.events, seed)


def _expected(result: Result, scenario: Scenario, reference: ContentMatcher) -> Lists:
    """The keys of each event, by OCM, which is compared with brute force."""
    answers: pa.ListArray = reference.match_many(reference.prepare(scenario.messages), unique=True)
    result.compare("against brute force", OCM, answers[: scenario.sample], scenario.right)
    return lists_in(answers)


def _engines(
    bench: Bench, result: Result, scenario: Scenario, reference: ContentMatcher, stack: ExitStack
) -> dict[str, Engine]:
    """Build the engines that are wanted and can run here; others are noted."""
    threads, names = bench.options.threads, scenario.messages.column_names

    def compared(build: Callable[[pa.Table, int], Matcher[Any]], threads: int) -> Engine:
        matcher = cast("ContentMatcher", build(scenario.subscriptions, threads))
        stack.callback(matcher.close)
        return ContentEngine(matcher)

    def ours(device: str) -> Engine:
        whole = TagmatchContent(scenario.stored, threads=threads)
        stack.callback(whole.close)
        if device == "cpu":
            return TagmatchEngine(whole.index, names)
        other = whole.again(device=device)
        stack.callback(other.close)
        return TagmatchEngine(other.index, names, tables_from=1)  # single events are not for a device

    builds: Mapping[str, Callable[[], Engine]] = {
        OCM: partial(compared, CONTENT_SHARED["OCM, sharing tables"], threads),
        OCM_EVENTS: lambda: ContentEngine(reference),
        CCM: partial(compared, CONTENT_GPU["CCM"], 1),
        SFF: partial(compared, CONTENT["SFF"], 1),
        SFF_ME: partial(compared, CONTENT["SFF"], threads),
        OURS: partial(ours, "cpu"),
        OURS_ON_GPU: partial(ours, "cuda"),
    }
    return bench.build(result, {name: builds[name] for name in ENGINES}, None, scenario.name)


def _offered(
    bench: Bench, options: BrokerOptions, engines: Mapping[str, Engine], client: Client, expected: Lists
) -> Found:
    """Offer every rate to every engine, in turn, in each round."""
    found: Found = {(name, rate): [] for rate, name in product(options.rates, engines)}
    for number, rate in product(range(bench.options.rounds), options.rates):
        with bench.doing(f"broker: {rate:,.0f} events/s, round {number + 1} of {bench.options.rounds}"):
            for name, engine in engines.items():
                with without_garbage_collection():
                    done = brokered(engine, client, rate, bench.options.seconds, expected, queue=options.queue)
                found[name, rate].append(done)
    return found


def _show(result: Result, options: BrokerOptions, found: Found) -> None:
    """Add the panels, and how many times as many events as the others our own processes."""
    panels: list[tuple[str, str, bool, Callable[[Brokered], float]]] = [
        ("events processed a second", _RATE, True, lambda done: done.processing_rate),
        ("events dropped", "%", False, lambda done: 100 * done.dropped),
        ("delay, median", "ms", True, lambda done: 1000 * done.delay(0.5)),
        ("delay, p99", "ms", True, lambda done: 1000 * done.delay(0.99)),
        ("keys delivered a second", "keys/s", False, lambda done: done.key_rate),
        ("events sent a second, as the client and the sockets can", _RATE, True, lambda done: done.offered_rate),
    ]
    for title, unit, log, value_of in panels:
        panel = result.panel(title, "events offered a second", unit, "lines", log=log)
        for (name, rate), rounds in found.items():
            panel.add(name, float(rate), Samples(tuple(map(value_of, rounds))))
    most: dict[str, Samples] = {}
    for (name, _), rounds in found.items():
        rates = Samples(tuple(done.processing_rate for done in rounds))
        if name not in most or rates.median > most[name].median:
            most[name] = rates
    panel = result.panel("the most events processed a second", "", _RATE)
    panel.add_all(most, "at any rate")
    if options.scenario == "pcm":
        panel.published += PCM_FIG10
    for name in most:
        if OURS in most and name != OURS:
            result.add(f"most events a second, {OURS} against {name}", most[OURS].over(most[name]), "times")


def _account(result: Result, found: Found) -> None:
    """Add whether all events that came in went out, and how answers compare."""
    for name in dict.fromkeys(name for name, _ in found):
        lost = sum(done.unaccounted for (engine, _), rounds in found.items() if engine == name for done in rounds)
        result.add(f"{name}: events neither delivered once nor dropped", lost, "events", _ALL_ACCOUNTED)
    for (name, rate), rounds in found.items():
        processed, keys, wrong, missing = (
            sum(each)
            for each in zip(
                *((done.traffic.processed, done.keys, done.wrong, done.missing) for done in rounds), strict=True
            )
        )
        result.answers.append(
            Answers(f"{rate:,.0f} events/s, against OCM", name, True, processed, keys, wrong, missing)
        )
