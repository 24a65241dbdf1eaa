"""What a service shows of itself: figures for Prometheus, structured logs, spans, and HTTP for its operator.

HTTP has `/metrics`, `/livez` and `/readyz`. No token is needed there, so strangers get little: few connections at once,
and each for one request and a few seconds. Another connection ends the oldest one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import accumulate, chain
from math import inf
from typing import Any

from tagmatch.broker.config import LogOptions, MetricsOptions
from tagmatch.broker.wire import in_url
from tagmatch.model.errors import ClosedError, TagMatchError

try:
    from prometheus_client import CollectorRegistry, Counter, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError:
    raise TagMatchError("the service needs prometheus-client; install it with: pip install 'tagmatch[serve]'") from None

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
#: Figures of subscribers that go up and down; others only go up
_NOW = frozenset(("sessions", "connected", "keys", "waiting", "in_flight", "bytes", "waiting_bytes", "lag"))
_Stats = Callable[[], dict[str, Any]]


class _Figures(Collector):
    """Figures of the index, of calls under way, and of subscribers, looked up on request."""

    def __init__(
        self, index: _Stats, limits: _Stats, subscribers: _Stats, copied: Callable[[], float] | None = None
    ) -> None:
        self._index, self._limits, self._subscribers, self._copied = index, limits, subscribers, copied

    def collect(self) -> Iterator[Metric]:
        """Give the current figures; nothing of a closed index."""
        with contextlib.suppress(ClosedError):
            stats = self._index()
            yield GaugeMetricFamily("tagmatch_index_sets", "Distinct stored sets.", stats["sets"])
            yield GaugeMetricFamily("tagmatch_index_keys", "Keys of all sets together.", stats["keys"])
            yield GaugeMetricFamily("tagmatch_staged_changes", "Changes that wait for consolidate.", stats["staged"])
            yield GaugeMetricFamily("tagmatch_index_bytes", "Bytes of the index in memory.", stats["index_bytes"])
            yield from _channels(stats["channels"])
            yield from _lag(stats)
        if self._copied is not None:
            what = "Since the copy for followers lacks something; 0: nothing."
            yield GaugeMetricFamily("tagmatch_copy_behind_seconds", what, self._copied())
        limits = self._limits()
        yield GaugeMetricFamily("tagmatch_connections", "Clients that have calls under way.", limits["connections"])
        yield GaugeMetricFamily("tagmatch_calls_under_way", "Calls under way, streams among them.", limits["calls"])
        yield GaugeMetricFamily("tagmatch_held_bytes", "Bytes that are not dealt with yet.", limits["bytes"])
        messages = "tagmatch_messages"
        yield GaugeMetricFamily(f"{messages}_in_flight", "Messages that are not answered yet.", limits["in_flight"])
        yield GaugeMetricFamily(f"{messages}_queued", "Messages that wait to be matched.", limits["queued"])
        found: dict[str, Any] = {}
        for part, figures in self._subscribers().items():
            is_gateway = part not in ("sessions", "hub")
            for figure, value in figures.items():
                name = f"tagmatch_{'gateway' if is_gateway else part}_{figure}"
                if name not in found:
                    kind = GaugeMetricFamily if figure in _NOW else CounterMetricFamily
                    what = f"See `{figure}` in docs/subscribers.md."
                    found[name] = kind(name, what, labels=["session"] if is_gateway else [])
                found[name].add_metric([part] if is_gateway else [], value)
        yield from found.values()


def _lag(stats: dict[str, Any]) -> Iterator[Metric]:
    """How old what a follower answers from may be, and which snapshot that is, by its number."""
    if stats["number"] is not None:
        yield GaugeMetricFamily("tagmatch_snapshot_number", "Number of the snapshot that answers.", stats["number"])
    if (lag := stats["lag"]) is not None:
        what = "Since it was last seen that nothing newer is saved."
        yield GaugeMetricFamily("tagmatch_behind_seconds", what, lag["behind_seconds"])
        what = "Since the snapshot that answers was taken over."
        yield GaugeMetricFamily("tagmatch_snapshot_seconds", what, lag["snapshot_seconds"])
        failed = float(stats["reload_error"] is not None)
        yield GaugeMetricFamily("tagmatch_reload_failed", "1 if the last look failed, as `reload_error` says.", failed)


def _channels(channels: dict[str, dict[str, Any]]) -> Iterator[Metric]:
    """Figures of channels: the outcome of each message, how many answers were late, and by how much."""
    of, labels = "tagmatch_channel_", ["channel"]
    ended = CounterMetricFamily(f"{of}messages", "Messages, by what happened to them.", labels=[*labels, "outcome"])
    offered = CounterMetricFamily(f"{of}offered", "Messages of channels that came.", labels=labels)
    late = CounterMetricFamily(f"{of}late", "Answers after the deadline.", labels=labels)
    waiting = GaugeMetricFamily(f"{of}in_flight", "Messages without an outcome.", labels=labels)
    lateness = GaugeMetricFamily(f"{of}lateness_seconds", "How late the late were.", labels=[*labels, "quantile"])
    for channel, figures in channels.items():
        for outcome in ("answered", "refused", "deserted", "dropped", "cancelled", "failed"):
            ended.add_metric([channel, outcome], figures[outcome])
        offered.add_metric([channel], figures["offered"])
        late.add_metric([channel], figures["late"])
        waiting.add_metric([channel], figures["in_flight"])
        for quantile, name in (("0.5", "median"), ("0.99", "p99"), ("1", "max")):
            lateness.add_metric([channel, quantile], figures["lateness"][name])
    if channels:
        yield from (ended, offered, late, waiting, lateness)


class Times:
    """How often something has begun, and how long it took; counted in a third of the time that a `Histogram` takes."""

    def __init__(self) -> None:
        self.begun, self._seconds, self._counts = 0, 0.0, [0] * (len(_SECONDS) + 1)
        self._lock = threading.Lock()

    def begin(self) -> None:
        """It has begun."""
        with self._lock:
            self.begun += 1

    def observe(self, seconds: float) -> None:
        """It has ended, after so long."""
        place = bisect_left(_SECONDS, seconds)
        with self._lock:
            self._seconds += seconds
            self._counts[place] += 1

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """How often it took at most each bound; and all seconds together."""
        with self._lock:
            return [*zip(map(floatToGoString, (*_SECONDS, inf)), accumulate(self._counts), strict=True)], self._seconds


class Metrics(Collector):
    """Counters of one service."""

    def __init__(
        self, index: _Stats, limits: _Stats, subscribers: _Stats, copied: Callable[[], float] | None = None
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Figures(index, limits, subscribers, copied))
        own: Any = {"registry": self.registry}
        self._lock = threading.Lock()
        self._messages = self._answers = self._keys = 0  # a `Counter` would take a tenth of a short call
        self.changes = Counter("tagmatch_changes", "Changes that were staged, and moves.", ["kind"], **own)
        self.errors = Counter("tagmatch_errors", "Calls that ended with an error.", ["kind"], **own)
        self.refusals = Counter("tagmatch_refused", "Calls that were refused.", ["reason"], **own)
        self.throttled = Counter("tagmatch_throttled_seconds", "Time that streams waited for their rate.", **own)
        self.cancelled = Counter("tagmatch_calls_cancelled", "Calls ended, as their clients did not go on.", **own)
        self.latency = Times()
        self._of_calls: dict[str, Times] = {}
        self.registry.register(self)

    def came(self, messages: int) -> None:
        """Count messages that came in."""
        with self._lock:
            self._messages += messages

    def answered(self, messages: int, keys: int) -> None:
        """Count messages that were answered, and the keys of their answers."""
        with self._lock:
            self._answers += messages
            self._keys += keys

    def collect(self) -> Iterator[Metric]:
        """How many messages, answers and calls there are, how long calls took, by name, and how long answers."""
        yield CounterMetricFamily("tagmatch_messages", "Messages that came in.", self._messages)
        yield CounterMetricFamily("tagmatch_answers", "Messages that were answered.", self._answers)
        yield CounterMetricFamily("tagmatch_keys", "Keys in answers.", self._keys)
        calls = CounterMetricFamily("tagmatch_calls", "Calls.", labels=["call"])
        seconds = HistogramMetricFamily("tagmatch_call_seconds", "Time of calls.", labels=["call"])
        for name, times in [*self._of_calls.items()]:
            calls.add_metric([name], times.begun)
            seconds.add_metric([name], *times.buckets())
        answers = HistogramMetricFamily("tagmatch_answer_seconds", "From a batch's arrival to its answer.", labels=[])
        answers.add_metric([], *self.latency.buckets())
        yield from (calls, seconds, answers)

    def figures(self) -> dict[str, Any]:
        """Sums by name, and by label; and how many answers took at most each bound, in seconds."""
        found: dict[str, Any] = {}
        *sums, calls, _, answers = self.collect()
        labelled = chain.from_iterable(each.collect() for each in (self.changes, self.errors, self.refusals))
        for family in (*sums, *labelled, calls):
            name = family.name.removeprefix("tagmatch_")
            totals = [each for each in family.samples if each.name.endswith("_total")]
            by_label = {"".join(each.labels.values()): each.value for each in totals}
            found[name] = by_label if all(each.labels for each in totals) else totals[0].value
        found["latency"] = [[each.labels["le"], each.value] for each in answers.samples if "le" in each.labels]
        return found

    def of_call(self, name: str) -> Times:
        """How many calls of a name there are, and their time."""
        found = self._of_calls.get(name)
        return self._of_calls.setdefault(name, Times()) if found is None else found

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)


#: What modules of the service log to; `extra={"fields": {...}}` adds fields
LOG = logging.getLogger("tagmatch.broker")


#: What ends a line somewhere, or moves the cursor
_ODD = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class JsonLog(logging.Formatter):
    """A record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Write time, level, message, fields, and the traceback of an error."""
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


class TextLog(logging.Formatter):
    """A record as one line for people, with the lines of a traceback, set in, behind it."""

    def format(self, record: logging.LogRecord) -> str:
        """Write time, level, message and fields."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds")
        fields = " ".join(f"{name}={value!r}" for name, value in getattr(record, "fields", {}).items())
        line = _shown(f"{time} {record.levelname.lower()} {record.getMessage()} {fields}".rstrip())
        if not record.exc_info:
            return line
        return "\n    ".join([line, *map(_shown, self.formatException(record.exc_info).split("\n"))])


