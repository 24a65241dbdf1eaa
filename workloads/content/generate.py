"""Generates rows of the workload: subscriptions and messages, in Arrow columns.

Kernels that draw filters and messages. A row depends on the seed and the row's number alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import offsets_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.parallel import run_rows
from tagmatch.workloads.shards import mix, position, uniform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from tagmatch.model.arrays import BoolArray, F64Array, I64Array, U8Array
    from tagmatch.workloads.content.options import ContentOptions

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


#: `upper` is the upper end of "between", `text` takes the place of `value` where the attribute's values are strings
CONSTRAINT = pa.struct(
    {"attr": pa.string(), "op": pa.string(), "value": pa.int64(), "upper": pa.int64(), "text": pa.string()}
)
SUBSCRIPTIONS_SCHEMA = pa.schema(
    {"key": pa.uint64(), "tags": pa.list_(pa.string()), "constraints": pa.list_(CONSTRAINT)}
)
#: Messages have numbers below this
MAX_MESSAGES = 2**40

_OPERATORS = pa.array(["=", "!=", "<", ">", "between", "prefix", "contains"])
_NUMBER_OPERATORS = (EQUAL, UNEQUAL, LESS, GREATER, BETWEEN)
_TEXT_OPERATORS = (EQUAL, UNEQUAL, PREFIX, CONTAINS)
_CELLS_PER_BLOCK = 1 << 18


class Content:
    """The content-based workload.

    Filters and messages are drawn independently. Attributes are named `a0`, `a1`, ..., the most frequent first. Their
    values are integers from 0 to `values` - 1 or, of a share of the names, spread evenly over all of them, strings:
    such an integer with leading zeros, of at least two digits.
    """

    def __init__(self, options: ContentOptions) -> None:
        self._options = options
        numbered = np.arange(options.names)
        is_text = np.floor((numbered + 1) * options.strings) > np.floor(numbered * options.strings)
        covered = min(max(round(options.values * options.width), 1), options.values)
        self._model = Model(
            _running_sums((numbered + 1.0) ** -options.zipf),
            is_text,
            options.values,
            covered,
            Operators(np.array(_NUMBER_OPERATORS, np.uint8), _running_sums(options.number_weights)),
            Operators(np.array(_TEXT_OPERATORS, np.uint8), _running_sums(options.text_weights)),
            options.repeats == 1,
        )
        # What is drawn for interfaces, filters and messages does not depend on one another
        self._interface_seed, self._filter_seed, self._message_seed = (
            np.uint64(mix(np.uint64(options.seed) ^ np.uint64(mix(np.uint64(stream))))) for stream in range(3)
        )
        counts = np.empty(options.interfaces, np.int64)
        draw_counts(0, self._interface_seed, options.min_filters, options.max_filters, counts)
        self._starts = offsets_of(counts)
        self.filters = int(self._starts[-1])
        self.attributes = [f"a{name}" for name in range(options.names)]
        self._names = pa.array(self.attributes)
        self._digits = max(2, len(str(options.values - 1)))
        kinds = (pa.string() if text else pa.int64() for text in is_text)
        self.messages_schema = pa.schema(list(zip(self.attributes, kinds, strict=True)))

    def subscriptions(self, first: int, last: int, *, threads: int = 1) -> pa.Table:
        """Generate filters `first` to `last`, in the order of their interfaces."""
        return pa.Table.from_batches(self.stream_subscriptions(first, last, threads=threads), SUBSCRIPTIONS_SCHEMA)

    def messages(self, first: int, last: int, *, threads: int = 1) -> pa.Table:
        """Generate messages `first` to `last`."""
        return pa.Table.from_batches(self.stream_messages(first, last, threads=threads), self.messages_schema)

    def stream_subscriptions(self, first: int, last: int, *, threads: int = 1) -> Iterator[pa.RecordBatch]:
        """Generate the rows of `subscriptions` in batches."""
        return _stream(self._subscriptions, first, last, self.filters, self._options.max_constraints, threads)

    def stream_messages(self, first: int, last: int, *, threads: int = 1) -> Iterator[pa.RecordBatch]:
        """Generate the rows of `messages` in batches."""
        return _stream(self._messages, first, last, MAX_MESSAGES, self._options.names, threads)

    def _subscriptions(self, first: int, last: int) -> pa.RecordBatch:
        options = self._options
        counts = np.empty(last - first, np.int64)
        draw_counts(first, self._filter_seed, options.min_constraints, options.max_constraints, counts)
        offsets = offsets_of(counts, np.int32)
        total = int(offsets[-1])
        names, operators = np.empty(total, np.int32), np.empty(total, np.uint8)
        values, uppers = np.empty(total, np.int64), np.zeros(total, np.int64)
        write_constraints(first, self._filter_seed, offsets, self._model, names, operators, values, uppers)
        is_text = self._model.is_text[names]
        columns = [
            self._names.take(pa.array(names)),
            _OPERATORS.take(pa.array(operators)),
            pa.array(values, mask=is_text),
            pa.array(uppers, mask=operators != BETWEEN),
            self._operands(values, operators, is_text),
        ]
        constraints = pa.StructArray.from_arrays(columns, fields=list(CONSTRAINT))
        keys = np.searchsorted(self._starts, np.arange(first, last), side="right") - 1
        no_tags = pa.ListArray.from_arrays(pa.array(np.zeros(last - first + 1, np.int32)), pa.array([], pa.string()))
        lists = pa.ListArray.from_arrays(pa.array(offsets), constraints)
        return pa.record_batch([pa.array(keys.astype(np.uint64)), no_tags, lists], schema=SUBSCRIPTIONS_SCHEMA)

    def _operands(self, values: I64Array, operators: U8Array, is_text: BoolArray) -> pa.Array:
        """Return the texts that constraints on strings have, null for others."""
        if self._options.strings == 0:
            return pa.nulls(len(values), pa.string())
        texts = self._texts(pa.array(values, mask=~is_text))
        if not self._options.cut:
            return texts
        kinds = pa.array(operators)
        beginnings = pc.utf8_slice_codeunits(texts, 0, self._digits - 1)
        endings = pc.utf8_slice_codeunits(texts, 1)
        texts = pc.if_else(pc.equal(kinds, PREFIX), beginnings, texts)
        return pc.if_else(pc.equal(kinds, CONTAINS), endings, texts)

    def _texts(self, values: pa.Array) -> pa.Array:
        return pc.utf8_lpad(values.cast(pa.string()), self._digits, "0")

    def _messages(self, first: int, last: int) -> pa.RecordBatch:
        options = self._options
        counts = np.empty(last - first, np.int64)
        draw_counts(first, self._message_seed, options.min_attributes, options.max_attributes, counts)
        present = np.zeros((options.names, len(counts)), np.bool_)
        values = np.zeros((options.names, len(counts)), np.int64)
        write_attributes(first, self._message_seed, counts, self._model, present, values)
        columns = [pa.array(row, mask=~there) for row, there in zip(values, present, strict=True)]
        typed = [
            self._texts(column) if text else column for column, text in zip(columns, self._model.is_text, strict=True)
        ]
        return pa.record_batch(typed, schema=self.messages_schema)


def _running_sums(shares: npt.ArrayLike) -> F64Array:
    sums: F64Array = np.cumsum(np.asarray(shares, np.float64))
    return sums / sums[-1] if sums[-1] else sums


def _stream(
    make: Callable[[int, int], pa.RecordBatch], first: int, last: int, count: int, width: int, threads: int
) -> Iterator[pa.RecordBatch]:
    """Have threads make rows `first` to `last` of `count`, in blocks that depend on a row's `width` alone."""
    if not 0 <= first <= last <= count:
        raise InvalidValueError(f"first and last must be ascending and from 0 to {count}, not {first} and {last}")
    step, at_once = max(1, _CELLS_PER_BLOCK // width), 4 * threads
    blocks = list(pairwise([*range(first, last, step), last]))
    parts = (blocks[begin : begin + at_once] for begin in range(0, len(blocks), at_once))
    return (batch for part in parts for batch in run_rows(make, part, threads))
