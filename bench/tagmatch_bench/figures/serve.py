"""`tagmatch-bench serve`: what the way over Arrow Flight costs, and what a service does with more than it can take."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from tagmatch import TagMatch, connect
from tagmatch.broker.connection import TAGS_ONLY, Connection
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.load import closed_loop_rate, poisson_times, serve_in_order
from tagmatch_bench.harness.processes import ServedIndex
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import Samples, by_name

IN_PROCESS, FLIGHT = "match_many in this process", "over Flight"
#: Messages of a batch
BATCH = 1024
#: Messages a second
SINGLES = 100_000
#: Clients; each sends as much as the service can answer
OVERLOAD = 10

_SWITCH_S = 0.0002
_CHANGES = 100
_MEMORY = 512
_ALL = Target(0, at_most=True, required=True)


def serve_figure(bench: Bench) -> Result:
    """Measure batches, single messages, and an overload."""
    result = bench.result(
        "serve",
        "An index as a service over Arrow Flight",
        f"""{bench.in_words(bench.sets())}, matched on the CPU. `tagmatch serve` runs in its own process on the same
        machine, whose cores it shares with its client, over loopback and without TLS. *Batches* of {BATCH:,} messages
        go over one stream, as many as it takes, while their answers come; in this process, `match_many` is called with
        the same batches, one after the other. *Single messages* are submitted by one thread to a `RemoteTagMatch`, with
        8,192 on their way; then at random times (Poisson), {SINGLES // 2:,} a second, where latency counts from when
        a message was due until the thread that submits finds its answer, for which it looks every 0.2 ms; and
        {SINGLES // 10:,} a second, alone and while another client adds {_CHANGES} sets, consolidates, removes them and
        consolidates, without a pause. In the *overload*, {OVERLOAD} clients send batches as fast as they go, each
        as many as the service can answer: if it reads no more, they wait. Threads of the client ask for the
        interpreter lock every {1000 * _SWITCH_S:g} ms, as those of the service do.""",
        batch=BATCH,
        overload=OVERLOAD,
    )
    with serving(bench) as (index, served, queries):
        _batches(bench, result, index, served, queries)
        singles = [list(each) for each in queries.to_pylist()]
        with connect(served.url) as tm:
            _singles(bench, result, tm, singles)
            _consolidating(bench, result, served, tm, singles)
        _overload(bench, result, served, queries)
        _account(result, served)
    return result


@contextmanager
def serving(bench: Bench) -> Iterator[tuple[TagMatch, ServedIndex, pa.ListArray]]:
    """The sets of a workload in this process and in a service, and its queries.

    Threads ask for the interpreter lock here as often as those of a service do.
    """
    workload, before = bench.workload(bench.sets()), sys.getswitchinterval()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory())) / "served.index"
        index = stack.enter_context(TagMatch(folder, threads=bench.options.threads, device="cpu"))
        with bench.doing("serve: building the index"):
            index.add_sets(workload.sets["tags"], workload.sets["key"])
            index.consolidate()
        served = stack.enter_context(ServedIndex(folder, bench.options.threads))
        stack.callback(sys.setswitchinterval, before)
        sys.setswitchinterval(_SWITCH_S)
        yield index, served, workload.queries.cast(pa.list_(pa.string()))


def _batches(bench: Bench, result: Result, index: TagMatch, served: ServedIndex, queries: pa.ListArray) -> None:
    parts = [queries.slice(first, BATCH) for first in range(0, len(queries), BATCH)]
    connection = Connection(served.url)

    def in_process(count: int) -> None:
        for number in range(max(1, count // BATCH)):
            index.match_many(parts[number % len(parts)])

    def over_flight(count: int) -> list[pa.ListArray]:
        return streamed(connection, parts, max(1, count // BATCH))

    works: dict[str, Callable[[int], Any]] = {IN_PROCESS: in_process, FLIGHT: over_flight}
    found = bench.rates("serve: batches", works, len(parts) * BATCH)
    panel = result.panel(f"messages a second in batches of {BATCH:,}", "", "messages/s")
    panel.add_all(found, "batches")
    ratio = found[FLIGHT].ratios(found[IN_PROCESS])
    result.add("over Flight against match_many in process", ratio, "times", Target(0.8))
    answers = streamed(connection, parts, len(parts))
    right = pa.concat_arrays([index.match_many(part) for part in parts])
    result.compare("batches", FLIGHT, pa.concat_arrays(answers), right)
    connection.close()


def streamed(connection: Connection, parts: list[pa.ListArray], count: int) -> list[pa.ListArray]:
    """The answers to `count` batches, which go over one stream while answers come."""
    stream = connection.open_stream(TAGS_ONLY, {"command": "match", "plain": True, "coalesce": True})

    def write() -> None:
        for number in range(count):
            stream.write(pa.RecordBatch.from_arrays([parts[number % len(parts)]], schema=TAGS_ONLY))
        stream.done_writing()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    answers = []
    while (batch := stream.read()) is not None:
        answers.append(batch.column("keys"))
    writer.join()
    stream.close()
    return answers


def _singles(bench: Bench, result: Result, tm: Any, queries: list[list[str]]) -> None:
    seconds, rounds = bench.options.seconds, bench.options.rounds
    closed_loop_rate(tm.submit, queries, seconds / 2)
    submit, capacities, latencies = partial(tm.submit, block=False), [], []
    for number in range(rounds):
        with bench.doing(f"serve: single messages, round {number + 1} of {rounds}"):
            capacities.append(closed_loop_rate(tm.submit, queries, seconds))
            due = poisson_times(SINGLES / 2, seconds, bench.options.seed + number)
            latencies.append(serve_in_order(submit, cycle(queries), due).milliseconds())
    capacity = Samples(tuple(capacities))
    result.add("single messages over one connection", capacity, "messages/s", Target(SINGLES))
    panel = result.panel(f"latency at {SINGLES // 2:,} messages a second", "", "ms")
    for name, samples in by_name(latencies).items():
        panel.add("single messages", name, samples)
        if name == "p99":
            result.add(f"p99 at {SINGLES // 2:,} a second", samples, "ms", Target(5, at_most=True))


def _consolidating(bench: Bench, result: Result, served: ServedIndex, tm: Any, queries: list[list[str]]) -> None:
    """Latency while another client changes the index again and again, and of the same load without that."""

    def change() -> None:
        with connect(served.url) as other:
            while not stop.is_set():
                other.add_sets([[*query, "changed"] for query in queries[:_CHANGES]], range(_CHANGES))
                other.consolidate()
                other.remove_sets([[*query, "changed"] for query in queries[:_CHANGES]], range(_CHANGES))
                other.consolidate()
                done.append(2)

    submit = partial(tm.submit, block=False)
    quiet, changing, done = [], [], [0]
    for number in range(bench.options.rounds):
        due = poisson_times(SINGLES / 10, bench.options.seconds, bench.options.seed + number)
        with bench.doing(f"serve: consolidating, round {number + 1} of {bench.options.rounds}"):
            quiet.append(serve_in_order(submit, cycle(queries), due).milliseconds()["p99"])
            stop = threading.Event()
            thread = threading.Thread(target=change)
            thread.start()
            changing.append(serve_in_order(submit, cycle(queries), due).milliseconds()["p99"])
            stop.set()
            thread.join()
    what = f"p99 at {SINGLES // 10:,} a second"
    result.add(f"{what}, quiet", Samples(tuple(quiet)), "ms")
    result.add(
        f"{what}, while another client consolidates {_CHANGES} changes again and again", Samples(tuple(changing)), "ms"
    )
    result.add("consolidations during that", sum(done), "calls")
    ratio = Samples(tuple(changing)).ratios(Samples(tuple(quiet)))
    result.add("p99 while consolidating against quiet", ratio, "times", Target(2, at_most=True))


def _overload(bench: Bench, result: Result, served: ServedIndex, queries: pa.ListArray) -> None:
    """Let several clients send as fast as they can."""
    before, memory = served.counted(), served.most_memory
    parts = [queries.slice(first, BATCH) for first in range(0, len(queries), BATCH)]
    until, counts = time.perf_counter() + bench.options.seconds * OVERLOAD, []

    def client() -> None:
        connection = Connection(served.url)
        sent = answered = 0
        while time.perf_counter() < until:
            answers = streamed(connection, parts, len(parts))
            sent += sum(map(len, parts))
            answered += sum(map(len, answers))
        counts.append((sent, answered))
        connection.close()

    with bench.doing("serve: overload"):
        began = time.perf_counter()
        threads = [threading.Thread(target=client) for _ in range(OVERLOAD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    after = served.counted()
    came, went = (int(after[name] - before[name]) for name in ("tagmatch_messages_total", "tagmatch_answers_total"))
    sent, answered = (sum(each) for each in zip(*counts, strict=True))
    result.add("overload: clients that have ended", len(counts), "clients", Target(OVERLOAD, required=True))
    result.add("overload: sent", sent, "messages")
    result.add("overload: answered a second", answered / seconds, "messages/s")
    result.add("overload: sent, but not counted in", sent - came, "messages", _ALL)
    result.add("overload: counted in, but not out", came - went, "messages", _ALL)
    result.add("overload: counted out, but not received", went - answered, "messages", _ALL)
    grown = (served.most_memory - memory) / 2**20
    result.add("overload: memory of the service grown by", grown, "MiB", Target(_MEMORY, at_most=True))


def _account(result: Result, served: ServedIndex) -> None:
    counted = served.counted()
    result.add("still in flight at the end", counted["tagmatch_messages_in_flight"], "messages", _ALL)
    lost = counted["tagmatch_messages_total"] - counted["tagmatch_answers_total"]
    result.add("counted in, but not out, of all", lost, "messages", _ALL)
    errors = sum(value for name, value in counted.items() if name.startswith("tagmatch_errors_total"))
    result.add("errors", errors, "calls", _ALL)
