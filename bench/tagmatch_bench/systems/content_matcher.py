"""What the systems that match constraints on attributes share: filters and messages as columns, the keys of matches.

They take a table of subscriptions with columns `key` and `constraints`, and messages with a column for each attribute,
as `tagmatch_bench.workloads.content` makes both. Values are int64, with or without texts, or double. A text is a
number, its bytes in UTF-8, the first one highest, with zeros after the last: so texts with a beginning in common are an
interval of numbers, and a text that is contained is found by shifts. Names are looked up, and texts become numbers,
when messages are prepared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, I64Array, Lists, U8Array, U32Array, U64Array, offsets_of
from tagmatch.model.arrow import numpy_type
from tagmatch.model.columns import key_values
from tagmatch.model.kernels.jit import inlined
from tagmatch.model.tables import KeyTable
from tagmatch_bench.systems.matcher import Plain, keys_of_matches

#: Bytes of a text; with one more, numbers would be negative
MOST_BYTES = 7

_BYTE = 8


def packed(texts: pa.Array) -> I64Array:
    """Return texts as numbers."""
    data, lengths = _bytes_of(texts)
    return _packed(data, lengths)


def beginnings(texts: pa.Array) -> tuple[I64Array, I64Array]:
    """Return the lowest and the highest number of texts that begin with each of these; errors as for `packed`."""
    data, lengths = _bytes_of(texts)
    lowest = _packed(data, lengths)
    return lowest, lowest | ((np.int64(1) << (_BYTE * (MOST_BYTES - lengths))) - 1)


def needles(texts: pa.Array) -> tuple[I64Array, I64Array]:
    """Return of each text to be searched for what `contains` takes: its number without zeros at its end, and as many
    bytes of ones; errors as for `packed`.
    """  # noqa: D205
    data, lengths = _bytes_of(texts)
    return _packed(data, lengths) >> (_BYTE * (MOST_BYTES - lengths)), (np.int64(1) << (_BYTE * lengths)) - 1


def _bytes_of(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], I64Array]:
    """All bytes of texts, one text after the other, and how many each has."""
    column = texts.cast(pa.large_binary())
    lengths = pc.binary_length(column).to_numpy().astype(np.int64)
    _, offsets, data = column.buffers()
    first = np.frombuffer(offsets, np.int64)[column.offset] if len(column) else 0
    data = np.frombuffer(data or b"", np.uint8)[first : first + lengths.sum()]
    longest = int(lengths.max(initial=0))
    if longest > MOST_BYTES:
        raise ValueError(f"a text of {longest} bytes is longer than {MOST_BYTES}")
    if not data.all():
        raise ValueError("a text has a character of code 0")
    return data, lengths


def _packed(data: npt.NDArray[np.uint8], lengths: I64Array) -> I64Array:
    ends = np.cumsum(lengths)
    numbers = np.zeros(len(lengths), np.int64)
    for place in range(MOST_BYTES):
        there = np.flatnonzero(lengths > place)
        at = ends[there] - lengths[there] + place
        numbers[there] |= data[at].astype(np.int64) << (_BYTE * (MOST_BYTES - 1 - place))
    return numbers


@inlined
def contains(text, needle, ones):
    """Whether a packed text contains another one, as `needles` has it."""
    rest, wanted, mask = np.int64(text), np.int64(needle), np.int64(ones)
    while rest & mask != wanted:
        if rest <= mask:
            return False
        rest >>= 8
    return True


@inlined
def ones_of(needle):
    """The second number of `needles`, from the first."""
    ones = np.int64(0)
    while ones < np.int64(needle):
        ones = (ones << 8) | 255
    return ones


#: Operators by number; the last one is for texts only
EQUAL, UNEQUAL, LESS, GREATER, BETWEEN, CONTAINS = range(6)
_OF_NUMBERS = {"=": EQUAL, "!=": UNEQUAL, "<": LESS, ">": GREATER, "between": BETWEEN}
_OF_TEXTS = {"=": EQUAL, "!=": UNEQUAL, "prefix": BETWEEN, "contains": CONTAINS}

_MOST_FILTERS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters as columns."""

    names: list[str]  # the attributes that have constraints
    sizes: I64Array  # constraints of each filter
    interfaces: U32Array  # of each filter; filters with equal keys share one
    keys: U64Array  # of each interface
    of_texts: BoolArray  # of each attribute, whether its values are texts
    filters: U32Array  # of each constraint: its filter, ascending
    attributes: U32Array  # and its attribute's place in `names`
    operators: U8Array
    # operands; `uppers` has a meaning for BETWEEN only, and for CONTAINS, which has `needles` here
    values: npt.NDArray[Any]
    uppers: npt.NDArray[Any]

    @classmethod
    def of(cls, subscriptions: pa.Table) -> Filters:
        """Take columns `key` and `constraints` of a table."""
        if len(subscriptions) > _MOST_FILTERS:
            raise ValueError(f"{len(subscriptions)} filters are more than {_MOST_FILTERS}")
        lists = subscriptions["constraints"].combine_chunks()
        sizes = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        flat = lists.flatten()
        fields = dict(zip((field.name for field in flat.type), flat.flatten(), strict=True))
        names = fields["attr"].dictionary_encode()
        attributes = names.indices.to_numpy().astype(np.uint32)
        is_text = np.zeros(len(flat), np.bool_)
        if "text" in fields:
            is_text = fields["text"].is_valid().to_numpy(zero_copy_only=False)
        keys, interfaces = np.unique(key_values(subscriptions["key"], "key"), return_inverse=True)
        return cls(
            names.dictionary.to_pylist(),
            sizes,
            interfaces.astype(np.uint32),
            keys,
            _types(names.dictionary, attributes, is_text),
            np.repeat(np.arange(len(sizes), dtype=np.uint32), sizes),
            attributes,
            *_compared(fields, is_text),
        )


