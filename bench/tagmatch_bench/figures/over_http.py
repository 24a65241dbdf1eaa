"""The part of `tagmatch-bench serve` about HTTP: single messages, JSON Lines and Arrow, compared with Flight."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle, takewhile
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import uvloop

from tagmatch import TagMatch, connect
from tagmatch.broker.connection import Connection
from tagmatch_bench.figures.serve import BATCH, FLIGHT, serving, streamed
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.load import closed_loop_rate
from tagmatch_bench.harness.processes import ServedIndex
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import Samples

LINES, ARROW = "JSON Lines over HTTP", "Arrow over HTTP"
#: Connections over which single messages go, and how many a second there should be
CONNECTIONS, SINGLES = 32, 15_000

_PART = 1 << 20
_NDJSON, _STREAM = "application/x-ndjson", "application/vnd.apache.arrow.stream"


def over_http_figure(bench: Bench) -> Result:
    """Measure the same messages over HTTP and over Flight."""
    result = bench.result(
        "serve-http",
        "The same service over HTTP",
        f"""{bench.in_words(bench.sets())}, matched on the CPU; `tagmatch serve` in its own process shares the cores of
        this machine with its client, over loopback and without TLS. *Single messages* are `POST /match` over
        {CONNECTIONS} connections that stay open, each with one request on its way, and each answer is compared with
        the right one after the measurement; then, one thread submits messages to a `RemoteTagMatch`, with 8,192 on
        their way. *Many* go as one request, `POST /match_many`, as JSON Lines or as a stream of Arrow IPC in batches of
        {BATCH:,}, whose bytes are made before; the same batches
        go over one stream of Flight.""",
        batch=BATCH,
        connections=CONNECTIONS,
    )
    with serving(bench) as (index, served, queries):
        pipelined = _singles(bench, result, index, served, queries)
        _many(bench, result, index, served, queries, pipelined)
    return result


def _singles(bench: Bench, result: Result, index: TagMatch, served: ServedIndex, messages: pa.ListArray) -> Samples:
    """Single messages over HTTP; returns the rate of those over Flight."""
    seconds, queries = bench.options.seconds, messages.to_pylist()
    requests = [_request("/match", "application/json", json.dumps({"tags": each}).encode()) for each in queries]
    right = [sorted(each) for each in index.match_many(messages).to_pylist()]
    over_http, over_flight = [], []
    with connect(served.url) as tm:
        for number in range(-1, bench.options.rounds):
            with bench.doing(f"serve: single messages over HTTP, round {number + 1} of {bench.options.rounds}"):
                answers = uvloop.run(_answers(served.http, requests, seconds))
                rate = closed_loop_rate(tm.submit, queries, seconds)
            for place, answer in answers:
                head, _, body = answer.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 OK\r\n"), answer
                assert sorted(json.loads(body)["keys"]) == right[place]
            if number >= 0:
                over_http.append(len(answers) / seconds)
                over_flight.append(rate)
    result.add("single messages over HTTP", Samples(tuple(over_http)), "messages/s", Target(SINGLES))
    pipelined = Samples(tuple(over_flight))
    result.add("single messages over Flight, pipelined", pipelined, "messages/s")
    return pipelined


def _place(url: str) -> tuple[str, int]:
    found = urlsplit(url)
    assert found.hostname is not None
    assert found.port is not None
    return found.hostname, found.port


def _request(path: str, kind: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Client(asyncio.Protocol):
    """A connection that sends the next request when it has the answer to the last."""

    def __init__(self, numbers: Iterator[int], requests: list[bytes], answers: list[tuple[int, bytes]]) -> None:
        self._numbers, self._requests, self._answers, self._came = numbers, requests, answers, b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def connection_lost(self, _: Exception | None) -> None:
        self.ended.set_result(None)

    def _send(self) -> None:
        self._number = next(self._numbers, -1)
        if self._number < 0:
            self._transport.close()
        else:
            self._transport.write(self._requests[self._number])

    def data_received(self, data: bytes) -> None:
        self._came += data
        if data.endswith(b"}\n"):
            self._answers.append((self._number, self._came))
            self._came = b""
            self._send()


async def _answers(url: str, requests: list[bytes], seconds: float) -> list[tuple[int, bytes]]:
    """The answers that come in some seconds, each with the number of its request."""
    until, found = time.perf_counter() + seconds, list[tuple[int, bytes]]()
    numbers = takewhile(lambda _: time.perf_counter() < until, cycle(range(len(requests))))
    loop, place = asyncio.get_running_loop(), _place(url)
    made = [await loop.create_connection(lambda: _Client(numbers, requests, found), *place) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(client.ended for _, client in made))
    await asyncio.sleep(0)  # uvloop lets go of them
    return found


def _many(
    bench: Bench, result: Result, index: TagMatch, served: ServedIndex, queries: pa.ListArray, pipelined: Samples
) -> None:
    parts = [queries.slice(first, BATCH) for first in range(0, len(queries), BATCH)]
    lines = [json.dumps({"tags": each}).encode() + b"\n" for each in queries.to_pylist()]
    connection = Connection(served.url)

    def as_lines(count: int) -> bytes:
        return _answered(served.http, "/match_many", _NDJSON, b"".join(lines[:count]))

    def as_arrow(count: int) -> bytes:
        some = parts if count == len(queries) else parts[: max(1, count // BATCH)]
        return _answered(served.http, "/match_many", _STREAM, _stream(some))

    works: dict[str, Callable[[int], Any]] = {
        FLIGHT: lambda count: streamed(connection, parts, max(1, count // BATCH)),
        ARROW: as_arrow,
        LINES: as_lines,
    }
    found = bench.rates("serve: many over HTTP", works, len(queries))
    panel = result.panel("messages a second, many in one call", "", "messages/s")
    panel.add_all(found, "many")
    result.add("Arrow over HTTP against Flight", found[ARROW].ratios(found[FLIGHT]), "times", Target(0.9))
    ratio = found[LINES].ratios(pipelined)
    result.add("JSON Lines against single messages over Flight, pipelined", ratio, "times", Target(0.5))
    right = pa.concat_arrays([index.match_many(part) for part in parts])
    answers = pa.array([json.loads(line)["keys"] for line in as_lines(len(lines)).splitlines()], right.type)
    result.compare("many", LINES, answers, right)
    table = pa.ipc.open_stream(as_arrow(len(queries))).read_all()
    result.compare("many", ARROW, table["keys"].combine_chunks(), right)
    connection.close()


def _stream(parts: list[pa.ListArray]) -> bytes:
    schema, sink = pa.schema([("tags", parts[0].type)]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for part in parts:
            writer.write_batch(pa.RecordBatch.from_arrays([pa.concat_arrays([part])], schema=schema))
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _answered(url: str, path: str, kind: str, body: bytes) -> bytes:
    """The answer to a request whose body goes while it comes."""
    with socket.create_connection(_place(url)) as raw, raw.makefile("rb", _PART) as answer:
        writer = threading.Thread(target=raw.sendall, args=(_request(path, kind, body),), daemon=True)
        writer.start()
        assert answer.readline().startswith(b"HTTP/1.1 200")
        while answer.readline() != b"\r\n":
            pass
        found = []
        while size := int(answer.readline(), 16):
            found.append(answer.read(size))
            answer.readline()
        writer.join()
    return b"".join(found)
