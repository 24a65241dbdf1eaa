"""The content-based workload that matchers of constraints on attributes were measured with.

A subscription is a filter: a conjunction of constraints on attributes, with the number of its interface as its key. A
message has a value for each of some attributes. A row depends on the seed and the row's number alone.

PCM: A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", IEEE TPDS 25(1),
2014. CCM: the same authors, "High Performance Content-Based Matching Using GPUs", DEBS 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.files.json import concatenated
from tagmatch.model.arrays import offsets_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.parallel import run_rows
from tagmatch.workloads.numbers import (
    MAX_ROWS,
    below,
    check_numbers,
    check_range,
    check_rows,
    mix,
    number,
    position,
    random_of,
    running_sums,
    uniform,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tagmatch.model.arrays import BoolArray, F64Array, I64Array, U8Array

_U = np.uint64
# Draws in a row that may find names which the row has already, before one of the others is drawn
_DRAWS = 64
_MANY = 2**31 - 1
# Values that are drawn at once
_CELLS = 1 << 18


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """What the workload is drawn from; each option's meaning and source is its `text`, from which its help is made.

    PCM and CCM: see the package. Where a range is given, each number in it is as likely as any other. The operators'
    numbers are weights, so that only their ratios count.
    """

    seed: int = number(1, 0, 2**63 - 1, "Workloads with different seeds share their statistics only.")
    interfaces: int = number(10, 1, _MANY, "Interfaces; their numbers are the keys (PCM Table 1).")
    min_filters: int = number(22_500, 1, _MANY, "Fewest filters of an interface (PCM Table 1).")
    max_filters: int = number(27_500, 1, _MANY, "Most filters of an interface (PCM Table 1).")
    min_constraints: int = number(3, 1, 10_000, "Fewest constraints of a filter (PCM Table 1).")
    max_constraints: int = number(
        5, 1, 10_000, "Most constraints of a filter, without `repeats` each on another attribute (PCM Table 1)."
    )
    repeats: int = number(
        0,
        0,
        1,
        "1 for filters with several constraints on one attribute, whose names are drawn apart (CCM §5, Type of "
        "Constraints: only so are about 7 % of interfaces selected; in PCM chosen).",
    )
    min_attributes: int = number(3, 0, 10_000, "Fewest attributes of a message (PCM Table 1).")
    max_attributes: int = number(5, 0, 10_000, "Most attributes of a message (PCM Table 1).")
    names: int = number(100, 1, 10_000, "Different names of attributes (PCM Table 1).")
    zipf: float = number(
        0.0,
        0,
        10,
        "Exponent of Zipf's law, which the frequency of names follows; with 0 all are as frequent (PCM Table 1). CCM "
        "§5, Distribution of Names, has Zipf's law too.",
    )
    strings: float = number(
        0.0, 0, 1, "Share of the names whose values are strings (PCM Table 1: 0 %; CCM Table 1: 50 % of constraints)."
    )
    values: int = number(100, 1, 2**53, "Different values of an attribute: 0, 1, 2, ... (PCM Table 1).")
    equal: float = number(25.0, 0, 1e9, "Weight of = among the operators on numbers (PCM Table 1).")
    unequal: float = number(25.0, 0, 1e9, "Weight of != (PCM Table 1).")
    less: float = number(25.0, 0, 1e9, "Weight of < (PCM Table 1).")
    greater: float = number(25.0, 0, 1e9, "Weight of > (PCM Table 1).")
    between: float = number(0.0, 0, 1e9, "Weight of intervals; PCM has none.")
    width: float = number(0.3, 0, 1, "Share of the values that an interval holds, at least one (chosen).")
    text_equal: float = number(25.0, 0, 1e9, "Weight of = among the operators on strings (CCM Table 1).")
    text_unequal: float = number(25.0, 0, 1e9, "Weight of != on strings (CCM Table 1).")
    text_prefix: float = number(
        25.0, 0, 1e9, "Weight of prefix, the beginning of a value (CCM Table 1; how much of it: `cut`)."
    )
    text_contains: float = number(
        25.0, 0, 1e9, "Weight of contains, the end of a value (CCM Table 1: subString; `cut`)."
    )

    cut: int = number(
        1,
        0,
        1,
        "1 for prefix and contains without a character of the value, 0 for all of it (CCM §5, Type of Constraints: "
        "only so do strings select about 1 % of interfaces; 1: chosen).",
    )

    def __post_init__(self) -> None:
        check_numbers(self)
        for what in ("filters", "constraints", "attributes"):
            high = check_range(self, what)
            if high > self.names and (what == "attributes" or (what == "constraints" and not self.repeats)):
                raise InvalidValueError(f"max_{what} must be at most names, {self.names}, not {high}")
        if self.strings < 1 and not any(self.number_weights):
            raise InvalidValueError("equal, unequal, less, greater and between must not all be 0")
        if self.strings > 0 and not any(self.text_weights):
            raise InvalidValueError("text_equal, text_unequal, text_prefix and text_contains must not all be 0")

    @property
    def number_weights(self) -> tuple[float, ...]:
        """Weights of =, !=, <, > and between."""
        return self.equal, self.unequal, self.less, self.greater, self.between

    @property
    def text_weights(self) -> tuple[float, ...]:
        """Weights of =, !=, prefix and contains."""
        return self.text_equal, self.text_unequal, self.text_prefix, self.text_contains


#: `pcm` is the default scenario of PCM's Table 1, `ccm` that of CCM's, where a name has one type, so that half of the
#: names have strings. In `dense`, which is chosen, every message has all of 20 attributes,
#: and each of a million filters has 10 intervals and its own key.
SCENARIOS: Mapping[str, ContentOptions] = {
    "pcm": ContentOptions(),
    "ccm": ContentOptions(strings=0.5, repeats=1, cut=0),
    "dense": ContentOptions(
        interfaces=1_000_000,
        min_filters=1,
        max_filters=1,
        min_constraints=10,
        max_constraints=10,
        min_attributes=20,
        max_attributes=20,
        names=20,
        values=1_000_000,
        equal=0.0,
        unequal=0.0,
        less=0.0,
        greater=0.0,
        between=1.0,
    ),
}

#: Operators by number
EQUAL, UNEQUAL, LESS, GREATER, BETWEEN, PREFIX, CONTAINS = range(7)


class Operators(NamedTuple):
    """Numbers of some operators, and the running sums of their shares."""

    numbers: U8Array
    sums: F64Array


class ContentModel(NamedTuple):
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


def seeds_of(seed: int, count: int) -> list[np.uint64]:
    """Return seeds of what does not depend on one another."""
    return [np.uint64(mix(_U(seed) ^ _U(mix(_U(stream))))) for stream in range(count)]


@kernel
def _draw_counts(first, seed, low, high, counts):
    for i in range(len(counts)):
        counts[i] = low + below(random_of(first + i, seed), high - low + 1)


def draw_counts(first: int, last: int, seed: np.uint64, low: int, high: int) -> I64Array:
    """Return, of each row, a number from `low` to `high`; that takes a row's draw 0."""
    counts = np.empty(last - first, np.int64)
    _draw_counts(first, seed, low, high, counts)
    return counts


