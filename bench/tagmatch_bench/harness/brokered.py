"""A broker around an engine, and a client in a process of its own that sends events at a rate, as in §4.2 of PCM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import sort_values
from tagmatch_bench.broker.broker import Broker, Traffic
from tagmatch_bench.broker.wire import DELIVERY, INTERFACE, Names, decoded, deliveries, encoded, received

if TYPE_CHECKING:
    from tagmatch.model.arrays import F64Array, I64Array, Lists, U32Array
    from tagmatch_bench.broker.broker import Engine
    from tagmatch_bench.broker.client import Received, Sent
    from tagmatch_bench.broker.remote import Client


# Events of the largest call before anything is measured
_WARM = 1000


@dataclass(frozen=True, slots=True)
class Brokered:
    """What became of events that a client has sent.

    Attributes
    ----------
    sent : Sent
    traffic : Traffic
    unaccounted : int
        Events that were neither delivered nor dropped, or delivered more than once: 0 if sent = processed + dropped,
        and each that was processed came to the client once, in the order in which they were sent.
    keys, wrong, missing : int
        Keys that were delivered, those of them that were not expected, and those that events which were delivered lack.
    delays : float64 array
        Of each delivery, seconds from when its event was due to be sent until its last byte came.
    """

    sent: Sent
    traffic: Traffic
    unaccounted: int
    keys: int
    wrong: int
    missing: int
    delays: F64Array

    @property
    def offered_rate(self) -> float:
        """Events a second that the client has sent."""
        return self.sent.events / self.sent.seconds

    @property
    def processing_rate(self) -> float:
        """Events a second that were matched and delivered."""
        return self.traffic.processed / self.traffic.seconds

    @property
    def key_rate(self) -> float:
        """Keys a second that were delivered."""
        return self.keys / self.traffic.seconds

    @property
    def dropped(self) -> float:
        """Share of the events that were dropped."""
        return self.traffic.dropped / self.sent.events

    def delay(self, share: float) -> float:
        """Seconds within which this share of the deliveries came; if none did, all that the broker had."""
        return float(np.quantile(self.delays, share)) if len(self.delays) else self.traffic.seconds


@kernel
def _compare(numbers, offsets, keys, expected_offsets, expected_keys):
    """Deliveries that do not come in order, and their keys that are wrong and missing; events repeat in turn."""
    disordered = wrong = missing = 0
    before = np.int64(-1)
    for event in range(len(numbers)):
        number = np.int64(numbers[event])
        if number <= before:
            disordered += 1
        before = number
        begin, end = offsets[event], offsets[event + 1]
        sort_values(keys, begin, end)
        place = number % (len(expected_offsets) - 1)
        due, last = expected_offsets[place], expected_offsets[place + 1]
        while begin < end or due < last:
            if due == last or (begin < end and keys[begin] < expected_keys[due]):
                wrong += 1
                begin += 1
            elif begin == end or expected_keys[due] < keys[begin]:
                missing += 1
                due += 1
            else:
                begin += 1
                due += 1
    return disordered, wrong, missing


def brokered(
    engine: Engine, client: Client, rate: float, seconds: float, expected: Lists, *, queue: int = 100
) -> Brokered:
    """Have a client send events at a rate, and a broker match and deliver them.

    Parameters
    ----------
    engine : Engine
    client : Client
    rate : float
        Events a second that the client sends, if the broker reads them so fast.
    seconds : float
    expected : Lists
        The keys of each of the client's events, ascending.
    queue : int
        Events that wait for the engine at most.

    Raises
    ------
    Exception
        What the engine raises.
    """
    for count in (1, min(queue, _WARM)):  # kernels are loaded before anything comes
        some, _ = decoded(encoded(client.events, 0, count, Names.of(client.names)), Names.of(engine.names))
        deliveries(some.numbers, engine.interfaces(some))
    with client.begin(rate, seconds) as connection:
        traffic = Broker(engine, queue=queue).serve(connection)
    sent, data = client.end()
    numbers, keys = received(data.data)
    disordered, wrong, missing = _compare(
        numbers, keys.offsets, keys.values.copy(), expected.offsets, expected.values.astype(np.uint64, copy=False)
    )
    unaccounted = (
        int(disordered)
        + abs(sent.events - traffic.offered)
        + abs(traffic.offered - traffic.dropped - traffic.processed)
        + abs(traffic.processed - len(numbers))
    )
    delays = _delays(numbers, keys.offsets, data, sent, rate)
    return Brokered(sent, traffic, int(unaccounted), len(keys.values), int(wrong), int(missing), delays)


def _delays(numbers: U32Array, offsets: I64Array, data: Received, sent: Sent, rate: float) -> F64Array:
    """Seconds from when each event was due until all of its delivery had come."""
    ends = DELIVERY * np.arange(1, len(numbers) + 1) + INTERFACE * offsets[1:]
    came = data.times[np.searchsorted(data.ends, ends)]
    delays: F64Array = came - (sent.begun + (numbers + 1.0) / rate)
    return delays
