"""The part of `tagmatch-bench serve` about HTTP: single messages, JSON Lines and Arrow, compared with Flight."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import uvloop

from tagmatch import TagMatch, connect
from tagmatch.broker.connection import Connection
from tagmatch_bench.figures.serve import BATCH, FLIGHT, streamed, switching
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
        {CONNECTIONS} connections that stay open, each with one request on its way; at the same time, one thread submits
        messages to a `RemoteTagMatch`, with 8,192 on their way. *Many* go as one request, `POST /match_many`, as JSON
        Lines or as a stream of Arrow IPC in batches of {BATCH:,}, whose bytes are made before; the same batches
        go over one stream of Flight.""",
        batch=BATCH,
        connections=CONNECTIONS,
    )
    workload = bench.workload(bench.sets())
    queries = workload.queries.cast(pa.list_(pa.string()))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory())) / "served.index"
        index = stack.enter_context(TagMatch(folder, threads=bench.options.threads, device="cpu"))
        with bench.doing("serve: building the index"):
            index.add_sets(workload.sets["tags"], workload.sets["key"])
            index.consolidate()
        served = stack.enter_context(ServedIndex(folder, bench.options.threads))
        stack.enter_context(switching())
        pipelined = _singles(bench, result, served, [list(each) for each in queries.to_pylist()])
        _many(bench, result, index, served, queries, pipelined)
    return result


def _singles(bench: Bench, result: Result, served: ServedIndex, queries: list[list[str]]) -> Samples:
    """Single messages over HTTP; returns the rate of those over Flight."""
    seconds = bench.options.seconds
    requests = [_request("/match", "application/json", json.dumps({"tags": each}).encode()) for each in queries]
    over_http, over_flight = [], []
    with connect(served.url) as tm:
        for number in range(-1, bench.options.rounds):
            with bench.doing(f"serve: single messages over HTTP, round {number + 1} of {bench.options.rounds}"):
                rates = uvloop.run(_rate(served.http, requests, seconds)), closed_loop_rate(tm.submit, queries, seconds)
            if number >= 0:
                over_http.append(rates[0])
                over_flight.append(rates[1])
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

    def __init__(self, following: Callable[[], bytes | None]) -> None:
        self._next, self._came = following, b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def connection_lost(self, _: Exception | None) -> None:
        self.ended.set_result(None)

    def _send(self) -> None:
        request = self._next()
        if request is None:
            self._transport.close()
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._came += data
        head, _, body = self._came.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        if len(body) >= int(head.partition(b"content-length: ")[2].partition(b"\r")[0]):
            self._came = b""
            self._send()


async def _rate(url: str, requests: list[bytes], seconds: float) -> float:
    (host, port), every, count = _place(url), cycle(requests), 0
    until = time.perf_counter() + seconds

    def following() -> bytes | None:
        nonlocal count
        count += 1
        return next(every) if time.perf_counter() < until else None

    loop = asyncio.get_running_loop()
    clients = [await loop.create_connection(lambda: _Client(following), host, port) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(client.ended for _, client in clients))
    await asyncio.sleep(0)  # uvloop lets go of them
    return (count - CONNECTIONS) / seconds


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
