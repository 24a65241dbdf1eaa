"""Drives a subscriber of CycloneDDS with real work, on the wall clock."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from tagmatch.model.parallel import join, start
from tagmatch_bench.qos.driving import numbers_when_due
from tagmatch_bench.qos.kernels import DROPPED, LOST

if TYPE_CHECKING:
    from tagmatch_bench.qos.driving import Driven

#: Seconds that the subscriber waits at a time
_PATIENCE = 0.02


def run_dds(driven: Driven) -> None:
    """Publish each message when it is due, and have one subscriber match what it takes, each message as one task.

    What it never sees, as its lifespan has ended, is dropped.

    Raises
    ------
    UnavailableError
        The package `cyclonedds` is missing.
    """
    from tagmatch_bench.systems.cyclone_dds import Topics

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
