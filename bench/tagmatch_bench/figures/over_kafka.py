"""Messages from topic to topic through the gateway to Kafka, with a cluster that plays its part."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

from tagmatch import TagMatch
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import Samples
from tagmatch_bench.systems.matcher import UnavailableError, needed

_Form = Literal["properties", "json"]
_Guarantee = Literal["at_least_once", "exactly_once"]
#: Sets, each with its own tag; least and most messages, as the cluster keeps 5 MiB of a partition; the goal
_SETS, _LEAST, _MOST, _GOAL = 1_000, 20_000, 200_000, 100_000
_WAIT_S = 120.0
_CLUSTER = """
import sys
from confluent_kafka import Producer
producer = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "none"})
print(next(iter(producer.list_topics(timeout=30).brokers.values())).port, flush=True)
sys.stdin.read()
"""


def over_kafka_figure(bench: Bench) -> Result:
    """Measure messages a second from a topic to a topic."""
    count = max(min(bench.sets(), _MOST), _LEAST)
    result = bench.result(
        "serve-kafka",
        "Messages from topic to topic of Kafka",
        f"""{count:,} messages wait in a topic with four partitions; each matches one of {_SETS:,} sets, on the CPU, and
        becomes a notification in another topic. The brokers are the three that librdkafka plays, in a process of
        their own. Time counts from the first notification that they have until the last, so that nothing of the
        producer of the messages or of starting counts.""",
        messages=count,
    )
    panel = result.panel("messages a second from topic to topic", "", "messages/s")
    try:
        with needed("confluent-kafka"):
            import confluent_kafka  # noqa: F401
        for guarantee in get_args(_Guarantee):
            for form in get_args(_Form):
                what = f"{form}, {guarantee.replace('_', ' ')}"
                with bench.doing(f"over Kafka: {what}"):
                    rates = [_rate(count, form, guarantee) for _ in range(bench.options.rounds)]
                panel.add("tagmatch serve", what, found := Samples(tuple(rates)))
                result.add(what, found, "messages/s", Target(_GOAL))
    except UnavailableError as error:
        result.unavailable["Kafka"] = str(error)
    return result


@contextmanager
def _cluster() -> Iterator[int]:
    """The port of one of the brokers."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _CLUSTER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _fill(port: int, count: int, form: _Form) -> None:
    from confluent_kafka import Producer

    producer: Any = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "queue.buffering.max.messages": 2 * _MOST})
    for topic in ("in", "out"):
        producer.list_topics(topic, timeout=30)
    for number in range(count):
        tag = f"t{number % _SETS}"
        if form == "json":
            producer.produce("in", f'{{"tags": ["{tag}"]}}')
        else:
            producer.produce("in", str(number), headers=[("tag", tag)])
    producer.flush(_WAIT_S)


def _rate(count: int, form: _Form, guarantee: _Guarantee) -> float:
    from tagmatch.broker.config import KafkaOptions
    from tagmatch.broker.hub import Hub
    from tagmatch.broker.kafka import KafkaGateway
    from tagmatch.broker.sessions import Sessions

    with _cluster() as port, TagMatch() as index:
        _fill(port, count, form)
        for key in range(_SETS):
            index.add_set([f"t{key}"], key)
        index.consolidate()
        sessions = Sessions("integer")
        options = KafkaOptions(
            port=port, messages="in", notifications="out", form=form, guarantee=guarantee, session_timeout=6.0
        )
        with Hub(index, sessions) as hub:
            hub.publish([["t1"]] * options.batch_messages).result()  # kernels are compiled
            gateway = KafkaGateway(index, hub, sessions, options)
            gateway.start()
            try:
                return _timed(gateway.counts.now, count)
            finally:
                gateway.stop()


def _timed(counts: Any, count: int) -> float:
    first = began = 0.0
    until = time.monotonic() + _WAIT_S
    while (sent := counts["sent"]) < count:
        if not first and sent:
            first, began = sent, time.perf_counter()
        if time.monotonic() > until:
            raise UnavailableError(f"only {sent:,} of {count:,} messages came within {_WAIT_S:.0f} s")
        time.sleep(0.001)
    if not first:
        raise UnavailableError("all messages came together, so that nothing could be timed")
    return (count - first) / (time.perf_counter() - began)
