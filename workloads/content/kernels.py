"""Kernels that draw filters and messages. A row depends on the seed and the row's number alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.workloads.draws import mix, position, uniform

if TYPE_CHECKING:
    from tagmatch.model.arrays import BoolArray, F64Array, U8Array

_U = np.uint64
# Draws in a row that may find names which the row has already, before one of the others is drawn
_DRAWS = 64

#: Operators by number
EQUAL, UNEQUAL, LESS, GREATER, BETWEEN, PREFIX, CONTAINS = range(7)


class Operators(NamedTuple):
    """Numbers of some operators, and the running sums of their shares."""

    numbers: U8Array
    sums: F64Array


class Model(NamedTuple):
    """All that constraints and attributes are drawn from.

    `names` has the running sums of the names' shares. An interval holds `covered` of the `values`. With `repeats`, a
    filter may have a name more than once.
    """

    names: F64Array
    is_text: BoolArray
    values: int
    covered: int
    of_numbers: Operators
    of_texts: Operators
    repeats: bool


@inlined
def _random_of(row, seed):
    return mix(_U(row) ^ mix(seed))


@inlined
def _below(random, limit):
    """Return an integer from 0 to `limit` - 1."""
    return min(np.int64(uniform(random) * limit), limit - 1)


@kernel
def draw_counts(first, seed, low, high, counts):
    """Write, of each row from `first` on, a number from `low` to `high`; that takes a row's draw 0."""
    for i in range(len(counts)):
        counts[i] = low + _below(_random_of(first + i, seed), high - low + 1)


@inlined
def _draw_name(random, names, taken, row):
    """Return a name that the row, whose number `taken` has at the names it took, has not, and the next draw.

    It is drawn by the shares of the names that are left: again while it is taken, and where most are, among the others.
    """
    for _ in range(_DRAWS):
        name = position(names, uniform(random))
        random += _U(1)
        if taken[name] != row:
            return name, random
    rest = 0.0
    for other in range(len(names)):
        if taken[other] != row:
            rest += names[other] - (names[other - 1] if other else 0.0)
    at = uniform(random) * rest
    name = _U(0)
    for other in range(len(names)):
        if taken[other] != row and at >= 0.0:
            name = _U(other)
            at -= names[other] - (names[other - 1] if other else 0.0)
    return name, random + _U(1)


@kernel
def write_constraints(first, seed, offsets, model, names, operators, values, uppers):
    """Write the constraints of filters from `first` on; those of the i-th begin at `offsets[i]`.

    `uppers` is written where the operator is BETWEEN.
    """
    taken = np.full(len(model.names), -1, np.int64)
    for i in range(len(offsets) - 1):
        random = _random_of(first + i, seed) + _U(1)
        for j in range(offsets[i], offsets[i + 1]):
            name, random = _draw_name(random, model.names, taken, i)
            if not model.repeats:
                taken[name] = i
            kinds = model.of_texts if model.is_text[name] else model.of_numbers
            operator = kinds.numbers[position(kinds.sums, uniform(random))]
            interval = operator == BETWEEN
            values[j] = _below(random + _U(1), model.values - model.covered + 1 if interval else model.values)
            if interval:
                uppers[j] = values[j] + model.covered - 1
            random += _U(2)
            names[j] = name
            operators[j] = operator


@kernel
def write_attributes(first, seed, counts, model, present, values):
    """Write the values of messages from `first` on, with `counts` attributes each; arrays are [names, messages]."""
    taken = np.full(len(model.names), -1, np.int64)
    for i in range(len(counts)):
        random = _random_of(first + i, seed) + _U(1)
        for _ in range(counts[i]):
            name, random = _draw_name(random, model.names, taken, i)
            taken[name] = i
            present[name, i] = True
            values[name, i] = _below(random, model.values)
            random += _U(1)