def _shown(text: str) -> str:
    """A text on one line; no part of it can look like another line."""
    return _ODD.sub(lambda found: ascii(found[0])[1:-1], text)


def set_up_logs(options: LogOptions) -> None:
    """Write what the service logs to standard error, with what libraries and threads that end by an error say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLog() if options.format == "json" else TextLog())
    root, level = logging.getLogger(), logging.getLevelNamesMapping()[options.level.upper()]
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("tagmatch").setLevel(level)
    logging.captureWarnings(True)
    threading.excepthook = _log_end_of_thread


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    error = ended.exc_value
    if error is not None and not isinstance(error, SystemExit):
        LOG.error("a thread has ended", exc_info=error)


#: Begins a span, if any is wanted, with a call's name, its user and its client
Span = Callable[[str, str, str], AbstractContextManager[Any] | None]
# Seconds between looks whether the program has a provider of spans, which take longer than a short call
_LOOK_S = 1.0


def spans(*, to_console: bool) -> Span:
    """What begins spans of calls.

    If a program has set up its own provider, as `opentelemetry-instrument` does, spans go there.
    """
    try:
        from opentelemetry import trace
    except ImportError:
        if to_console:
            raise TagMatchError(
                "[log] traces needs OpenTelemetry; install it with: pip install 'tagmatch[trace]'"
            ) from None
        return lambda *_: None
    if to_console:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))
        tracer = provider.get_tracer("tagmatch")
    else:
        tracer = trace.get_tracer("tagmatch")

    looked_at = float("-inf")

    def span(name: str, user: str, peer: str) -> AbstractContextManager[Any] | None:
        nonlocal looked_at
        if not to_console:
            now = time.monotonic()
            if now < looked_at + _LOOK_S:
                return None
            if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # none is set yet
                looked_at = now
                return None
        return tracer.start_as_current_span(f"tagmatch.{name}", attributes={"user": user, "peer": peer})

    return span


#: Connections at once, seconds that each may take from its first byte to its last, and bytes of a request
MAX_CONNECTIONS, MAX_SECONDS, MAX_REQUEST = 32, 5.0, 16_384


class HttpEndpoint:
    """A small server in its own thread."""

    def __init__(
        self, options: MetricsOptions, text: Callable[[], bytes], readiness: Callable[[], tuple[bool, bytes]]
    ) -> None:
        self.show(text, readiness)
        self._loop = asyncio.new_event_loop()
        self.open: dict[asyncio.Task[Any] | None, None] = {}  # what answers, the oldest first
        begun = asyncio.start_server(self._answer, options.host, options.port, limit=MAX_REQUEST)
        try:
            self._server = self._loop.run_until_complete(begun)
        except (OSError, OverflowError) as error:
            self._loop.close()
            raise TagMatchError(f"{options.host}:{options.port}: cannot listen for metrics: {error}") from None
        self.url = f"http://{in_url(options.host)}:{self._server.sockets[0].getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever, name="tagmatch-http", daemon=True)
        self._thread.start()

    def show(self, text: Callable[[], bytes], readiness: Callable[[], tuple[bool, bytes]]) -> None:
        """Show these from now on."""
        self._text, self._readiness = text, readiness

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = asyncio.current_task()
        self.open[own] = None
        if len(self.open) > MAX_CONNECTIONS and (oldest := next(iter(self.open))) is not None:
            oldest.cancel()
        try:
            async with asyncio.timeout(MAX_SECONDS):
                words = (await reader.readuntil(b"\n")).split()
                is_http = len(words) == 3 and words[2].startswith(b"HTTP/")
                while is_http and (await reader.readuntil(b"\n")).strip():
                    pass
                # In another thread, as the index may be at work
                writer.write(await asyncio.to_thread(self._found, *(words[:2] if is_http else (b"", b""))))
                writer.transport.set_write_buffer_limits(0)
                await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            writer.transport.abort()  # the client has gone, or has had its time
        except Exception:
            LOG.exception("HTTP has failed", extra={"fields": {"peer": writer.get_extra_info("peername")[0]}})
        finally:
            del self.open[own]
            writer.close()

    def _found(self, method: bytes, target: bytes) -> bytes:
        path, status, kind = target.partition(b"?")[0], 200, "text/plain; charset=utf-8"
        if method != b"GET":
            status, body = 501 if method else 400, b"there is only GET\n"
        elif path == b"/metrics":
            body, kind = self._text(), "text/plain; version=0.0.4; charset=utf-8"
        elif path == b"/livez":
            body = b"alive\n"
        elif path == b"/readyz":
            is_ready, body = self._readiness()
            status = 200 if is_ready else 503
        else:
            status, body = 404, b"there is /metrics, /livez and /readyz\n"
        lines = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
        return f"{lines}\r\nConnection: close\r\n\r\n".encode() + body

    def close(self) -> None:
        """Listen no more."""

        async def end() -> None:
            self._server.close()
            for each in self.open:
                each.cancel()  # type: ignore[union-attr]
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
