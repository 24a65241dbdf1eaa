"""Matching of a channel's messages as tasks: subscriptions and events, an H phase, then SubC phases.

"Pub/Sub on Stream", §4.2 and §6.1: 1,504 distinct predicates on 238 attributes; events combine operands of predicates,
uniformly. Chosen, as the paper does not say: operators are `=`, `<` and `>`, as in its examples, each for a third;
a subscription has five predicates, each on another attribute.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import I64Array
from tagmatch_bench.systems.access_predicates import AccessPredicates

ATTRIBUTES, PREDICATES, OF_SUBSCRIPTION = 238, 1504, 5

_NAMES = pa.array([f"a{number}" for number in range(ATTRIBUTES)])
_OPERATORS = pa.array(["=", "<", ">"])
# Predicate `p` is on attribute `p % ATTRIBUTES`, with operand `p // ATTRIBUTES`: all of an attribute's are different
_OF_ATTRIBUTE = np.bincount(np.arange(PREDICATES) % ATTRIBUTES)


def subscriptions(count: int, seed: int) -> pa.Table:
    """Draw subscriptions, each with its own key."""
    random = np.random.default_rng([seed, 0])
    attributes = random.integers(0, ATTRIBUTES, (count, OF_SUBSCRIPTION))
    while len(again := np.flatnonzero((np.diff(np.sort(attributes)) == 0).any(axis=1))):
        attributes[again] = random.integers(0, ATTRIBUTES, (len(again), OF_SUBSCRIPTION))
    operands = _operands(random, attributes)
    # The operator belongs to the predicate, not to a subscription
    of_predicate = np.random.default_rng(seed).integers(0, len(_OPERATORS), PREDICATES)
    operators = of_predicate[operands * ATTRIBUTES + attributes]
    constraints = pa.StructArray.from_arrays(
        [
            _NAMES.take(pa.array(attributes.ravel())),
            _OPERATORS.take(pa.array(operators.ravel())),
            pa.array(operands.ravel()),
            pa.nulls(operands.size, pa.int64()),
        ],
        ["attr", "op", "value", "upper"],
    )
    offsets = pa.array(np.arange(count + 1) * OF_SUBSCRIPTION, pa.int32())
    lists = pa.ListArray.from_arrays(offsets, constraints)
    return pa.table({"key": pa.array(np.arange(count), pa.uint64()), "constraints": lists})


def events(count: int, seed: int) -> pa.Table:
    """Draw events, with a column of int64 for each attribute."""
    random = np.random.default_rng([seed, 1])
    values = _operands(random, np.broadcast_to(np.arange(ATTRIBUTES), (count, ATTRIBUTES)))
    return pa.table([pa.array(column) for column in values.T], names=_NAMES.to_pylist())


def _operands(random: np.random.Generator, attributes: I64Array) -> I64Array:
    """Draw the operand of one of each attribute's predicates."""
    operands: I64Array = random.integers(0, _OF_ATTRIBUTE[attributes])
    return operands


#: The work of a task is counted in these, so that tasks that take longer count for more
UNIT_SECONDS = 1e-7
#: The task that is the H phase; others are SubC phases by number. And all tasks together
H_PHASE, WHOLE = -1, -2

_SAMPLES = 100


@dataclass(slots=True, eq=False)
class Message:
    """A message on its way."""

    number: int
    row: int  # which of the channel's events it is
    left: int  # tasks that are not done
    bits: npt.NDArray[Any] | None = None  # predicates that hold, from the H phase on
    matched: threading.Event = field(default_factory=threading.Event)  # set after the H phase
    h_end: float = 0.0  # when the H phase ends, where a clock is virtual
    found: int = 0  # matches of all SubC phases
    over: bool = False  # whether it was dropped


class Matching:
    """Matches messages of a channel in tasks, or whole."""

    def __init__(self, count: int, parts: int, rows: int, seed: int) -> None:
        table, self._events = subscriptions(count, seed), events(rows, seed)
        self.system = AccessPredicates(table)
        self._messages = self.system.prepare(self._events)
        self.parts, self.rows = parts, rows
        #: CPU time of an H phase, and of a SubC phase, in the median
        self.h_seconds, self.part_seconds = self._measure()

    def answer(self, row: int) -> list[int]:
        """Keys of the subscriptions that an event matches, by the tasks."""
        bits = self.system.h_phase(self._messages, row)
        found = [self.system.sub_c_phase(bits, part, self.parts) for part in range(self.parts)]
        return [int(key) for some in found for key in self.system.keys_of(some)]

    def whole_answer(self, row: int) -> list[int]:
        """The same, by the system's other kernel."""
        keys: list[int] = self.system.match_many(self.system.prepare(self._events.slice(row, 1)))[0].as_py()
        return keys

    def tasks(self, times: Fraction, *, whole: bool) -> list[tuple[int, int]]:
        """Return the tasks of a message that takes `times` as long, and the work of each in units."""
        h_phase = _units(self.h_seconds * _repeats(times))
        part = _units(self.part_seconds * times)
        if whole:
            return [(WHOLE, h_phase + part * self.parts)]
        return [(H_PHASE, h_phase), *((number, part) for number in range(self.parts))]

    def perform(self, message: Message, task: int, times: Fraction) -> None:
        """Do a task. A SubC phase waits for the H phase, which another thread may be at."""
        if task in (H_PHASE, WHOLE):
            for _ in range(_repeats(times)):
                message.bits = self.system.h_phase(self._messages, message.row)
            message.matched.set()
        else:
            message.matched.wait()
        for part in range(self.parts) if task == WHOLE else [task] if task >= 0 else []:
            message.found += self._sub_c_phase(message, part, times)

    def _sub_c_phase(self, message: Message, part: int, times: Fraction) -> int:
        """Do `times` the work of a SubC phase; of a fraction, shares of it."""
        assert message.bits is not None
        parts, found = self.parts * times.denominator, 0
        for number in range(times.numerator):
            which = (part * times.numerator + number) % parts
            found += len(self.system.sub_c_phase(message.bits, which, parts))
        return found

    def _measure(self) -> tuple[float, float]:
        h_phases, parts = [], []
        for row in range(_SAMPLES):
            row %= self.rows
            begun = time.thread_time()
            bits = self.system.h_phase(self._messages, row)
            matched = time.thread_time()
            for part in range(self.parts):
                self.system.sub_c_phase(bits, part, self.parts)
            h_phases.append(matched - begun)
            parts.append((time.thread_time() - matched) / self.parts)
        return median(h_phases), median(parts)


def _repeats(times: Fraction) -> int:
    """H phases of a message that takes `times` as long: whole ones, as it is no loop that could be shared out."""
    return max(1, round(times))


def _units(seconds: float) -> int:
    return max(1, round(seconds / UNIT_SECONDS))


def times_of(value: float) -> Fraction:
    """Return how many times as long as its subscriptions make it a message takes, in quarters."""
    return max(Fraction(round(4 * value), 4), Fraction(1, 4))
