"""The remote client, in its own process: the source of all events, at a given rate, and the sink of all deliveries.

`python -m tagmatch_bench.broker.client HOST PORT FOLDER` reads events from the folder. For each line `RATE SECONDS` of
its input it connects, sends, writes to the folder what it has received, and prints a line.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, cast

import numpy as np

from tagmatch.model.arrays import F64Array, I64Array, U8Array
from tagmatch_bench.broker.wire import Events, Names, encoded

# Until the client, a process that has to load kernels, connects
_CONNECTS_S = 60.0


class Client:
    """A client in its own process, from `with` to its end."""

    def __init__(self, events: Events, names: Sequence[str]) -> None:
        self.events, self.names = events, list(names)

    def __enter__(self) -> Client:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            self._listener.settimeout(_CONNECTS_S)
            write_events(self._folder, self.events, self.names)
            host, port = self._listener.getsockname()
            command = [sys.executable, "-m", "tagmatch_bench.broker.client", host, str(port), str(self._folder)]
            self._process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(self._process.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def begin(self, rate: float, seconds: float) -> socket.socket:
        """Let the client connect and send events at a rate; returns the connection from which they come."""
        to_client = cast("IO[str]", self._process.stdin)
        to_client.write(f"{rate!r} {seconds!r}\n")
        to_client.flush()
        connection, _ = self._listener.accept()
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def end(self) -> tuple[Sent, Received]:
        """Wait until the client has sent and received all; the connection must be closed."""
        if not cast("IO[str]", self._process.stdout).readline():
            raise RuntimeError(f"the client has ended with status {self._process.wait()} before it had received all")
        return outcome(self._folder)


# Most events sent at once, and seconds between two looks at the events that are due
_AT_ONCE, _TICK = 1_000, 0.0002
_READ = 1 << 20

_EVENTS, _NAMES, _RECEIVED, _SENT = "events.npz", "names.json", "received.npz", "sent.json"


@dataclass(frozen=True, slots=True)
class Sent:
    """What a client has sent."""

    events: int
    seconds: float
    begun: float  # when the first event was due, by the client's clock


class Received(NamedTuple):
    """What a client has received."""

    data: U8Array
    ends: I64Array  # the bytes that had come by each of `times`, ascending
    times: F64Array  # by the client's clock


def send(connection: socket.socket, events: Events, names: Names, rate: float, seconds: float) -> Sent:
    """Send events at a rate, which repeat in turn and have consecutive numbers from 0 on; nothing more comes then."""
    encoded(events, 0, 1, names)  # kernels are loaded before the clock runs
    sent, total = 0, max(1, int(rate * seconds))
    begin = time.perf_counter()
    while sent < total:
        due = min(total, int(rate * (time.perf_counter() - begin)))
        if sent == due:
            time.sleep(_TICK)
            continue
        count = min(due - sent, _AT_ONCE)
        connection.sendall(encoded(events, sent, count, names).data)
        sent += count
    taken = time.perf_counter() - begin
    connection.shutdown(socket.SHUT_WR)
    return Sent(sent, taken, begin)


def receive(connection: socket.socket) -> Received:
    """All that comes until the other end closes."""
    data, ends, times = bytearray(), list[int](), list[float]()
    while part := connection.recv(_READ):
        times.append(time.perf_counter())
        data += part
        ends.append(len(data))
    return Received(np.frombuffer(data, np.uint8), np.array(ends, np.int64), np.array(times, np.float64))


def source_and_sink(
    connection: socket.socket, events: Events, names: Names, rate: float, seconds: float
) -> tuple[Sent, Received]:
    """Send events, and receive their deliveries at the same time."""
    received: list[Received] = []
    sink = threading.Thread(target=lambda: received.append(receive(connection)), name="sink")
    sink.start()
    try:
        sent = send(connection, events, names, rate, seconds)
    finally:
        sink.join()
    return sent, received[0]


def write_events(folder: Path, events: Events, names: list[str]) -> None:
    """Write events for a client in another process."""
    np.savez(folder / _EVENTS, **events._asdict())
    (folder / _NAMES).write_text(json.dumps(names))


def outcome(folder: Path) -> tuple[Sent, Received]:
    """What a client in another process has sent and received last."""
    with np.load(folder / _RECEIVED) as columns:
        return Sent(**json.loads((folder / _SENT).read_text())), Received(**columns)


def main() -> None:
    """Run as a client in its own process."""
    host, port, folder = sys.argv[1:]
    path = Path(folder)
    with np.load(path / _EVENTS) as columns:
        events = Events(**columns)
    names = Names.of(json.loads((path / _NAMES).read_text()))
    for line in sys.stdin:
        rate, seconds = map(float, line.split())
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sent, received = source_and_sink(connection, events, names, rate, seconds)
        np.savez(path / _RECEIVED, **received._asdict())
        (path / _SENT).write_text(json.dumps(asdict(sent)))
        print("done", flush=True)


if __name__ == "__main__":
    main()