def _types(names: pa.Array, attributes: U32Array, is_text: BoolArray) -> BoolArray:
    """Whether each attribute's values are texts."""
    texts, numbers = (np.bincount(attributes[some], minlength=len(names)) > 0 for some in (is_text, ~is_text))
    both = np.flatnonzero(texts & numbers)
    if len(both):
        raise ValueError(f"attribute {names[int(both[0])].as_py()!r} has constraints on numbers and on texts")
    return texts


def _compared(fields: Mapping[str, pa.Array], is_text: BoolArray) -> tuple[U8Array, npt.NDArray[Any], npt.NDArray[Any]]:
    """The operator and the operands of each constraint."""
    if not is_text.any():
        operators = _numbered(fields["op"], _OF_NUMBERS)
        values, uppers = _narrowed(*_numbers(operators, fields["value"], fields["upper"]))
        return operators, values, uppers
    if not pa.types.is_integer(fields["value"].type):
        raise ValueError(
            f"texts cannot be compared together with numbers of type {fields['value'].type}, only with int64"
        )
    operators = np.zeros(len(is_text), np.uint8)
    operands = np.zeros((2, len(is_text)), np.int64)
    of_numbers, *numbers = (fields[name].filter(pa.array(~is_text)) for name in ("op", "value", "upper"))
    operators[~is_text] = _numbered(of_numbers, _OF_NUMBERS)
    operands[:, ~is_text] = _numbers(operators[~is_text], *numbers)
    operators[is_text] = _numbered(fields["op"].filter(pa.array(is_text)), _OF_TEXTS)
    of_operators: dict[int, Callable[[pa.Array], Any]] = {
        EQUAL: packed,
        UNEQUAL: packed,
        BETWEEN: beginnings,
        CONTAINS: needles,
    }
    for operator, convert in of_operators.items():
        at = is_text & (operators == operator)
        operands[:, at] = convert(fields["text"].filter(pa.array(at)))
    return operators, operands[0], operands[1]


def _numbered(operators: pa.Array, known: Mapping[str, int]) -> U8Array:
    places = pc.index_in(operators, pa.array(known))
    if places.null_count:
        unknown = operators.filter(places.is_null())[0].as_py()
        raise ValueError(f"operator {unknown!r} is not one of {', '.join(known)}")
    numbered: U8Array = np.array(list(known.values()), np.uint8)[places.to_numpy()]
    return numbered


