"""Finds sets that ask for so many of some parts, as `at least 2 of {…}` does: a verified remainder.

If `k` of `n` parts hold, one of any `n - k + 1` parts does. So a set is found by each of its `n - k + 1` least likely
parts, as a set that asks for this part alone would be. For the messages that find it, a program over all parts, in
postfix order, is then evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, U32Array, offsets_of
from tagmatch.model.arrow import from_strings
from tagmatch.model.columns import strings_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.lists import gather, sort_values
from tagmatch.model.kernels.tag_table import areas_among, constraints_among
from tagmatch.model.tables import Segment, Vocabulary
from tagmatch.model.where.constraints import NO_TAG, PARTS, Constraint
from tagmatch.model.where.tag_columns import parsed
from tagmatch.model.where.values import is_reserved
from tagmatch.pipeline.filters.asked import COMPLEX, TAG, Asked, Requirements, requirements_of
from tagmatch.pipeline.filters.index import FilterIndex, index_of
from tagmatch.pipeline.filters.messages import MessageTable, messages_of
from tagmatch.pipeline.segment import Finder, RowsFound, SegmentMessages
from tagmatch.pipeline.tags import QueryBatch

#: Stands in a program for parts that are counted
COUNTED = TAG
# Rows that there may be for a candidate, if they are marked
_FEW = 16

_U32 = np.uint32


class Programs(NamedTuple):
    """What is left to be verified of each row, as kernels take it."""

    rows: U32Array  # the segment's
    offsets: I64Array  # Row number `i` has the steps from `offsets[i]` to `offsets[i + 1]`
    # [n, 3]: a record of a constraint (see `Sets`); or `COUNTED`, how many results before are counted, and how many of
    # these must hold
    steps: U32Array


class _Cover(NamedTuple):
    """Constraints such that all of one alternative hold wherever a part does."""

    chance: float  # How likely messages have one, about
    alternatives: list[tuple[int, ...]]


class PartsFinder(Finder):
    """Finds sets that ask for parts."""

    def __init__(self, index: FilterIndex, row_of: U32Array, programs: Programs, constraints: tuple[Any, ...]) -> None:
        self._index, self._row_of, self._programs, self._constraints = index, row_of, programs, constraints

    def __len__(self) -> int:
        return len(self._programs.rows)

    @property
    def nbytes(self) -> int:
        """As `Finder` says."""
        arrays = (self._row_of, *self._programs, *self._constraints)
        found: int = self._index.nbytes + sum(each.nbytes for each in arrays)
        return found

    def prepare(self, messages: SegmentMessages) -> MessageTable:
        """Codes of messages; tags are attributes here, and have no ranks."""
        without = QueryBatch(np.zeros(len(messages) + 1, np.int64), np.zeros(0, np.uint32))
        table = messages_of(without, messages.tags, messages.first, messages.last, self._index.attributes)
        self._index.seen.count(len(messages), table.attributes)
        return table

    def find(self, prepared: MessageTable) -> RowsFound:
        """As `Finder` says."""
        candidates, rejected, _ = self._index.rows_found(prepared)
        offsets, values = candidates.offsets.astype(np.int64, copy=False), candidates.values
        first_codes = np.zeros(self._index.attributes.count, np.uint32)
        ends = np.zeros(len(offsets), np.int64)
        messages = (prepared.offsets, prepared.attributes, prepared.codes, first_codes)
        found = (offsets, np.asarray(values, np.uint32), self._row_of)
        rows = _verified(found, messages, tuple(self._programs), self._constraints, ends)
        return RowsFound(Lists(ends, rows), rejected + len(values) - len(rows))

    def one_query(self, segment: Segment, tags: Any) -> None:
        """None: a single message is a packet."""


@lent
def _holds(attribute, low, span, message, first_codes, several, constraints):
    """Whether a message satisfies the constraint of a step."""
    attributes, codes, begin, end = message
    if attribute != COMPLEX:
        code = first_codes[attribute]
        holds = code != _U32(0) and _U32(code - low) <= span
        if several and not holds:
            for i in range(begin, end):
                holds |= attributes[i] == attribute and _U32(codes[i] - low) <= span
        return holds
    of_constraint, negated, offsets, lows, highs = constraints
    for i in range(begin, end):
        if attributes[i] == of_constraint[low]:
            for interval in range(offsets[low], offsets[low + _U32(1)]):
                if lows[interval] <= codes[i] <= highs[interval]:
                    return not negated[low]
    return negated[low]


@kernel
def _verified(found, messages, programs, constraints, ends):
    """The rows whose program holds for a message, and where those of each message end."""
    offsets, candidates, row_of = found
    message_offsets, attributes, codes, first_codes = messages
    rows, step_offsets, steps = programs
    kept, used, most = np.empty(len(candidates), np.uint32), np.int64(0), np.int64(0)
    for row in range(len(rows)):
        most = max(most, step_offsets[row + 1] - step_offsets[row])
    results = np.empty(most + 1, np.uint8)
    # The message that looked at a row last; if there are few candidates, these are sorted
    marked = len(candidates) >= len(rows) // _FEW
    looked_at, numbers = np.zeros(len(rows) if marked else 0, np.int64), np.empty(len(candidates), np.uint32)
    for i in range(len(candidates)):
        numbers[i] = row_of[candidates[i]]
    for owner in range(len(offsets) - 1):
        first, last = offsets[owner], offsets[owner + 1]
        begin, end = message_offsets[owner], message_offsets[owner + 1]
        if first < last:
            message, several = (attributes, codes, begin, end), False
            if not marked:
                sort_values(numbers, first, last)
            for i in range(begin, end):
                several |= first_codes[attributes[i]] != 0
                first_codes[attributes[i]] = codes[i]
            for i in range(first, last):
                number = numbers[i]
                if marked:
                    if looked_at[number] == owner + 1:
                        continue
                    looked_at[number] = owner + 1
                elif i > first and number == numbers[i - 1]:
                    continue
                top = 0
                for step in range(step_offsets[number], step_offsets[number + _U32(1)]):
                    attribute, low, span = steps[step, 0], steps[step, 1], steps[step, 2]
                    if attribute == COUNTED:
                        held = _U32(0)
                        for _ in range(low):
                            top -= 1
                            held += _U32(results[top])
                        results[top] = held >= span
                    else:
                        results[top] = _holds(attribute, low, span, message, first_codes, several, constraints)
                    top += 1
                kept[used] = rows[number]
                used += np.int64(results[0])
            for i in range(begin, end):
                first_codes[attributes[i]] = 0
        ends[owner + 1] = used
    return kept[:used].copy()


# -- made --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the segment: the parts of which it asks so many, and what else it asks."""

    number: int
    parts: list[Constraint]
    others: list[str]


