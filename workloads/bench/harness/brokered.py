"""A broker around an engine, and a client in a process of its own that sends events at a rate, as in §4.2 of PCM."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.rows import sort_values
from tagmatch.workloads.broker.broker import Broker, Traffic
from tagmatch.workloads.broker.client import Sent, outcome, write_events
from tagmatch.workloads.broker.wire import Names, decoded, deliveries, encoded, received

if TYPE_CHECKING:
    from tagmatch.model.arrays import Lists
    from tagmatch.workloads.broker.broker import Engine
    from tagmatch.workloads.broker.wire import Events

# Until the client, a process that has to load kernels, connects
_CONNECTS_S = 60.0


@dataclass(frozen=True, slots=True)
class Brokered:
    """What became of events that a client has sent.

    Attributes
    ----------
    sent : Sent
    traffic : Traffic
    wrong : int
        Events that were delivered to other interfaces than they should, more than once, or not at all though they
        were not dropped.
    """

    sent: Sent
    traffic: Traffic
    wrong: int

    @property
    def offered_rate(self) -> float:
        """Events a second that the client has sent."""
        return self.sent.events / self.sent.seconds

    @property
    def processing_rate(self) -> float:
        """Events a second that were matched and delivered."""
        return self.traffic.processed / self.traffic.seconds


@kernel
def _wrong(numbers, offsets, keys, expected_offsets, expected_keys):
    """Deliveries of events, which repeat in turn, that are not as expected, or do not come in order."""
    wrong, before = 0, np.int64(-1)
    for event in range(len(numbers)):
        number = np.int64(numbers[event])
        place = number % (len(expected_offsets) - 1)
        begin, end = offsets[event], offsets[event + 1]
        first, last = expected_offsets[place], expected_offsets[place + 1]
        right = number > before and end - begin == last - first
        if right:
            sort_values(keys, begin, end)
            for i in range(end - begin):
                right &= keys[begin + i] == expected_keys[first + i]
        wrong += not right
        before = number
    return wrong


def brokered(engine: Engine, events: Events, rate: float, seconds: float, expected: Lists) -> Brokered:
    """Have a client send events at a rate, and a broker match and deliver them.

    Parameters
    ----------
    engine : Engine
    events : Events
        They repeat in turn.
    rate : float
        Events a second that the client sends, if the broker reads them so fast.
    seconds : float
    expected : Lists
        The keys of each event, ascending.
    """
    names, first = Names.of(engine.names), events.part(0, 1)
    decoded(encoded(first, 0, 1, names), names)  # kernels are loaded before anything comes
    deliveries(first.numbers, engine.interfaces(first))
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as listener:
        folder = Path(name)
        write_events(folder, events, list(engine.names))
        host, port = listener.getsockname()
        listener.settimeout(_CONNECTS_S)
        options = [host, str(port), name, repr(rate), repr(seconds)]
        client = subprocess.Popen([sys.executable, "-m", "tagmatch.workloads.broker.client", *options])
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                traffic = Broker(engine).serve(connection)
            client.wait()
        finally:
            client.kill()
            client.wait()
        sent, data = outcome(folder)
    numbers, keys = received(np.frombuffer(data, np.uint8))
    wrong = _wrong(numbers, keys.offsets, keys.values.copy(), expected.offsets, expected.values)
    lost = abs(sent.events - traffic.offered) + abs(traffic.processed - len(numbers))
    return Brokered(sent, traffic, int(wrong) + lost)