def table_of(make: Callable[[int, int], pa.RecordBatch], first: int, last: int, width: int, threads: int) -> pa.Table:
    """Return rows that threads make, in blocks that depend on a row's `width`, the values that it has at most."""
    blocks = list(pairwise([*range(first, last, max(1, _CELLS // width)), last])) or [(first, last)]
    return pa.Table.from_batches(run_rows(make, blocks, threads))


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
        random = random_of(first + i, seed) + _U(1)
        for j in range(offsets[i], offsets[i + 1]):
            name, random = _draw_name(random, model.names, taken, i)
            if not model.repeats:
                taken[name] = i
            kinds = model.of_texts if model.is_text[name] else model.of_numbers
            operator = kinds.numbers[position(kinds.sums, uniform(random))]
            interval = operator == BETWEEN
            values[j] = below(random + _U(1), model.values - model.covered + 1 if interval else model.values)
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
        random = random_of(first + i, seed) + _U(1)
        for _ in range(counts[i]):
            name, random = _draw_name(random, model.names, taken, i)
            taken[name] = i
            present[name, i] = True
            values[name, i] = below(random, model.values)
            random += _U(1)


#: `upper` is the upper end of "between", `text` takes the place of `value` where the attribute's values are strings
CONSTRAINT = pa.struct(
    {"attr": pa.string(), "op": pa.string(), "value": pa.int64(), "upper": pa.int64(), "text": pa.string()}
)
SUBSCRIPTIONS_SCHEMA = pa.schema(
    {"key": pa.uint64(), "tags": pa.list_(pa.string()), "constraints": pa.list_(CONSTRAINT)}
)
#: What `with_where` adds
WHERE = pa.field("where", pa.string())

_OPERATORS = pa.array(["=", "!=", "<", ">", "between", "prefix", "contains"])
_NUMBER_OPERATORS = (EQUAL, UNEQUAL, LESS, GREATER, BETWEEN)
_TEXT_OPERATORS = (EQUAL, UNEQUAL, PREFIX, CONTAINS)


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
        self._model = ContentModel(
            running_sums((numbered + 1.0) ** -options.zipf),
            is_text,
            options.values,
            min(max(round(options.values * options.width), 1), options.values),
            Operators(np.array(_NUMBER_OPERATORS, np.uint8), running_sums(options.number_weights)),
            Operators(np.array(_TEXT_OPERATORS, np.uint8), running_sums(options.text_weights)),
            options.repeats == 1,
        )
        interface_seed, self._filter_seed, self._message_seed = seeds_of(options.seed, 3)
        counts = draw_counts(0, options.interfaces, interface_seed, options.min_filters, options.max_filters)
        self._starts = offsets_of(counts)
        self.filters = int(self._starts[-1])
        self.attributes = [f"a{name}" for name in range(options.names)]
        self._names = pa.array(self.attributes)
        self._digits = max(2, len(str(options.values - 1)))
        kinds = (pa.string() if text else pa.int64() for text in is_text)
        self.messages_schema = pa.schema(list(zip(self.attributes, kinds, strict=True)))

    def subscriptions(self, first: int, last: int, *, threads: int = 1) -> pa.Table:
        """Generate filters `first` to `last`, in the order of their interfaces."""
        check_rows(first, last, self.filters)
        return table_of(self._subscriptions, first, last, self._options.max_constraints, threads)

    def messages(self, first: int, last: int, *, threads: int = 1) -> pa.Table:
        """Generate messages `first` to `last`."""
        check_rows(first, last, MAX_ROWS)
        return table_of(self._messages, first, last, self._options.names, threads)

    def _subscriptions(self, first: int, last: int) -> pa.RecordBatch:
        options = self._options
        counts = draw_counts(first, last, self._filter_seed, options.min_constraints, options.max_constraints)
        offsets = offsets_of(counts, np.int32)
        total = int(offsets[-1])
        names, operators = np.empty(total, np.int32), np.empty(total, np.uint8)
        values, uppers = np.empty(total, np.int64), np.zeros(total, np.int64)
        write_constraints(first, self._filter_seed, offsets, self._model, names, operators, values, uppers)
        is_text = self._model.is_text[names]
        numbers, uppers = pa.array(values, mask=is_text), pa.array(uppers, mask=operators != BETWEEN)
        texts = self._operands(values, operators, is_text)
        constraints = constraints_of(self._names.take(pa.array(names)), operators, numbers, uppers, texts)
        keys = np.searchsorted(self._starts, np.arange(first, last), side="right") - 1
        lists = pa.ListArray.from_arrays(pa.array(offsets), constraints)
        no_tags = no_lists(last - first, pa.string())
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
        counts = draw_counts(first, last, self._message_seed, options.min_attributes, options.max_attributes)
        present = np.zeros((options.names, len(counts)), np.bool_)
        values = np.zeros((options.names, len(counts)), np.int64)
        write_attributes(first, self._message_seed, counts, self._model, present, values)
        columns = [pa.array(row, mask=~there) for row, there in zip(values, present, strict=True)]
        typed = [
            self._texts(column) if text else column for column, text in zip(columns, self._model.is_text, strict=True)
        ]
        return pa.record_batch(typed, schema=self.messages_schema)


def constraints_of(
    names: pa.Array, operators: U8Array, values: pa.Array, uppers: pa.Array | None = None, texts: pa.Array | None = None
) -> pa.StructArray:
    """Return constraints, as `CONSTRAINT`; operators by number."""
    columns = [values, *(pa.nulls(len(names)) if each is None else each for each in (uppers, texts))]
    typed = [column.cast(field.type) for column, field in zip(columns, list(CONSTRAINT)[2:], strict=True)]
    taken = _OPERATORS.take(pa.array(operators))
    return pa.StructArray.from_arrays([names.cast(pa.string()), taken, *typed], fields=list(CONSTRAINT))


def lists_of(lengths: I64Array, values: pa.Array) -> pa.ListArray:
    """Return lists of these lengths."""
    return pa.ListArray.from_arrays(pa.array(offsets_of(lengths, np.int32)), values)


def no_lists(rows: int, kind: pa.DataType) -> pa.ListArray:
    """Return empty lists."""
    return lists_of(np.zeros(rows, np.int64), pa.array([], kind))


def where_texts(constraints: pa.ListArray) -> pa.Array:
    """Return each filter as an expression, such as `a1 = 5 and a7 between 2 and 8 and a9 prefix "4"`."""
    flat = constraints.flatten()
    attributes, operators, values, uppers, texts = flat.flatten()
    numbers = pc.if_else(uppers.is_valid(), concatenated(values, " and ", uppers), values.cast(pa.large_string()))
    operands = pc.if_else(texts.is_valid(), concatenated('"', texts, '"'), numbers)
    each = concatenated(attributes, " ", operators, " ", operands)
    lists = pa.ListArray.from_arrays(pc.subtract(constraints.offsets, constraints.offsets[0]), each)
    return pc.binary_join(lists, pa.scalar(" and ", pa.large_string()))


def with_where(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return subscriptions with one more column, `where`, which has their filters as text."""
    return batch.append_column(WHERE, where_texts(batch["constraints"]).cast(WHERE.type))


def with_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return subscriptions as JSON Lines have them, with `where` in place of `constraints`."""
    return with_where(batch).drop_columns(["constraints"])
