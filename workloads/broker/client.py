"""The one remote client: the source of all events, at a given rate, and the sink of all deliveries.

`python -m tagmatch.workloads.broker.client HOST PORT FOLDER RATE SECONDS` is one in a process of its own: it reads
events from the folder, and writes there what it has received.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tagmatch.workloads.broker.wire import Events, Names, encoded

# Events that are sent at once at most, and seconds between looking what is due
_AT_ONCE, _TICK = 1_000, 0.0002
_READ = 1 << 20

_EVENTS, _NAMES, _RECEIVED, _SENT = "events.npz", "names.json", "received.bin", "sent.json"


@dataclass(frozen=True, slots=True)
class Sent:
    """What a client has sent: events, and seconds that it took."""

    events: int
    seconds: float


def send(connection: socket.socket, events: Events, names: Names, rate: float, seconds: float) -> Sent:
    """Send events at a rate, which repeat in turn and have consecutive numbers from 0 on; nothing more comes then.

    What is late is sent as soon as the connection takes it.
    """
    encoded(events, 0, 1, names)  # kernels are loaded before the clock runs
    sent, total = 0, int(rate * seconds)
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
    return Sent(sent, taken)


def receive(connection: socket.socket) -> bytearray:
    """All that comes until the other end closes."""
    data = bytearray()
    while part := connection.recv(_READ):
        data += part
    return data


def source_and_sink(
    connection: socket.socket, events: Events, names: Names, rate: float, seconds: float
) -> tuple[Sent, bytearray]:
    """Send events, and receive their deliveries at the same time."""
    data = bytearray()
    sink = threading.Thread(target=lambda: data.extend(receive(connection)), name="sink")
    sink.start()
    try:
        sent = send(connection, events, names, rate, seconds)
    finally:
        sink.join()
    return sent, data


def write_events(folder: Path, events: Events, names: list[str]) -> None:
    """Write events for a client in another process."""
    np.savez(folder / _EVENTS, **events._asdict())
    (folder / _NAMES).write_text(json.dumps(names))


def outcome(folder: Path) -> tuple[Sent, bytes]:
    """What a client in another process has sent and received."""
    return Sent(**json.loads((folder / _SENT).read_text())), (folder / _RECEIVED).read_bytes()


def main() -> None:
    """Be a client in a process of its own."""
    host, port, folder, rate, seconds = sys.argv[1:]
    path = Path(folder)
    with np.load(path / _EVENTS) as columns:
        events = Events(**columns)
    names = Names.of(json.loads((path / _NAMES).read_text()))
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent, data = source_and_sink(connection, events, names, float(rate), float(seconds))
    (path / _RECEIVED).write_bytes(data)
    (path / _SENT).write_text(json.dumps(asdict(sent)))


if __name__ == "__main__":
    main()
