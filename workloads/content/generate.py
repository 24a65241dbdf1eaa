"""Generates rows of the workload: subscriptions and messages, in Arrow columns."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import offsets_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.parallel import run_rows
from tagmatch.workloads.content import kernels
from tagmatch.workloads.draws import mix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from tagmatch.model.arrays import BoolArray, F64Array, I64Array, U8Array
    from tagmatch.workloads.content.options import ContentOptions

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
_NUMBER_OPERATORS = (kernels.EQUAL, kernels.UNEQUAL, kernels.LESS, kernels.GREATER, kernels.BETWEEN)
_TEXT_OPERATORS = (kernels.EQUAL, kernels.UNEQUAL, kernels.PREFIX, kernels.CONTAINS)
_CELLS_PER_BLOCK = 1 << 18


class Content:
    """The content-based workload.

    Filters and messages are drawn independently. Attributes are named `a0`, `a1`, ..., the most frequent first. Their
    values are integers from 0 to `values` - 1 or, of a share of the names, spread evenly over all of them, strings:
    such an integer with leading zeros, of at least two digits.

    Parameters
    ----------
    options : ContentOptions

    Attributes
    ----------
    filters : int
        Filters of all interfaces.
    attributes : list of str
        Names of the attributes.
    messages_schema : pyarrow.Schema
        A column for each attribute.

    Examples
    --------
    >>> from tagmatch.workloads.content import Content, ContentOptions
    >>> content = Content(ContentOptions(interfaces=2, min_filters=3, max_filters=3))
    >>> content.subscriptions(0, content.filters)["key"].to_pylist()
    [0, 0, 0, 1, 1, 1]
    """

    def __init__(self, options: ContentOptions) -> None:
        self._options = options
        numbered = np.arange(options.names)
        is_text = np.floor((numbered + 1) * options.strings) > np.floor(numbered * options.strings)
        covered = min(max(round(options.values * options.width), 1), options.values)
        self._model = kernels.Model(
            _running_sums((numbered + 1.0) ** -options.zipf),
            is_text,
            options.values,
            covered,
            kernels.Operators(np.array(_NUMBER_OPERATORS, np.uint8), _running_sums(options.number_weights)),
            kernels.Operators(np.array(_TEXT_OPERATORS, np.uint8), _running_sums(options.text_weights)),
            options.repeats == 1,
        )
        # What is drawn for interfaces, filters and messages does not depend on one another
        self._interface_seed, self._filter_seed, self._message_seed = (
            np.uint64(mix(np.uint64(options.seed) ^ np.uint64(mix(np.uint64(stream))))) for stream in range(3)
        )
        counts = np.empty(options.interfaces, np.int64)
        kernels.draw_counts(0, self._interface_seed, options.min_filters, options.max_filters, counts)
        self._starts = offsets_of(counts)
        self.filters = int(self._starts[-1])
        self.attributes = [f"a{name}" for name in range(options.names)]
        self._names = pa.array(self.attributes)
        self._digits = max(2, len(str(options.values - 1)))
        kinds = (pa.string() if text else pa.int64() for text in is_text)
        self.messages_schema = pa.schema(list(zip(self.attributes, kinds, strict=True)))

    def subscriptions(self, first: int, last: int, *, threads: int = 1) -> pa.Table:
        """Generate filters `first` to `last`, in the order of their interfaces.

        Returns
        -------
        pyarrow.Table
            `key` (uint64), the interface's number; `tags` (list of string), all empty; `constraints` (list of struct),
            without `repeats` each on another attribute: `attr`, `op` (=, !=, <, >, between, prefix or contains) and
            the operand, `value` (int64), for "between" from `value` to `upper`, both included, or `text` (string).
            Others are null.
        """
        return pa.Table.from_batches(self.stream_subscriptions(first, last, threads=threads), SUBSCRIPTIONS_SCHEMA)

    def messages(self, first: int, last: int, *, threads: int = 1) -> pa.Table:
        """Generate messages `first` to `last`.

        Returns
        -------
        pyarrow.Table
            A column for each attribute, int64 or string; null where a message does not have it.
        """
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
        kernels.draw_counts(first, self._filter_seed, options.min_constraints, options.max_constraints, counts)
        offsets = offsets_of(counts, np.int32)
        total = int(offsets[-1])
        names, operators = np.empty(total, np.int32), np.empty(total, np.uint8)
        values, uppers = np.empty(total, np.int64), np.zeros(total, np.int64)
        kernels.write_constraints(first, self._filter_seed, offsets, self._model, names, operators, values, uppers)
        is_text = self._model.is_text[names]
        columns = [
            self._names.take(pa.array(names)),
            _OPERATORS.take(pa.array(operators)),
            pa.array(values, mask=is_text),
            pa.array(uppers, mask=operators != kernels.BETWEEN),
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
        texts = pc.if_else(pc.equal(kinds, kernels.PREFIX), beginnings, texts)
        return pc.if_else(pc.equal(kinds, kernels.CONTAINS), endings, texts)

    def _texts(self, values: pa.Array) -> pa.Array:
        return pc.utf8_lpad(values.cast(pa.string()), self._digits, "0")

    def _messages(self, first: int, last: int) -> pa.RecordBatch:
        options = self._options
        counts = np.empty(last - first, np.int64)
        kernels.draw_counts(first, self._message_seed, options.min_attributes, options.max_attributes, counts)
        present = np.zeros((options.names, len(counts)), np.bool_)
        values = np.zeros((options.names, len(counts)), np.int64)
        kernels.write_attributes(first, self._message_seed, counts, self._model, present, values)
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