def parts_of_sets(segment: Segment) -> PartsFinder | None:
    """What finds the sets of a segment that ask for parts; `None` if none does."""
    tags = segment.vocabulary.tags
    are_parts = constraints_among(tags)
    # These have four bytes or more
    are_parts[are_parts] = tags.data[tags.offsets[:-1][are_parts].astype(np.int64) + 2] == ord(PARTS)
    if not are_parts.any():
        return None
    rows = _rows_with(segment, are_parts)
    leaves = _Leaves()
    for row in rows:
        for each in row.others:
            leaves.number(each)
        for part in row.parts:
            leaves.steps(part.tag)
    if not rows:
        return None
    required = leaves.required(rows)
    cover = _Covers(leaves, required)
    steps, sizes, row_of, asked = [], [], [], []
    for number, row in enumerate(rows):
        own = [step for part in row.parts for step in leaves.steps(part.tag)]
        if len(row.parts) > 1:
            own.append((int(COUNTED), len(row.parts), len(row.parts)))
        steps += own
        sizes.append(len(own))
        others = [leaves.number(each) for each in row.others]
        for alternative in min(cover.of(part.tag) for part in row.parts).alternatives:
            row_of.append(number)
            asked.append(sorted({*others, *alternative}))
    programs = Programs(
        np.array([row.number for row in rows], np.uint32),
        offsets_of(np.array(sizes, np.int64)),
        _records(np.array(steps, np.int64).reshape(-1, 3), required.tests.records),
    )
    index = index_of(cover.asking(asked))
    return PartsFinder(index, np.array(row_of, np.uint32), programs, index.constraints.arrays)


def _records(steps: I64Array, of_constraints: U32Array) -> U32Array:
    """Steps with the records of their constraints in place of the numbers."""
    counted = steps[:, 0] == int(COUNTED)
    records = steps.astype(np.uint32)
    records[~counted] = of_constraints[steps[~counted, 0]]
    return records


