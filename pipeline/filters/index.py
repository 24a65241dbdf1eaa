"""The sets of a segment that have constraints, made ready for messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import BoolArray
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.input.messages import Message
from tagmatch.model.input.values import packed
from tagmatch.model.kernels.tag_table import areas_among, constraints_among
from tagmatch.model.tables import Segment, Vocabulary
from tagmatch.model.where.constraints import RANGES, Constraint
from tagmatch.model.where.tag_columns import Parsed, parsed
from tagmatch.model.where.values import Value, is_reserved, value_of
from tagmatch.pipeline.filters.asked import (
    Asked,
    Likelihoods,
    Seen,
    Tests,
    asked_in,
    likelihoods,
    presence_among,
    tests_of,
)
from tagmatch.pipeline.filters.attributes import Attributes, Constraints, attributes_of
from tagmatch.pipeline.filters.lines import BLOCK, LineIndex, line_index
from tagmatch.pipeline.filters.trie import TrieIndex, trie_index

#: How messages get to a set
Path: TypeAlias = Literal["trie", "lines"]

# Lines reach a set sooner if messages have even its least likely token so often, and at least so many sets are such
_LIKELY, _FEW = 0.125, BLOCK


@dataclass(frozen=True, slots=True, eq=False)
class FilterIndex:
    """The sets of a segment that have constraints."""

    attributes: Attributes
    constraints: Constraints  # Those that are more than an interval
    trie: TrieIndex | None
    lines: LineIndex | None  # The sets are in either
    seen: Seen  # Counts the messages that come

    @property
    def parts(self) -> Mapping[Path, TrieIndex | LineIndex]:
        """Those that there are."""
        both: dict[Path, TrieIndex | LineIndex | None] = {"trie": self.trie, "lines": self.lines}
        return {path: part for path, part in both.items() if part is not None}

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return (
            sum(array.nbytes for array in self.constraints.arrays)
            + self.attributes.constants.nbytes
            + self.attributes.patterns.nbytes
            + sum(part.nbytes for part in self.parts.values())
        )


def filters_of(segment: Segment, before: Sequence[FilterIndex | None] = ()) -> FilterIndex | None:
    """Index the sets of a segment that have constraints; `None` if there are none.

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
            for place in np.flatnonzero(np.isin(rows, part.rows)):
                paths[place] = path
    return paths


def filter_index(segment: Segment, before: Sequence[Seen] = (), path: Path | None = None) -> FilterIndex:
    """Index the sets of a segment that have constraints, all of them in `path` if that is given.

    `before` has seen messages, such as are expected.
    """
    is_constraint = constraints_among(segment.vocabulary.tags)
    found = parsed(segment.vocabulary.tags, is_constraint)
    return index_of(requirements_of(asked_in(segment, found, is_constraint), found, segment.vocabulary, before), path)


@dataclass(frozen=True, slots=True, eq=False)
class Requirements:
    """What some sets ask, and how likely messages have it."""

    asked: Asked
    attributes: Attributes  # Of all constraints of the vocabulary
    constraints: Constraints
    tests: Tests
    likely: Likelihoods  # Of what these sets ask
    ranks: int  # Of the vocabulary
    seen: Seen  # Counts the messages that come

    def __len__(self) -> int:
        return len(self.asked)

    def only(self, chosen: BoolArray) -> Requirements:
        """Those of some of the sets."""
        return replace(self, asked=self.asked.only(chosen), likely=self.likely.of(chosen[self.asked.owners]))


def requirements_of(asked: Asked, found: Parsed, vocabulary: Vocabulary, before: Sequence[Seen] = ()) -> Requirements:
    """What sets ask, which `found` are the constraints of; `before` as of `filter_index`."""
    attributes, constraints = attributes_of(vocabulary.tags, found)
    seen = Seen(attributes.names, before)
    # Where nothing is known of messages, they are taken to be as sets are
    presence = presence_among(asked, constraints, attributes.count)
    learned = seen.presence
    presence[: len(learned)] = np.where(np.isnan(learned), presence[: len(learned)], learned)
    likely = likelihoods(asked, constraints, attributes, presence, vocabulary.frequencies)
    tests = tests_of(constraints, attributes.constants.last_codes)
    return Requirements(asked, attributes, constraints, tests, likely, len(vocabulary.tags), seen)


def index_of(required: Requirements, path: Path | None = None) -> FilterIndex:
    """Index the sets that ask for this, all of them in `path` if that is given."""
    in_lines = _in_lines(required) if path is None else np.full(len(required), path == "lines")
    trie = lines = None
    attributes, constraints, tests = required.attributes, required.constraints, required.tests
    if in_lines.any():
        some = required.only(in_lines)
        lines = line_index(some.asked, attributes, constraints, tests, some.likely.chances)
    if lines is None or not in_lines.all():
        some = required.only(~in_lines)
        trie = trie_index(some.asked, attributes, constraints, tests, some.likely, required.ranks)
    return FilterIndex(attributes, tests.complexes, trie, lines, required.seen)


def encoder_of(required: Requirements) -> FilterIndex:
    """An index of no sets, by which messages are encoded: without a path, it finds nothing."""
    return FilterIndex(required.attributes, required.tests.complexes, None, None, required.seen)


def _in_lines(required: Requirements) -> BoolArray:
    """Which sets lines reach sooner than the trie: those of which messages are likely to have each token."""
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
