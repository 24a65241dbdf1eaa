"""Messages from one publisher to one subscriber, compared with servers that do only that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tagmatch import TagMatch, connect
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.processes import ServedIndex
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.systems.matcher import UnavailableError, needed
from tagmatch_bench.systems.servers import MessageServer

#: Bytes of a message, most messages of one measurement, and messages of a batch, if messages go in batches
PAYLOAD, MOST, BATCH = b"x" * 100, 50_000, 1_024
_WAIT_S = 120.0


class Carrier(Protocol):
    """A way from a publisher to a subscriber, both in this process."""

    def carry(self, count: int) -> None:
        """Send `count` messages, and return when the subscriber has them all."""

    def close(self) -> None:
        """End connections and the server."""


class _Counted:
    """Counts the messages that have come, and can be waited for."""

    def __init__(self) -> None:
        self._changed, self._count = threading.Condition(), 0
        self.lost = 0

    def add(self, count: int) -> None:
        with self._changed:
            self._count += count
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Wait for `count` messages, and begin again; those that do not come are lost."""
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count, _WAIT_S)
            self.lost += max(count - self._count, 0)
            self._count = 0


def transport_figure(bench: Bench) -> Result:
    """Measure messages a second to one subscriber."""
    result = bench.result(
        "transport",
        "Messages from one publisher to one subscriber",
        f"""Messages of {len(PAYLOAD)} bytes over loopback, without TLS, from one publisher to one subscriber, both of
        them clients in Python in one process; each server runs in its own process on the same machine. Time counts
        until the subscriber has all. `tagmatch serve` matches each message against one set, on the CPU, and its client
        publishes batches of {BATCH:,}; to Redis go pipelines of as many commands, to a stream. With nats-server
        (nats-py) and mosquitto (paho, QoS 1), messages go one by one, and their clients take most of the time.""",
        bytes=len(PAYLOAD),
    )
    counted = {name: _Counted() for name in CARRIERS}
    with ExitStack() as stack:
        carriers: dict[str, Carrier] = {}
        for name, begin in CARRIERS.items():
            try:
                carriers[name] = stack.enter_context(closing(begin(counted[name])))
            except UnavailableError as error:
                result.unavailable[name] = str(error)
        works: dict[str, Callable[[int], object]] = {name: carrier.carry for name, carrier in carriers.items()}
        found = bench.rates("transport", works, MOST)
    panel = result.panel(f"messages of {len(PAYLOAD)} bytes a second", "", "messages/s")
    panel.add_all(found, "one subscriber")
    for name, samples in found.items():
        if name != TAGMATCH:
            result.add(f"{TAGMATCH} against {name}", found[TAGMATCH].ratios(samples), "times")
    lost = sum(each.lost for each in counted.values())
    result.add("messages lost", lost, "messages", Target(0, at_most=True, required=True))
    return result


class _Tagmatch:
    def __init__(self, counted: _Counted) -> None:
        self._counted, self._stack = counted, ExitStack()
        folder = Path(self._stack.enter_context(TemporaryDirectory())) / "one.index"
        with TagMatch(folder) as index:
            index.add_set(["topic"], 1)
            index.consolidate()
        served = self._stack.enter_context(ServedIndex(folder, 1))
        self._client = self._stack.enter_context(connect(served.url))
        self._subscriber = self._client.subscriber("one", [1])
        self._is_there = threading.Event()
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()
        while not self._is_there.wait(0.05):  # until the service knows of the subscriber
            self._client.publish([["topic"]], [b"first"])

    def _take(self) -> None:
        for batch in self._subscriber.batches():
            self._is_there.set()
            lengths = pc.binary_length(batch.column("payload"))
            self._counted.add(pc.sum(pc.equal(lengths, len(PAYLOAD))).as_py())

    def carry(self, count: int) -> None:
        # Each chunk travels as its own batch
        sizes = [min(BATCH, count - begin) for begin in range(0, count, BATCH)]
        whole = pa.table({"tags": [["topic"]] * BATCH, "payload": [PAYLOAD] * BATCH})
        self._client.publish(pa.concat_tables([whole[:size] for size in sizes]))
        self._counted.wait(count)

    def close(self) -> None:
        self._subscriber.close()
        self._thread.join()
        self._stack.close()


class _Redis:
    def __init__(self, counted: _Counted) -> None:
        with needed("redis"):
            import redis
        self._counted, self._server = counted, MessageServer("redis-server")
        self._publisher, self._subscriber = (redis.Redis(port=self._server.port) for _ in range(2))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        last: Any = "0"
        while not self._ending.is_set():
            streams: Any = self._subscriber.xread({"one": last}, count=BATCH, block=100)
            for _, entries in streams:
                last = entries[-1][0]
                self._counted.add(len(entries))

    def carry(self, count: int) -> None:
        for begin in range(0, count, BATCH):
            with self._publisher.pipeline(transaction=False) as pipeline:
                for _ in range(min(BATCH, count - begin)):
                    pipeline.xadd("one", {"payload": PAYLOAD}, maxlen=2 * MOST)
                pipeline.execute()
        self._counted.wait(count)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._publisher.close()
        self._subscriber.close()
        self._server.close()


class _Nats:
    def __init__(self, counted: _Counted) -> None:
        with needed("nats-py"):
            import nats
        self._nats, self._counted, self._server = nats, counted, MessageServer("nats-server")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._do(self._connect())

    def _do(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_WAIT_S)

    async def _connect(self) -> None:
        url = f"nats://127.0.0.1:{self._server.port}"
        self._publisher, self._subscriber = [await self._nats.connect(url) for _ in range(2)]
        await self._subscriber.subscribe("one", cb=self._take)
        await self._subscriber.flush()

    async def _take(self, _message: Any) -> None:
        self._counted.add(1)

    async def _publish(self, count: int) -> None:
        for _ in range(count):
            await self._publisher.publish("one", PAYLOAD)
        await self._publisher.flush()

    def carry(self, count: int) -> None:
        self._do(self._publish(count))
        self._counted.wait(count)

    async def _end(self) -> None:
        await self._publisher.close()
        await self._subscriber.close()

    def close(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._server.close()


class _Mosquitto:
    def __init__(self, counted: _Counted) -> None:
        with needed("paho-mqtt"):
            import paho.mqtt.client as mqtt
            from paho.mqtt.enums import CallbackAPIVersion
        self._counted, self._server = counted, MessageServer("mosquitto")
        self._publisher, self._subscriber = (mqtt.Client(CallbackAPIVersion.VERSION2) for _ in range(2))
        self._subscriber.on_message = lambda *_: counted.add(1)
        is_there = threading.Event()
        self._subscriber.on_subscribe = lambda *_: is_there.set()
        self._publisher.max_inflight_messages_set(BATCH)
        for client in (self._publisher, self._subscriber):
            client.connect("127.0.0.1", self._server.port)
            client.loop_start()
        self._subscriber.subscribe("one", qos=1)
        is_there.wait(_WAIT_S)

    def carry(self, count: int) -> None:
        for _ in range(count):
            self._publisher.publish("one", PAYLOAD, qos=1)
        self._counted.wait(count)

    def close(self) -> None:
        for client in (self._publisher, self._subscriber):
            client.disconnect()
            client.loop_stop()
        self._server.close()


TAGMATCH = "tagmatch serve"
CARRIERS: dict[str, Callable[[_Counted], Carrier]] = {
    TAGMATCH: _Tagmatch,
    "Redis streams": _Redis,
    "nats-server": _Nats,
    "mosquitto": _Mosquitto,
}
