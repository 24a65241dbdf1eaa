"""Tests that are computed of the values of messages: patterns, and comparisons of attributes.

A test that holds is a tag of its message, which sets ask for, or for its absence. Of a message only those are computed
that may hold: it has both attributes, or a text with what the pattern must have. They are found as sets are that would
ask for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from threading import Lock
from time import time_ns
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, I64Array, Strings, U8Array, U16Array, bytes_of, frozen
from tagmatch.model.arrow import from_strings, to_strings
from tagmatch.model.columns import strings_of
from tagmatch.model.errors import IndexCorruptError, InvalidValueError
from tagmatch.model.input.values import BOOL, NAN, TEXT, is_key, number_of, record_at
from tagmatch.model.kernels.hashing import xxh64
from tagmatch.model.kernels.jit import copy, kernel, lent, with_room
from tagmatch.model.kernels.lists import sort_values
from tagmatch.model.kernels.tag_table import UNKNOWN, constraints_among, find
from tagmatch.model.where.automata import FOUND, automaton_of, needed
from tagmatch.model.where.comparisons import NOW, Comparison
from tagmatch.model.where.constraints import COMPARED, LIKE, NO_TAG, VERIFIED, Constraint, Kind
from tagmatch.model.where.tag_columns import parsed
from tagmatch.model.where.types import MARK, TIMES
from tagmatch.model.where.values import RESERVED, quoted
from tagmatch.pipeline.filters.asked import Asked, requirements_of
from tagmatch.pipeline.filters.attributes import Attributes, Names
from tagmatch.pipeline.filters.codes import MARKED, NUMBER, NUMBER_KEY, double_in, rest_in
from tagmatch.pipeline.filters.codes import NAN as NAN_LETTER
from tagmatch.pipeline.filters.index import FilterIndex, index_of
from tagmatch.pipeline.filters.messages import MessageTable, messages_of
from tagmatch.pipeline.segment import SegmentMessages
from tagmatch.pipeline.tags import QueryBatch

# Values of messages, seven numbers each: the next one of the message, the attribute, the type, two numbers by which
# it is ordered first, and where in a heap the bytes begin and end by which it is ordered then, or a text
_NEXT, _ATTRIBUTE, _TYPE, _ONE, _TWO, _BEGIN, _END, _SIZE = range(8)
# Types; those from the last one on have letters
_NOT_A_NUMBER, _BOOL, _NUMBER, _TEXT, _TIME = range(5)
_FIRST_LETTER, _NINE = ord(TIMES), ord("9")

# Tests: the tag that a message has if it holds, by its rank, and the attribute by which its absence is asked for, or
# -1; the attribute of the left side or of the text, and of the right side; which relations hold, or the pattern; and
# how much later the right side is
_RANK, _ABSENT, _LEFT, _RIGHT, _HOW, _SECONDS, _NANOSECONDS, _OF_TEST = range(8)
_NO_RIGHT = -1
# How a value relates to another one: bools have no order
_LESS, _EQUAL, _GREATER, _OTHER, _EQUAL_BOOLS = 1, 2, 4, 8, 16
_RELATIONS = {
    "=": _EQUAL | _EQUAL_BOOLS, "!=": _LESS | _GREATER | _OTHER, "<": _LESS, "<=": _LESS | _EQUAL, ">": _GREATER,
    ">=": _GREATER | _EQUAL,
}  # fmt: skip

_SECOND = 10**9
# Before a tag that must not be there
_NO_TAG = Constraint("", NO_TAG, negated=True).tag.encode()

_SEED, _U = np.uint64(0), np.uint64


class _Tables(NamedTuple):
    """The automata of patterns, one behind the other, with room for more."""

    firsts: I64Array
    widths: I64Array  # how many classes of bytes each has
    classes: U8Array  # 256 of each
    step_begins: I64Array
    steps: U16Array
    state_begins: I64Array
    at_end: U8Array


class _Automata:
    """The automata of patterns, each made when a text is first looked at for it."""

    def __init__(self, patterns: Sequence[tuple[str, bool]]) -> None:
        count = len(patterns)
        self._patterns, self._making, self._is_made = patterns, Lock(), np.zeros(count, np.bool_)
        self._used_steps = self._used_states = 0
        firsts, widths, step_begins, state_begins = (np.zeros(count, np.int64) for _ in range(4))
        steps, at_end = np.zeros(0, np.uint16), np.zeros(0, np.uint8)
        self.arrays = _Tables(firsts, widths, np.zeros(256 * count, np.uint8), step_begins, steps, state_begins, at_end)

    def with_those_of(self, patterns: I64Array) -> _Tables:
        """The arrays that have those of some patterns, by number."""
        if not self._is_made[patterns].all():
            with self._making:
                for number in np.unique(patterns[~self._is_made[patterns]]).tolist():
                    self._make(number)
        return self.arrays

    def _make(self, number: int) -> None:
        """Put one behind the others; IndexCorruptError if it is too large, which those that are stored are not."""
        pattern, is_like = self._patterns[number]
        try:
            own, tables = automaton_of(pattern, is_like=is_like), self.arrays
        except InvalidValueError as error:
            raise IndexCorruptError(
                f"the index has a pattern that is refused: {quoted(pattern):.80}: {error}"
            ) from None
        steps, at_end = np.frombuffer(own.steps, np.uint16), np.frombuffer(own.at_end, np.uint8)
        # Other threads still read the steps before these
        tables = tables._replace(
            steps=with_room(tables.steps, self._used_steps, len(steps)),
            at_end=with_room(tables.at_end, self._used_states, len(at_end)),
        )
        tables.firsts[number], tables.widths[number] = own.first, max(own.classes) + 1
        tables.classes[256 * number : 256 * (number + 1)] = np.frombuffer(own.classes, np.uint8)
        tables.step_begins[number], tables.state_begins[number] = self._used_steps, self._used_states
        tables.steps[self._used_steps : self._used_steps + len(steps)] = steps
        tables.at_end[self._used_states : self._used_states + len(at_end)] = at_end
        self.arrays = tables
        self._used_steps, self._used_states = self._used_steps + len(steps), self._used_states + len(at_end)
        self._is_made[number] = True


# -- values ------------------------------------------------------------------------------------------------------------


@kernel
def _put(message, attribute, value, found):
    """Write a value behind the others, in longer arrays if need be; it is then the first of its message."""
    (kind, bits, data, begin, end), (values, used, heap, heap_used, heads) = value, found
    which, one, two = np.int64(_TEXT), np.int64(bits), np.int64(0)
    if kind == BOOL:
        which = np.int64(_BOOL)
    elif kind != TEXT:
        double, rest = number_of(kind, bits)
        which, one, two = np.int64(_NUMBER if rest != NAN else _NOT_A_NUMBER), np.int64(double), np.int64(2 * rest)
        end = begin
    elif begin < end and data[begin] == MARKED and is_key(data, begin + 1, end):
        begin += 1
        if data[begin] == NUMBER:
            which, one = np.int64(_NUMBER), np.int64(double_in(data, begin))
            two = np.int64(rest_in(data, begin, end))
            begin += NUMBER_KEY
        elif data[begin] == NAN_LETTER:
            which = np.int64(_NOT_A_NUMBER)
        else:
            which, one = np.int64(_TIME) + np.int64(data[begin + 1]) - _FIRST_LETTER, np.int64(0)
            begin += 2
            if which == _TIME:
                one = np.int64(double_in(data, begin - 1))
                for at in range(begin + 16, end):
                    digit = np.int64(data[at])
                    two = 16 * two + (digit - 48 if digit <= _NINE else digit - 87)
                begin = end
    else:
        one = np.int64(0)
    values, heap = with_room(values, used * _SIZE, _SIZE), with_room(heap, heap_used, end - begin)
    at = used * _SIZE
    values[at + _NEXT], values[at + _ATTRIBUTE], values[at + _TYPE] = heads[message], attribute, which
    values[at + _ONE], values[at + _TWO], values[at + _BEGIN] = one, two, heap_used
    heap_used = copy(data, begin, end, heap, heap_used)
    values[at + _END] = heap_used
    heads[message] = used
    return values, used + 1, heap, heap_used, heads


@kernel
def _put_packed(offsets, data, first, asked, names, found):
    """Write the values of packed attributes of the messages that are asked for."""
    slots, name_offsets, name_bytes = names
    for message in range(len(asked) - 1):
        if asked[message] == asked[message + 1]:
            continue
        at = offsets[first + message]
        while at < offsets[first + message + 1]:
            kind, bits, begin, end, text, at = record_at(data, at)
            hashed = xxh64(data, begin, end, _SEED)
            number = find(hashed, data, begin, end, slots, name_offsets, name_bytes)[2]
            if number != UNKNOWN:
                found = _put(message, np.int64(number), (kind, bits, data, text, at), found)
    return found


@kernel
def _put_column(column, first, asked, attribute, of_values, found):
    """Write the values of a column, of one attribute or, of a column of maps, of one each."""
    kind, rows, validity, first_bit, bits, begins, ends, text = column
    for message in range(len(asked) - 1):
        if asked[message] == asked[message + 1]:
            continue
        row = first + message
        begin, end = (rows[row], rows[row + 1]) if len(rows) else (row, row + 1)
        for place in range(begin, end):
            bit = first_bit + place
            if len(validity) and (validity[bit >> 3] >> (bit & 7)) & 1 == 0:
                continue
            own = attribute
            if len(of_values):
                if of_values[place] == UNKNOWN:
                    continue
                own = np.int64(of_values[place])
            of_text = (begins[place], ends[place]) if kind == TEXT else (np.int64(0), np.int64(0))
            value = (kind, bits[place] if kind != TEXT else _U(0), text, of_text[0], of_text[1])
            found = _put(message, own, value, found)
    return found


# -- tests -------------------------------------------------------------------------------------------------------------


@lent
def _relation(values, one, other, heap, seconds, nanoseconds):
    """How a value relates to another one that is so much later; 0 if they should be times, but are not."""
    left, right = one * _SIZE, other * _SIZE
    which, later = values[left + _TYPE], seconds != 0 or nanoseconds != 0
    first, second = _U(values[right + _ONE]), values[right + _TWO]
    if later:
        if which != _TIME or values[right + _TYPE] != _TIME:
            return 0
        second += nanoseconds
        seconds += second // _SECOND
        second -= _SECOND * (second // _SECOND)
        first += _U(seconds)
    if which != values[right + _TYPE] or which == _NOT_A_NUMBER:
        return _OTHER
    if which == _BOOL:
        return _EQUAL_BOOLS if values[left + _ONE] == values[right + _ONE] else _OTHER
    if _U(values[left + _ONE]) != first:
        return _LESS if _U(values[left + _ONE]) < first else _GREATER
    if values[left + _TWO] != second:
        return _LESS if values[left + _TWO] < second else _GREATER
    at, begin = values[left + _BEGIN], values[right + _BEGIN]
    size, length = values[left + _END] - at, values[right + _END] - begin
    for place in range(min(size, length)):
        if heap[at + place] != heap[begin + place]:
            return _LESS if heap[at + place] < heap[begin + place] else _GREATER
    return _EQUAL if size == length else _LESS if size < length else _GREATER


@lent
def _is_found(pattern, automata, heap, begin, end):
    firsts, widths, classes, step_begins, steps, state_begins, at_end = automata
    # Unsigned indices save the test for negative ones
    state, width, base = _U(firsts[pattern]), _U(widths[pattern]), _U(step_begins[pattern])
    own = _U(256 * pattern)
    for at in range(_U(begin), _U(end)):
        if state <= _U(FOUND):
            break
        state = _U(steps[base + state * width + _U(classes[own + _U(heap[at])])])
    return at_end[_U(state_begins[pattern]) + state] != 0


@lent
def _passes(test, firsts, values, nexts_of, heap, automata):
    """Whether a pair of values does, of those whose attribute has a first one, and each a next one."""
    left = firsts[test[_LEFT]]
    while left >= 0:
        if test[_RIGHT] == _NO_RIGHT:
            at = left * _SIZE
            if values[at + _TYPE] == _TEXT and _is_found(
                test[_HOW], automata, heap, values[at + _BEGIN], values[at + _END]
            ):
                return True
        else:
            right = firsts[test[_RIGHT]]
            while right >= 0:
                if _relation(values, left, right, heap, test[_SECONDS], test[_NANOSECONDS]) & test[_HOW]:
                    return True
                right = nexts_of[right]
        left = nexts_of[left]
    return False


@kernel
def _compute(found, test_of, tests, automata, read, firsts, now):
    """The tests that hold, message by message, and where those of each begin."""
    (offsets, candidates), (values, used, heap, _, heads), (now_attribute, now_value) = found, read, now
    holding, ends, count = np.empty(len(candidates), np.int64), np.zeros(len(offsets), np.int64), 0
    looked_at, nexts_of = np.full(len(tests), -1), np.full(used, -1)
    for message in range(len(offsets) - 1):
        if offsets[message] < offsets[message + 1]:
            value = heads[message]
            while value >= 0:
                attribute = values[value * _SIZE + _ATTRIBUTE]
                nexts_of[value], firsts[attribute] = firsts[attribute], value
                value = values[value * _SIZE + _NEXT]
            if now_attribute >= 0 and firsts[now_attribute] < 0:
                firsts[now_attribute] = now_value
            for i in range(offsets[message], offsets[message + 1]):
                test = test_of[candidates[i]]
                if looked_at[test] != message:
                    looked_at[test] = message
                    if _passes(tests[test], firsts, values, nexts_of, heap, automata):
                        holding[count] = test
                        count += 1
            firsts[:] = -1
        ends[message + 1] = count
    return holding[:count], ends


@kernel
def _with_tags(offsets, ranks, holding, ends, tests):
    """The ranks of messages, and those of tests that hold, in order."""
    all_ranks, all_offsets, used = np.empty(len(ranks) + len(holding), np.uint32), np.zeros(len(offsets), np.int64), 0
    for message in range(len(offsets) - 1):
        begin = used
        for i in range(offsets[message], offsets[message + 1]):
            all_ranks[used] = ranks[i]
            used += 1
        for i in range(ends[message], ends[message + 1]):
            if tests[holding[i], _RANK] >= 0:
                all_ranks[used] = tests[holding[i], _RANK]
                used += 1
        if used - begin > offsets[message + 1] - offsets[message]:
            sort_values(all_ranks, begin, used)
        all_offsets[message + 1] = used
    return all_offsets, all_ranks[:used]


@kernel
def _with_attributes(offsets, attributes, codes, holding, ends, tests):
    """The attributes and codes of messages, and those by which the absence of tests is asked for that hold."""
    count, used = len(attributes) + len(holding), 0
    all_offsets = np.zeros(len(offsets), np.int64)
    all_attributes, all_codes = np.empty(count, np.uint32), np.empty(count, np.uint32)
    for message in range(len(offsets) - 1):
        for i in range(offsets[message], offsets[message + 1]):
            all_attributes[used], all_codes[used] = attributes[i], codes[i]
            used += 1
        for i in range(ends[message], ends[message + 1]):
            if tests[holding[i], _ABSENT] >= 0:
                all_attributes[used], all_codes[used] = tests[holding[i], _ABSENT], 1
                used += 1
        all_offsets[message + 1] = used
    return all_offsets, all_attributes[:used], all_codes[:used]


# -- made --------------------------------------------------------------------------------------------------------------


class Implied(NamedTuple):
    """A computed test, and the ways in which what it implies holds: tags of constraints, which are looked up."""

    test: Constraint
    ways: list[list[str]]


def are_of_kinds(tags: Strings, kinds: tuple[Kind, ...]) -> BoolArray:
    """Which tags are those of tests of some kinds."""
    found = constraints_among(tags)
    # These have four bytes or more
    found[found] = np.isin(tags.data[tags.offsets[:-1][found].astype(np.int64) + 2], list(map(ord, kinds)))
    return found


def as_tags(leaves: Strings) -> tuple[Strings, dict[str, Implied], I64Array]:
    """Tags and tests with those that are computed as tags that no message has, or as their absence.

    Then come these tests by their tags, and the numbers of those that no expression has made.
    """
    mask = are_of_kinds(leaves, VERIFIED)
    if not mask.any():
        return leaves, {}, np.zeros(0, np.int64)
    all_of, tests, are_none, replaced = from_strings(leaves).cast(pa.large_binary()), dict[str, Implied](), [], []
    for number, given in zip(np.flatnonzero(mask).tolist(), all_of.filter(pa.array(mask)).to_pylist(), strict=True):
        tag = given.decode(errors="replace")
        try:
            if (held := _held(tag)) not in tests:
                tests[held] = _implied(Constraint.of_tag(held))
        except InvalidValueError:
            are_none.append(number)
        replaced.append((_NO_TAG if tag[1] == "-" else b"") + _name_of(tag))
    found = pc.replace_with_mask(all_of, pa.array(mask), pa.array(replaced, pa.large_binary()))
    return to_strings(found), tests, np.array(are_none, np.int64)


def _held(tag: str) -> str:
    return f"{RESERVED}+{tag[2:]}"


def _name_of(tag: str) -> bytes:
    """The tag that a message has if a test holds: it begins with a byte that is in no text."""
    return MARK + tag[2:].encode()


def _implied(test: Constraint) -> Implied:
    if test.kind == COMPARED:
        names = sorted({*test.attributes} - {NOW})
        return Implied(test, [[Constraint.of(name, "exists").tag for name in names]])
    own = needed(test.payload, is_like=test.kind == LIKE)
    return Implied(test, [[Constraint.of(test.attribute, own.operator, [text]).tag] for text in own.texts])


def _index_of(ways: Sequence[Sequence[str]]) -> FilterIndex:
    """An index of sets that ask for these constraints; what they ask is taken to be as likely as it is asked for."""
    numbers: dict[str, int] = {}
    of_ways = [sorted({numbers.setdefault(tag, len(numbers)) for tag in way}) for way in ways]
    tags, things = strings_of(numbers), np.array([*chain(*of_ways)], np.int64)
    owners = np.repeat(np.arange(len(ways)), list(map(len, of_ways)))
    asked = Asked(np.arange(len(ways)), owners, things.astype(np.uint32), things)
    found, frequencies = parsed(tags, np.ones(len(tags), np.bool_)), np.ones(len(tags), np.uint32)
    return index_of(requirements_of(asked, found, tags, frequencies))


class ComputedTests:
    """Tests by their tags, which are among the tags of sets, or whose absence is among the attributes."""

    def __init__(self, tests: Mapping[str, Implied], tags: Strings, known: Attributes) -> None:
        ways, self._numbers = [], dict[str, int]()
        patterns: dict[tuple[str, bool], int] = {}
        self._tests = np.zeros((len(tests), _OF_TEST), np.int64)
        names = to_strings(pa.array(list(map(_name_of, tests)), pa.large_binary()))
        found = pc.index_in(from_strings(names), from_strings(tags).cast(pa.large_binary())).fill_null(-1)
        self._tests[:, _RANK] = found.to_numpy()
        absent = known.absent_tags.numbers(names).astype(np.int64)
        self._tests[:, _ABSENT] = np.where(absent == UNKNOWN, -1, known.first_tag + absent)
        for number, (constraint, own_ways) in enumerate(tests.values()):
            ways += [(number, way) for way in own_ways]
            own = self._tests[number]
            own[_LEFT], own[_RIGHT] = self._number(constraint.attribute), _NO_RIGHT
            if constraint.kind == COMPARED:
                compared = Comparison.in_payload(constraint.attribute, constraint.payload)
                own[_RIGHT], own[_HOW] = self._number(compared.right), _RELATIONS[compared.operator]
                own[_SECONDS], own[_NANOSECONDS] = divmod(compared.later, _SECOND)
            else:
                own[_HOW] = patterns.setdefault((constraint.payload, constraint.kind == LIKE), len(patterns))
        self._names = Names.of(strings_of(list(self._numbers)))[0]
        self._automata = _Automata([*patterns])
        self._index, self._test_of = _index_of([way for _, way in ways]), np.array([number for number, _ in ways])

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._index.nbytes + bytes_of((self._tests, self._test_of), self._automata.arrays)

    def with_held(self, table: MessageTable, messages: SegmentMessages) -> MessageTable:
        """The messages with the tests that hold."""
        own, index = messages.tags, self._index
        without = QueryBatch(np.zeros(len(messages) + 1, np.int64), np.zeros(0, np.uint32))
        encoded = messages_of(without, own, messages.first, messages.last, index.attributes)
        index.seen.count(len(messages), encoded.attributes)
        found = index.rows_found(encoded)[0]
        if not len(found.values):
            return table
        asked = found.offsets.astype(np.int64, copy=False), found.values.astype(np.uint32, copy=False)
        values, used, *rest = self._values(messages, asked[0])
        now = self._numbers.get(NOW, -1), used
        read = np.append(values[: used * _SIZE], _time(time_ns())), used + 1, *rest
        firsts = np.full(len(self._numbers), -1)
        tests = self._tests[self._test_of[np.unique(asked[1])]]
        automata = self._automata.with_those_of(tests[tests[:, _RIGHT] == _NO_RIGHT, _HOW])
        held = _compute(asked, self._test_of, self._tests, tuple(automata), read, firsts, now)
        return MessageTable(
            *_with_tags(table.rank_offsets, table.ranks, *held, self._tests),
            *_with_attributes(table.offsets, table.attributes, table.codes, *held, self._tests),
        )

    def _values(self, messages: SegmentMessages, asked: I64Array) -> tuple[Any, ...]:
        """The values that messages which ask for tests have of the attributes."""
        first, given = messages.first, messages.tags.attributes
        found: Any = np.empty(0, np.int64), 0, np.empty(0, np.uint8), 0, np.full(len(messages), -1)
        assert given is not None  # as these have attributes
        for number, attribute in zip(given.numbers, self._names.numbers_of(given.names), strict=True):
            column = None if attribute == UNKNOWN else given.column(number)
            if column is not None:
                found = _put_column(tuple(column), first, asked, attribute, _NO_NUMBERS, found)
        for number in given.maps:
            entries = given.map_column(number)
            if entries is not None:
                numbers = frozen(self._names.numbers(entries.names))
                found = _put_column(tuple(entries.column), first, asked, 0, numbers, found)
        if given.packed is not None:
            packed = given.packed
            found = _put_packed(packed.offsets, packed.data, first, asked, self._names.arrays, found)
        return found  # type: ignore[no-any-return]


_NO_NUMBERS = frozen(np.zeros(0, np.uint32))


def _time(nanoseconds: int) -> I64Array:
    seconds, rest = divmod(nanoseconds, _SECOND)
    return np.array([-1, -1, _TIME, seconds - 2**63, rest, 0, 0])
