"""Topics of CycloneDDS, one for each channel, and a subscriber that does real work, on the wall clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tagmatch.model.parallel import join, start
from tagmatch_bench.qos.driving import numbers_when_due
from tagmatch_bench.qos.kernels import DROPPED, LOST
from tagmatch_bench.systems.matcher import needed

with needed("cyclonedds"):
    from cyclonedds.core import InstanceState, Policy, Qos, ReadCondition, SampleState, ViewState, WaitSet
    from cyclonedds.domain import DomainParticipant
    from cyclonedds.idl import IdlStruct
    from cyclonedds.idl.types import int64
    from cyclonedds.pub import DataWriter
    from cyclonedds.sub import DataReader
    from cyclonedds.topic import Topic

from tagmatch import Channel
from tagmatch_bench.qos.driving import Driven

#: Domains are told apart by number
_DOMAIN = 97
_SECOND = 1_000_000_000
_ALL = SampleState.Any | ViewState.Any | InstanceState.Any


@dataclass
class Numbered(IdlStruct, typename="Numbered"):
    """A sample, which is a number."""

    number: int64


class Topics:
    """A topic for each channel.

    A channel's deadline is DEADLINE and LIFESPAN, its budget LATENCY_BUDGET, and its place TRANSPORT_PRIORITY;
    the first channel has the highest priority. All samples are kept until they are taken or their lifespan ends.
    """

    def __init__(self, channels: Sequence[Channel]) -> None:
        participant = DomainParticipant(_DOMAIN)
        self._waiting = WaitSet(participant)
        self._readers, self._writers = [], []
        for number, channel in enumerate(channels):
            due = round(channel.due * _SECOND)
            qos = Qos(
                Policy.Reliability.Reliable(_SECOND),
                Policy.History.KeepAll,
                Policy.Deadline(due),
                Policy.LatencyBudget(round(channel.budget * _SECOND)),
                Policy.TransportPriority(len(channels) - number),
                Policy.Lifespan(due),
            )
            topic = Topic(participant, f"channel_{number}", Numbered, qos=qos)
            self._readers.append(DataReader(participant, topic, qos=qos))
            self._writers.append(DataWriter(participant, topic, qos=qos))
            self._waiting.attach(ReadCondition(self._readers[-1], _ALL))

    def publish(self, channel: int, number: int) -> None:
        """Publish a sample."""
        self._writers[channel].write(Numbered(number))

    def wait(self, seconds: float) -> None:
        """Wait until there is a sample, but not longer."""
        self._waiting.wait(round(seconds * _SECOND))

    def taken(self) -> Iterator[int]:
        """Take samples one by one, each of the first channel that has one, until no channel has one."""
        while True:
            samples = next((some for reader in self._readers if (some := reader.take(1))), None)
            if samples is None:
                return
            yield from (sample.number for sample in samples if isinstance(sample, Numbered))


#: Seconds that the subscriber waits at a time
_PATIENCE = 0.02


def run_dds(driven: Driven) -> None:
    """Publish each message when it is due, and have one subscriber match what it takes, each message as one task."""
    topics = Topics([flow.channel for flow in driven.flows])
    published = threading.Event()
    begun = time.perf_counter()
    errors: list[BaseException] = []

    def subscribe() -> None:
        try:
            while True:
                last = published.is_set()  # before the look: then nothing can come after it
                for number in topics.taken():
                    (entry,) = driven.entries(number)
                    driven.perform(entry)
                    driven.done(entry, time.perf_counter() - begun)
                if last:
                    return
                topics.wait(_PATIENCE)
        except BaseException as error:
            errors.append(error)

    subscriber = threading.Thread(target=subscribe, name="qos-dds", daemon=True)
    start(subscriber)
    try:
        for number in numbers_when_due(driven.arrivals, lambda: time.perf_counter() - begun):
            topics.publish(driven.channel_of[number], number)
    finally:
        published.set()
        join(subscriber)
    if errors:
        raise errors[0]
    driven.ends[driven.ends == LOST] = DROPPED
