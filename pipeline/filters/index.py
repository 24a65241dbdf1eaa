"""The sets of a segment that have constraints, made ready for messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import BoolArray, Lists, bytes_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.input.messages import Message
from tagmatch.model.input.values import packed
from tagmatch.model.kernels.tag_table import areas_among, constraints_among
from tagmatch.model.tables import Segment
from tagmatch.model.where.constraints import RANGES, Constraint
from tagmatch.model.where.tag_columns import parsed
from tagmatch.model.where.values import Value, is_reserved, value_of
from tagmatch.pipeline.filters.asked import Requirements, Seen, asked_in, requirements_of
from tagmatch.pipeline.filters.attributes import Attributes, Constraints
from tagmatch.pipeline.filters.lines import BLOCK, LineIndex, line_index
from tagmatch.pipeline.filters.messages import MessageTable, messages_of
from tagmatch.pipeline.filters.trie import TrieIndex, trie_index
from tagmatch.pipeline.segment import RowsFound, SegmentMessages, rows_beside
from tagmatch.pipeline.tags import QueryBatch

#: How messages get to a set
Path: TypeAlias = Literal["trie", "lines"]

# Lines reach a set sooner if messages have even its least likely token this often, and if at least this number of
# sets are such
_LIKELY, _FEW = 0.125, BLOCK


@dataclass(frozen=True, slots=True, eq=False)
class FilterIndex:
    """The sets of a segment that have constraints."""

    attributes: Attributes
    constraints: Constraints  # Those that are more than an interval
    trie: TrieIndex | None
    lines: LineIndex | None  # The sets are in either
    seen: Seen  # Counts the messages that come
    parts: Mapping[Path, TrieIndex | LineIndex] = field(init=False)  # Those of both that exist

    def __post_init__(self) -> None:
        both: dict[Path, TrieIndex | LineIndex | None] = {"trie": self.trie, "lines": self.lines}
        object.__setattr__(self, "parts", {path: part for path, part in both.items() if part is not None})

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return (
            bytes_of(self.constraints.arrays, self.attributes.constants, self.attributes.patterns)
            # Both paths have the constraints, which are there once
            + sum(bytes_of(*part.arrays[:-1], part.sets[1:]) for part in self.parts.values())
        )

    def encoded(self, messages: SegmentMessages, ranks: QueryBatch | None = None) -> MessageTable:
        """Messages as ranks, if not these are given, and codes; it counts what they have."""
        table = messages_of(
            messages.ranks if ranks is None else ranks, messages.tags, messages.first, messages.last, self.attributes
        )
        self.seen.count(len(messages), table.attributes)
        return table

    def rows_found(self, messages: MessageTable) -> RowsFound:
        """Rows that the trie and the lines find."""
        found = [part.match(messages, self.attributes.count) for part in self.parts.values()]
        if not found:
            return RowsFound(Lists(np.zeros(len(messages.offsets), np.int64), np.zeros(0, np.uint32)))
        return found[0] if len(found) == 1 else rows_beside(found)


def filters_of(segment: Segment, before: Sequence[FilterIndex | None] = ()) -> FilterIndex | None:
    """Index the sets of a segment that have constraints; `None` if no set has any.

    It expects messages to have attributes as often as those that indexes of earlier segments have seen.
    """
    tags = segment.vocabulary.tags
    # Sets with areas are looked for elsewhere
    if not (constraints_among(tags) & ~areas_among(tags)).any():
        return None
    index = filter_index(segment, [index.seen for index in before if index is not None])
    return index if len(index) else None


def filters_of_rows(whole: FilterIndex, rows: Segment) -> FilterIndex:
    """The same of some rows of its segment; both count messages together."""
    return replace(filter_index(rows, [whole.seen]), seen=whole.seen)


def by_path(indexes: Iterable[FilterIndex | None]) -> dict[Path, int]:
    """How many sets with constraints each path has, in all these indexes."""
    parts = [index.parts for index in indexes if index is not None]
    return {path: sum(len(of.get(path, ())) for of in parts) for path in get_args(Path)}


def paths_of(index: FilterIndex | None, rows: npt.NDArray[np.integer[Any]]) -> list[Path | None]:
    """The path of the set in each of these rows; `None` for those without constraints."""
    paths: list[Path | None] = [None] * len(rows)
    if index is not None:
        for path, part in index.parts.items():
            for place in np.flatnonzero(np.isin(rows, part.sets.rows)):
                paths[place] = path
    return paths


def filter_index(segment: Segment, before: Sequence[Seen] = (), path: Path | None = None) -> FilterIndex:
    """Index the sets of a segment that have constraints, all of them in `path` if that is given.

    `before` has seen messages, such as are expected.
    """
    tags = segment.vocabulary.tags
    is_constraint = constraints_among(tags)
    found = parsed(tags, is_constraint)
    asked = asked_in(segment, found, is_constraint)
    return index_of(requirements_of(asked, found, tags, segment.frequencies, before), path)


def index_of(required: Requirements, path: Path | None = None) -> FilterIndex:
    """Index the sets that ask for this, all of them in `path` if that is given."""
    in_lines = _in_lines(required) if path is None else np.full(len(required), path == "lines")
    lines = line_index(required.only(in_lines)) if in_lines.any() else None
    trie = trie_index(required.only(~in_lines)) if lines is None or not in_lines.all() else None
    return FilterIndex(required.attributes, required.tests.complexes, trie, lines, required.seen)


def encoder_of(required: Requirements) -> FilterIndex:
    """An index of no sets, by which messages are encoded: without a path, it finds nothing."""
    return FilterIndex(required.attributes, required.tests.complexes, None, None, required.seen)


def _in_lines(required: Requirements) -> BoolArray:
    """Which sets lines reach sooner than the trie: those with only tokens that messages are likely to have."""
    least = np.ones(len(required))
    np.minimum.at(least, required.asked.owners, required.likely.chances)
    likely_all = least >= _LIKELY
    return likely_all & (np.count_nonzero(likely_all) >= _FEW)


def likely_message(tags: Iterable[str]) -> Message:
    r"""What a message has that a set's tags and constraints ask for, or nearly: of each range an end.

    Examples
    --------
    >>> likely_message(["fr", Constraint.of("price", "<", [5]).tag])[:2] == (["fr"], packed({"price": 5}))
    True
    """
    plain: list[str] = []
    values: dict[str, list[Value]] = {}
    for tag in tags:
        if not is_reserved(tag):
            plain.append(tag)
            continue
        constraint = Constraint.of_tag(tag)
        if constraint.attribute and not constraint.negated:
            values.setdefault(constraint.attribute, []).append(_value_for(constraint))
    return Message(plain, packed(values))


def _value_for(constraint: Constraint) -> Value:
    if constraint.kind != RANGES:
        return constraint.payload
    for cut in (cut for interval in constraint.intervals for cut in interval):
        # Not what stands before or after all values of a type
        with contextlib.suppress(InvalidValueError, IndexError):
            return value_of(cut.key)
    return True