def _numbers(operators: U8Array, values: pa.Array, uppers: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    uppers = pc.if_else(pa.array(operators == BETWEEN), uppers, values)
    return _operands(values), _operands(uppers)


def _operands(column: pa.Array) -> npt.NDArray[Any]:
    if column.null_count:
        raise ValueError("a constraint has no operand, as its value or upper is null")
    numbers: npt.NDArray[Any] = column.to_numpy()
    if np.isnan(numbers).any():
        raise ValueError("a constraint has NaN as its operand")
    return numbers


def _narrowed(*columns: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Return integers as int32 if all fit, so that less memory is read."""
    limits = np.iinfo(np.int32)
    whole = all(np.issubdtype(column.dtype, np.integer) for column in columns)
    if whole and all(limits.min <= column.min(initial=0) and column.max(initial=0) <= limits.max for column in columns):
        return tuple(column.astype(np.int32) for column in columns)
    return columns


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages as columns: message `i` has attributes, and their values, from `offsets[i]` to `offsets[i + 1]`.

    Attributes that no filter has a constraint on are left out.
    """

    offsets: I64Array
    attributes: U32Array
    values: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> Messages:
        first, last, _ = rows.indices(len(self))
        return Messages(self.offsets[first : max(first, last) + 1], self.attributes, self.values)

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """As kernels take them."""
        return self.offsets, self.attributes, self.values


@inlined
def holds(operator, x, value, upper):
    """Whether a constraint is satisfied by `x`."""
    if operator == EQUAL:
        return x == value
    if operator == UNEQUAL:
        return x != value
    if operator == LESS:
        return x < value
    if operator == GREATER:
        return x > value
    if operator == BETWEEN:
        return value <= x <= upper
    return contains(x, value, upper)


@inlined
def add_match(found, used, interface, marked, unique):
    """Write the interface of a filter that matches, with `unique` once, which alone needs `marked`; returns both."""
    if unique:
        if marked[interface]:
            return found, used
        marked[interface] = True
    if used == len(found):
        found = np.concatenate((found, found))
    found[used] = interface
    return found, used + 1


def narrow_sizes(sizes: I64Array) -> npt.NDArray[Any]:
    """Sizes in the narrowest type that counters can have too."""
    return sizes.astype(np.min_scalar_type(int(sizes.max(initial=0))))


def _are_texts(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


class ContentMatcher(Plain, ABC):
    """A matcher of filters with constraints on attributes; subclasses find the filters, this class looks up keys.

    A filter matches when all its constraints are satisfied, and a constraint only if the message has the attribute.
    Several threads take messages in turn, each with its own memory, unless a subclass says something else.
    """

    _at_once = 1  # messages that it matches together

    def __init__(self, subscriptions: pa.Table, *, threads: int = 1) -> None:
        filters = Filters.of(subscriptions)
        self._names, self._of_texts, self._kind = filters.names, filters.of_texts, filters.values.dtype.kind
        self._keys = KeyTable(Lists(np.arange(len(filters.keys) + 1), filters.keys))
        self._threads = threads
        self._tables: Any = self._build(filters)

    @property
    def names(self) -> list[str]:
        """The attributes that have constraints, as `Messages` number them."""
        return self._names

    @abstractmethod
    def _build(self, filters: Filters) -> tuple[Any, ...]:
        """Return what the kernel takes, as a named tuple of arrays."""

    @abstractmethod
    def _find(self, messages: Messages, *, unique: bool, ends: I64Array) -> U32Array:
        """Return the interface of each match, with `unique` once a message, and in `ends` where each message's end."""

    def prepare(self, messages: pa.Table | pa.RecordBatch) -> Messages:
        """Convert messages, a column for each attribute, which is null where a message does not have it."""
        kind = pa.float64() if self._kind == "f" else pa.int64()
        rows, attributes, values = (
            [np.zeros(0, np.int64)],
            [np.zeros(0, np.uint32)],
            [np.zeros(0, numpy_type(kind))],
        )
        for number, name in enumerate(self._names):
            if name in messages.schema.names:
                column = pa.chunked_array(pa.table([messages[name]], ["x"])["x"]).combine_chunks()
                given = column.drop_null()
                if len(given) and self._of_texts[number] != _are_texts(given):
                    what = "texts" if self._of_texts[number] else "numbers"
                    raise ValueError(f"attribute {name!r} of messages is {column.type}; constraints want {what}")
                rows.append(np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)))
                attributes.append(np.full(len(rows[-1]), number, np.uint32))
                values.append(packed(given) if self._of_texts[number] else given.cast(kind).to_numpy())
                if np.isnan(values[-1]).any():
                    raise ValueError(f"attribute {name!r} of a message is NaN")
        row_of = np.concatenate(rows)
        order = np.argsort(row_of, kind="stable")
        offsets = offsets_of(np.bincount(row_of, minlength=len(messages)))
        return Messages(offsets, np.concatenate(attributes)[order], np.concatenate(values)[order])

    def match_many(self, messages: Messages, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the filters that match each message, in any order; with `unique` each key once."""

        def match(first: int, last: int) -> Lists:
            ends = np.zeros(last - first + 1, np.int64)
            found = self._find(messages[first:last], unique=unique, ends=ends)
            return Lists(ends, found)

        at_once = self._at_once
        return keys_of_matches(match, len(messages), self._keys, unique=False, threads=self._threads, whole=at_once)

    def nbytes(self) -> int | None:
        """Bytes of memory, without the counters of each thread."""
        return sum(int(np.asarray(table).nbytes) for table in (*self._tables, self._keys.keys.values))
