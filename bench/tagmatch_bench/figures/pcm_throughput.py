"""PCM §4.2 and §4.3: events a second where many come at once, and how many have to for a GPU to be worth it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tagmatch_bench.figures.content_beside import AHEAD
from tagmatch_bench.figures.content_scenarios import pcm
from tagmatch_bench.figures.published_content import DEFAULT, MICROS, PCM_THROUGHPUT, against
from tagmatch_bench.harness.content import GPU, add_answers, timed
from tagmatch_bench.harness.timing import Samples, rates
from tagmatch_bench.systems.catalogue import CONTENT, CONTENT_GPU, CONTENT_ONE_BY_ONE, CONTENT_SHARED
from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.tagmatch_content import TagmatchContent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.content import Measured, Scenario
    from tagmatch_bench.harness.results import Result
    from tagmatch_bench.systems.matcher import Matcher

ONE_THREAD, ALL_THREADS = "tagmatch, one thread", "tagmatch, all threads"
#: Those published: all threads share out events, or one event's tables; the device has 64 events at once, or one
PUBLISHED_SYSTEMS = {
    **CONTENT,
    **CONTENT_SHARED,
    "CCM, one at a time": CONTENT_ONE_BY_ONE["CCM"],
    "CCM, several at once": CONTENT_GPU["CCM"],
}
DEVICES = ("cpu", "cuda", "auto")

#: Different calls of one size, at most
_MOST_CALLS = 1_000


def throughput(bench: Bench, result: Result, constraints: int, calls: Sequence[int]) -> None:
    """Measure events a second, and calls of as many events as said, in the default scenario."""
    with bench.doing(f"pcm: generating {max(calls):,} events"):
        scenario = pcm(constraints, max(calls), bench.options.seed)
    with bench.doing(f"pcm: building tagmatch, {scenario.name}"):
        whole = TagmatchContent(scenario.stored)
    try:
        _many_at_once(bench, result, scenario, whole)
        _cpu_or_gpu(bench, result, scenario, whole, calls)
    finally:
        whole.close()


def _many_at_once(bench: Bench, result: Result, scenario: Scenario, whole: TagmatchContent) -> None:
    threads = bench.options.threads
    ours: dict[str, Callable[[pa.Table, int], Matcher[Any]]] = {
        ONE_THREAD: lambda *_: whole.again(threads=1, device="cpu"),
        ALL_THREADS: lambda *_: whole.again(threads=threads, device="cpu"),
        GPU: lambda *_: whole.again(threads=threads, device="cuda"),
    }
    systems_by_name: dict[str, Callable[[pa.Table, int], Matcher[Any]]] = {**PUBLISHED_SYSTEMS, **ours}
    with bench.built(systems_by_name, scenario.subscriptions, result) as systems:
        found = timed(bench, result, scenario, systems)
    panel = result.panel("PCM §4.2: throughput", "scenario", "events/s")
    panel.published += PCM_THROUGHPUT
    for system, micros in found.micros.items():
        panel.add(system, DEFAULT, Samples(tuple(1e6 / each for each in micros.values)))
    _compare(result, scenario, found)


def _compare(result: Result, scenario: Scenario, found: Measured) -> None:
    for own in (ALL_THREADS, GPU):
        for other in PUBLISHED_SYSTEMS:
            if {own, other} <= found.micros.keys():
                ratio = found.micros[other].ratios(found.micros[own])
                result.add(f"{scenario.name}, throughput: {against(own, other)}", ratio, "times", AHEAD)


def _cpu_or_gpu(bench: Bench, result: Result, scenario: Scenario, whole: TagmatchContent, calls: Sequence[int]) -> None:
    """Add what an event takes in calls of as many as said, on each device and where ours chooses."""
    title = "PCM §4.3: CPU or GPU, by the events of a call"
    panel = result.panel(title, "events a call", MICROS, "lines")
    with _on_devices(result, whole, bench.options.threads) as systems:
        for size in calls:
            with bench.doing(f"pcm: calls of {size:,} events"):
                micros = _micros(bench, result, scenario, systems, size)
            for system, samples in micros.items():
                panel.add(system, float(size), samples)
            cpu, cuda, auto = (micros.get(_name(device)) for device in DEVICES)
            if cpu and cuda and auto:
                sooner = min(cpu, cuda, key=lambda samples: samples.median)
                what = f"{scenario.name}, calls of {size:,}: {against(_name('auto'), 'the sooner device')}"
                result.add(what, sooner.ratios(auto), "times")


@contextmanager
def _on_devices(result: Result, whole: TagmatchContent, threads: int) -> Iterator[dict[str, TagmatchContent]]:
    systems = {}
    with ExitStack() as stack:
        for device in DEVICES:
            try:
                systems[_name(device)] = whole.again(threads=threads, device=device)
            except UnavailableError as error:
                result.unavailable[_name(device)] = str(error)
                continue
            stack.callback(systems[_name(device)].close)
        yield systems


def _name(device: str) -> str:
    return f'tagmatch, device="{device}"'


def _micros(
    bench: Bench, result: Result, scenario: Scenario, systems: dict[str, TagmatchContent], size: int
) -> dict[str, Samples]:
    """Microseconds an event of each system, in calls of one size, whose answers are compared with brute force."""
    options, events = bench.options, len(scenario.asked) // size * size
    asked = [scenario.asked[first : first + size] for first in islice(range(0, events, size), _MOST_CALLS)]
    works = {name: partial(_ask, system, asked) for name, system in systems.items()}
    found = rates(works, len(asked), rounds=options.rounds, seconds=options.seconds)
    compared = -(-scenario.sample // size)
    for name, work in works.items():
        given = pa.concat_arrays(work(compared))[: scenario.sample]
        add_answers(result, f"{scenario.name}, calls of {size:,}", name, given, scenario.right[: len(given)])
    return {name: Samples(tuple(1e6 / (rate * size) for rate in each.values)) for name, each in found.items()}


def _ask(system: TagmatchContent, asked: Sequence[pa.Table], calls: int) -> list[pa.ListArray]:
    return [system.match_many(each, unique=True) for each in asked[:calls]]
