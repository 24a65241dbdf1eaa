"""The broker: input connections manager, input queue, engine, output queue, output connections manager."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tagmatch.pipeline.run.stage import Stage, StoppedError
from tagmatch_bench.broker.input_queue import InputQueue
from tagmatch_bench.broker.wire import Names, decoded, deliveries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tagmatch.model.arrays import Lists
    from tagmatch_bench.broker.wire import Events

# Bytes that are read at once
_READ = 1 << 18


class Engine(Protocol):
    """What matches: finds the interfaces of events."""

    names: Sequence[str]

    def interfaces(self, events: Events) -> Lists:
        """Of each event the interfaces, each once; the event's attributes are numbered as `names`."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a broker has done.

    Attributes
    ----------
    offered, dropped, processed : int
        Events that have come; those for which the input queue had no room; and those that were matched and delivered.
    seconds : float
        From the first event to the last delivery.
    """

    offered: int
    dropped: int
    processed: int
    seconds: float


class Broker:
    """Reads events from a connection, matches them, and writes there which interfaces each goes to.

    As published, one thread reads, one writes, and the engine has those between them; the input queue is bounded, and
    the output queue is not. The engine gets all events that wait at once, which it may match one by one.

    Parameters
    ----------
    engine : Engine
    queue : int
        Events that wait for the engine at most; the paper has 100.
    """

    def __init__(self, engine: Engine, *, queue: int = 100) -> None:
        self._engine, self._names = engine, Names.of(engine.names)
        self._input = InputQueue(queue)
        self._matching = Stage("match", self._match, self._fail, threads=1, bound=1, otherwise=self._input.take)
        self._writing = Stage("deliver", self._write, self._fail, threads=1, bound=sys.maxsize)
        self._changed = threading.Condition()
        self._processed = 0
        self._error: BaseException | None = None

    def serve(self, connection: socket.socket) -> Traffic:
        """Serve a connection until nothing more comes; returns when all that has come is delivered or dropped.

        Raises
        ------
        WireError
            What comes is no event.
        Exception
            What the engine raises.
        """
        self._connection = connection
        self._matching.start()
        self._writing.start()
        try:
            begun = self._read()
            with self._changed:
                self._changed.wait_for(lambda: self._error is not None or self._input.is_done(self._processed))
            if self._error is not None:
                raise self._error
            seconds = time.perf_counter() - begun
        finally:
            for stage in (self._matching, self._writing):
                stage.stop()
                stage.join()
        return Traffic(self._input.offered, self._input.dropped, self._processed, seconds)

    def _read(self) -> float:
        """Have events wait for the engine as they come; returns when the first came."""
        data, begun = np.empty(2 * _READ, np.uint8), 0.0
        left = 0
        while self._error is None:
            if len(data) - left < _READ:  # a part of a long event
                data = np.concatenate([data[:left], np.empty(len(data), np.uint8)])
            count = self._connection.recv_into(data.data[left:])
            if not count:
                break
            begun = begun or time.perf_counter()
            events, stop = decoded(data[: left + count], self._names)
            if len(events.numbers):
                self._input.offer(events)
                self._matching.nudge()
            left += count - stop
            data[:left] = data[stop : stop + left].copy()
        return begun or time.perf_counter()

    def _match(self, events: Events) -> Iterable[tuple[Stage[Any], tuple[Events, Lists]]]:
        return [(self._writing, (events, self._engine.interfaces(events)))]

    def _write(self, matched: tuple[Events, Lists]) -> Iterable[tuple[Stage[Any], Any]]:
        events, interfaces = matched
        self._connection.sendall(deliveries(events.numbers, interfaces).data)
        with self._changed:
            self._processed += len(events.numbers)
            self._changed.notify()
        return ()

    def _fail(self, _: object, error: BaseException) -> None:
        with self._changed:
            if not isinstance(error, StoppedError):
                self._error = self._error or error
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RD)  # nothing more is read
            self._changed.notify()