def _rows_with(segment: Segment, are_parts: np.ndarray) -> list[_Row]:
    """The rows that ask for parts, without those whose tags no expression has made."""
    ranks = segment.tagsets.ranks
    owners = np.repeat(np.arange(len(ranks)), ranks.lengths())
    numbers = np.unique(owners[are_parts[ranks.values]])
    of_rows = gather(ranks, numbers.astype(np.uint64))
    used, places = np.unique(of_rows.values, return_inverse=True)
    tags = from_strings(segment.vocabulary.tags).take(used).to_pylist()
    is_area = areas_among(segment.vocabulary.tags)
    rows = []
    for place, number in enumerate(numbers.tolist()):
        begin, end = int(of_rows.offsets[place]), int(of_rows.offsets[place + 1])
        own = [tags[at] for at in places[begin:end].tolist()]
        parts = [each for each in own if are_parts_tag(each)]
        try:
            sound = [Constraint.of_tag(each) for each in parts]
            others = [each for each in own if not are_parts_tag(each)]
            for each in filter(is_reserved, others):
                Constraint.of_tag(each)
        except InvalidValueError:
            continue
        if not is_area[of_rows.values[begin:end]].any():
            rows.append(_Row(number, sound, others))
    return rows


def are_parts_tag(tag: str) -> bool:
    """Whether a tag stands for parts."""
    return is_reserved(tag) and tag[2:3] == PARTS


class _Leaves:
    """The different tags and tests of all parts, as constraints by number: a tag is one that asks for it."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._steps: dict[str, list[tuple[int, int, int]]] = {}

    def number(self, tag: str) -> int:
        """The number of the constraint that this tag stands for, or of the plain tag."""
        if not is_reserved(tag):
            tag = Constraint("", NO_TAG, payload=tag).tag
        return self._numbers.setdefault(tag, len(self._numbers))

    def steps(self, tag: str) -> list[tuple[int, int, int]]:
        """The program of a part."""
        if not are_parts_tag(tag):
            return [(self.number(tag), 0, 0)]
        known = self._steps.get(tag)
        if known is None:
            least, tags = Constraint.of_tag(tag).parts
            known = [step for each in tags for step in self.steps(each)]
            known.append((int(COUNTED), len(tags), least))
            self._steps[tag] = known
        return known

    def required(self, rows: Sequence[_Row]) -> Requirements:
        """What all rows ask in all their parts; what they ask is taken to be as likely as it is asked for often."""
        tags = strings_of(self._numbers)
        found = parsed(tags, np.ones(len(tags), np.bool_))
        assert len(found) == len(tags)
        each = [
            sorted(
                {*(self.number(tag) for tag in row.others)}
                | {step[0] for part in row.parts for step in self.steps(part.tag) if step[0] != COUNTED}
            )
            for row in rows
        ]
        vocabulary = Vocabulary(tags, hash_strings(tags), np.ones(len(tags), np.uint32))
        return requirements_of(_asked(each), found, vocabulary)


def _asked(of_rows: Sequence[Sequence[int]]) -> Asked:
    numbers = np.array([number for row in of_rows for number in row], np.int64)
    owners = np.repeat(np.arange(len(of_rows)), [len(row) for row in of_rows])
    return Asked(np.arange(len(of_rows)), owners, numbers.astype(np.uint32), numbers)


class _Covers:
    """By which of its parts each set is found."""

    def __init__(self, leaves: _Leaves, required: Requirements) -> None:
        self._leaves, self._required = leaves, required
        count = len(required.constraints)
        self._chances, self._has_token = np.ones(count), np.zeros(count, np.bool_)
        self._chances[required.asked.numbers] = required.likely.chances
        self._has_token[required.asked.numbers] = required.likely.has_token
        self._known: dict[str, _Cover] = {}

    def of(self, tag: str) -> _Cover:
        """That of a part."""
        if not are_parts_tag(tag):
            number = self._leaves.number(tag)
            return _Cover(float(self._chances[number]), [(number,)])
        known = self._known.get(tag)
        if known is None:
            least, tags = Constraint.of_tag(tag).parts
            least_likely = sorted(map(self.of, tags))[: len(tags) - least + 1]
            alternatives = [each for cover in least_likely for each in cover.alternatives]
            if least == len(tags):
                every = tuple(self._leaves.number(each) for each in tags if not are_parts_tag(each))
                alternatives = [(*each, *every) for each in alternatives]
            known = _Cover(sum(cover.chance for cover in least_likely), alternatives)
            self._known[tag] = known
        return known

    def asking(self, of_rows: Sequence[Sequence[int]]) -> Requirements:
        """The requirements of sets that ask for these constraints."""
        asked = _asked(of_rows)
        has_token, chances = self._has_token[asked.numbers], self._chances[asked.numbers]
        return replace(
            self._required, asked=asked, likely=replace(self._required.likely, has_token=has_token, chances=chances)
        )
