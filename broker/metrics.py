"""What a service counts, as Prometheus reads it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from tagmatch.model.errors import ClosedError, TagMatchError

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise TagMatchError("the service needs prometheus-client; install it with: pip install 'tagmatch[serve]'") from None

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class _Index(Collector):
    """Figures of the index, looked up when somebody asks."""

    def __init__(self, stats: Callable[[], dict[str, Any]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Give what is there now; nothing of an index that is closed."""
        with contextlib.suppress(ClosedError):
            stats = self._stats()
            for name, what in (("sets", "Distinct stored sets."), ("keys", "Keys of all sets together.")):
                yield GaugeMetricFamily(f"tagmatch_index_{name}", what, stats[name])
            yield GaugeMetricFamily("tagmatch_staged_changes", "Changes that wait for consolidate.", stats["staged"])
            yield GaugeMetricFamily("tagmatch_index_bytes", "Bytes of the index in memory.", stats["index_bytes"])
            yield from _channels(stats["channels"])


def _channels(channels: dict[str, dict[str, Any]]) -> Iterator[Metric]:
    """Figures of channels: what became of each message, how many answers were late, and by how much."""
    if not channels:
        return
    ended = CounterMetricFamily(
        "tagmatch_channel_messages", "Messages of channels, by what became of them.", labels=["channel", "outcome"]
    )
    offered = CounterMetricFamily("tagmatch_channel_offered", "Messages of channels that came.", labels=["channel"])
    late = CounterMetricFamily("tagmatch_channel_late", "Answers after the deadline.", labels=["channel"])
    waiting = GaugeMetricFamily("tagmatch_channel_in_flight", "Messages without an outcome.", labels=["channel"])
    lateness = GaugeMetricFamily(
        "tagmatch_channel_lateness_seconds", "How late the late ones were.", labels=["channel", "quantile"]
    )
    for channel, figures in channels.items():
        for outcome in ("answered", "refused", "deserted", "dropped", "cancelled", "failed"):
            ended.add_metric([channel, outcome], figures[outcome])
        offered.add_metric([channel], figures["offered"])
        late.add_metric([channel], figures["late"])
        waiting.add_metric([channel], figures["in_flight"])
        for quantile, name in (("0.5", "median"), ("0.99", "p99"), ("1", "max")):
            lateness.add_metric([channel, quantile], figures["lateness"][name])
    yield from (ended, offered, late, waiting, lateness)


class _Subscribers(Collector):
    """Figures of sessions, of what publishes to them, and of gateways, looked up when somebody asks."""

    #: Figures that go up and down; others only go up
    _NOW = frozenset(("sessions", "connected", "keys", "waiting", "in_flight", "bytes", "waiting_bytes"))

    def __init__(self, stats: Callable[[], dict[str, dict[str, int]]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Give what is there now."""
        gateways: dict[str, Any] = {}
        for part, figures in self._stats().items():
            for name, value in figures.items():
                kind = GaugeMetricFamily if name in self._NOW else CounterMetricFamily
                if part in ("sessions", "hub"):
                    yield kind(f"tagmatch_{part}_{name}", f"See `{name}` in docs/subscribers.md.", value)
                else:
                    what = f"See `{name}` in docs/subscribers.md."
                    family = gateways.setdefault(name, kind(f"tagmatch_gateway_{name}", what, labels=["session"]))
                    family.add_metric([part], value)
        yield from gateways.values()


class Metrics:
    """Counters of one service.

    Parameters
    ----------
    stats : callable
        The figures of the index, as `TagMatch.stats` gives them.

    Attributes
    ----------
    registry : CollectorRegistry
        To add more to.
    """

    def __init__(self, stats: Callable[[], dict[str, Any]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Index(stats))
        own: Any = {"registry": self.registry}
        self.messages = Counter("tagmatch_messages", "Messages that came in.", **own)
        self.answers = Counter("tagmatch_answers", "Messages that were answered.", **own)
        self.keys = Counter("tagmatch_keys", "Keys in answers.", **own)
        self.changes = Counter("tagmatch_changes", "Changes that were staged, and moves.", ["kind"], **own)
        self.errors = Counter("tagmatch_errors", "Calls that ended with an error.", ["kind"], **own)
        self.refusals = Counter("tagmatch_refused", "Calls that were refused.", ["reason"], **own)
        self.throttled = Counter("tagmatch_throttled_seconds", "Time that streams waited for their rate.", **own)
        self.calls = Counter("tagmatch_calls", "Calls.", ["call"], **own)
        self.in_flight = Gauge("tagmatch_messages_in_flight", "Messages that are not answered yet.", **own)
        self.queued = Gauge("tagmatch_messages_queued", "Messages that wait to be matched.", **own)
        self.cancelled = Counter(
            "tagmatch_calls_cancelled", "Calls that the service has ended, as they waited for clients in vain.", **own
        )
        self.held = Gauge("tagmatch_held_bytes", "Bytes that have come and are not dealt with yet.", **own)
        self.under_way = Gauge("tagmatch_calls_under_way", "Calls under way, streams among them.", **own)
        self.connections = Gauge("tagmatch_connections", "Clients that have calls under way.", **own)
        self.latency = Histogram(
            "tagmatch_answer_seconds", "From a batch's arrival to its answer.", buckets=_SECONDS, **own
        )
        self.call_time = Histogram("tagmatch_call_seconds", "Time of calls.", ["call"], buckets=_SECONDS, **own)

    def watch_subscribers(self, stats: Callable[[], dict[str, dict[str, int]]]) -> None:
        """Have figures of subscribers, by part: `sessions`, `hub`, and gateways by their sessions."""
        self.registry.register(_Subscribers(stats))

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)

    def refused(self, reason: str) -> None:
        """Count a call that was refused."""
        self.refusals.labels(reason).inc()

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Count a call and its time."""
        began = time.perf_counter()
        self.calls.labels(name).inc()
        try:
            yield
        finally:
            self.call_time.labels(name).observe(time.perf_counter() - began)
