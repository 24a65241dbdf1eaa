"""Kernels that draw places, names and constraints. A row depends on the seed and the row's number alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.workloads.draws import mix, position, uniform

if TYPE_CHECKING:
    from tagmatch.model.arrays import F64Array

_U = np.uint64

#: Operators by number
EQUAL, UNEQUAL, LESS, GREATER = range(4)


class Places(NamedTuple):
    """What places are drawn from: `sums` has the running sums of the spots' shares; without spots, all is uniform."""

    sums: F64Array
    x: F64Array
    y: F64Array
    spread: float


class Content(NamedTuple):
    """What constraints and attributes are drawn from; `holds` is how likely it is that a constraint holds."""

    topics: int
    topic_names: int
    values: int
    holds: float


@inlined
def _random_of(row, seed):
    return mix(_U(row) ^ mix(seed))


@inlined
def _below(random, limit):
    """Return an integer from 0 to `limit` - 1."""
    return min(np.int64(uniform(random) * limit), limit - 1)


@inlined
def _single(value):
    """Round to single precision, within the unit square."""
    wrapped = np.float64(np.float32(value - math.floor(value)))
    return wrapped if wrapped < 1.0 else 0.0


@kernel
def draw_places(first, each, seed, places, x, y):
    """Write the place of each row from `first` on; `each` rows that follow one another share one."""
    for i in range(len(x)):
        random = _random_of((first + i) // each, seed)
        if len(places.sums) == 0:
            x[i], y[i] = _single(uniform(random)), _single(uniform(random + _U(1)))
            continue
        spot = position(places.sums, uniform(random))
        # Two normal numbers of two uniform ones (Box, Muller 1958)
        far = places.spread * math.sqrt(-2.0 * math.log(1.0 - uniform(random + _U(1))))
        angle = 2.0 * math.pi * uniform(random + _U(2))
        x[i] = _single(places.x[spot] + far * math.cos(angle))
        y[i] = _single(places.y[spot] + far * math.sin(angle))


@kernel
def draw_counts(first, seed, low, high, counts):
    """Write, of each row from `first` on, a number from `low` to `high`."""
    for i in range(len(counts)):
        counts[i] = low + _below(_random_of(first + i, seed), high - low + 1)


@kernel
def draw_names(first, seed, topics, topic_names, offsets, names):
    """Write, ascending, names of one topic for each row from `first` on; those of the i-th begin at `offsets[i]`."""
    for i in range(len(offsets) - 1):
        random = _random_of(first + i, seed) + _U(1)
        topic = _below(random, topics)
        wanted, at = offsets[i + 1] - offsets[i], offsets[i]
        # Each name is taken with the share of those wanted among those left: all choices are as likely
        for j in range(topic_names):
            random += _U(1)
            if uniform(random) * (topic_names - j) < wanted:
                names[at] = topic * topic_names + j
                at += 1
                wanted -= 1


@kernel
def draw_values(first, seed, offsets, values, drawn):
    """Write a value from 0 to `values` - 1 for each attribute of rows from `first` on."""
    for i in range(len(offsets) - 1):
        random = _random_of(first + i, seed)
        for j in range(offsets[i], offsets[i + 1]):
            drawn[j] = _below(random + _U(j - offsets[i]), values)


@kernel
def draw_constraints(first, seed, offsets, content, operators, operands):
    """Write an operator and an operand for each constraint of rows from `first` on.

    Half are on order, with an operand that makes them hold for more values or for fewer; half are = or !=, in such
    shares that in the mean they hold as often. Where != holds too rarely, some have an operand that is no value.
    """
    values, holds = content.values, content.holds
    width = min(holds, 1.0 - holds)
    equal = max(0.0, (1.0 - 1.0 / values - holds) / (1.0 - 2.0 / values)) if values > 2 else 0.0
    outside = max(0.0, 1.0 - (1.0 - holds) * values)
    for i in range(len(offsets) - 1):
        random = _random_of(first + i, seed)
        for j in range(offsets[i], offsets[i + 1]):
            kind, second, third = uniform(random), uniform(random + _U(1)), random + _U(2)
            random += _U(3)
            if kind < 0.5:
                share = holds + width * (2.0 * second - 1.0)
                below = np.int64(math.floor(share * values + uniform(third)))
                less = kind < 0.25
                operators[j] = LESS if less else GREATER
                operands[j] = below if less else values - 1 - below
            else:
                operators[j] = EQUAL if second < equal else UNEQUAL
                operands[j] = values if 1.0 - second <= outside else _below(third, values)
