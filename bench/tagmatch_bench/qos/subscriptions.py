"""The subscriptions and events of "Pub/Sub on Stream": predicates on many attributes, and events with all of these.

§4.2.1 and §6.1: 1,504 distinct predicates on 238 attributes; events combine operands of predicates, uniformly. Chosen,
as the paper does not say: operators are `=`, `<` and `>`, as in its examples, each for a third of the predicates; a
subscription has five, each on another attribute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from tagmatch.model.arrays import I64Array

ATTRIBUTES, PREDICATES, OF_SUBSCRIPTION = 238, 1504, 5

_NAMES = pa.array([f"a{number}" for number in range(ATTRIBUTES)])
_OPERATORS = pa.array(["=", "<", ">"])
# Predicate `p` is on attribute `p % ATTRIBUTES`, with operand `p // ATTRIBUTES`: all of an attribute's are different
_OF_ATTRIBUTE = np.bincount(np.arange(PREDICATES) % ATTRIBUTES)


def subscriptions(count: int, seed: int) -> pa.Table:
    """Draw subscriptions, each with a key of its own.

    Returns
    -------
    pyarrow.Table
        `key` (uint64) and `constraints` (list of struct of `attr`, `op`, `value`, and `upper`, which is null).

    Examples
    --------
    >>> from tagmatch_bench.qos.subscriptions import subscriptions
    >>> len(subscriptions(3, seed=1)["constraints"][0])
    5
    """
    random = np.random.default_rng([seed, 0])
    attributes = random.integers(0, ATTRIBUTES, (count, OF_SUBSCRIPTION))
    while len(again := np.flatnonzero((np.diff(np.sort(attributes)) == 0).any(axis=1))):
        attributes[again] = random.integers(0, ATTRIBUTES, (len(again), OF_SUBSCRIPTION))
    operands = _operands(random, attributes)
    # The operator is the predicate's, whoever has it
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
